"""Every printed `next` line is run as printed: none of them ends in a refusal."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from composer_replication.cli.main import VERBS
from composer_replication.core.codec import write_sessions
from composer_replication.evaluation.audit_names import MEASURE
from tests.cli.test_verbs import without_torch
from tests.cli.workspace import CliResult, fill, recompose, session

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "examples" / "demo_logs"
OTHERS = ROOT / "tests" / "data" / "ingestion" / "other_agents"
NUM_DEMO = len(list(LOGS.rglob("*.jsonl")))


def arguments_of(command: str) -> list[str]:
    """A `next` line as a command line of the program."""
    program, *arguments = shlex.split(command)
    assert program == "recompose", command
    return arguments


@pytest.mark.train
def test_from_logs_to_a_run_with_the_default_student(tmp_path: Path) -> None:
    """With the default tiny student, no step asks for an audit that would keep no hint, or for
    anything of the workshop."""
    command, walked = f"recompose ingest {LOGS}", []
    while command and len(walked) < 12:
        argv = arguments_of(command)
        walked.append(argv[0])
        result = recompose(
            *argv, *(["--dry-run"] if argv[0] == "train" else []), "--json", cwd=tmp_path
        )
        assert result.code == 0, (command, result.err, result.out)
        if argv[0] == "train":
            break
        command = result.value["next"]
    assert walked == ["ingest", "sites", "hints", "report", "init", "build", "train"]


def test_without_pytorch_the_walk_ends_at_the_doctor(tmp_path: Path) -> None:
    command, walked = f"recompose ingest {LOGS}", []
    while command and (argv := arguments_of(command))[0] not in walked:
        walked.append(argv[0])
        completed = without_torch(*argv, "--json", cwd=tmp_path)
        assert completed.returncode == 0, (command, completed.stderr)
        command = json.loads(completed.stdout)["next"]
        if argv[0] == "doctor":
            break
    assert walked == ["ingest", "sites", "hints", "report", "doctor"] and shlex.split(command)[
        :4
    ] == [
        sys.executable,
        "-m",
        "pip",
        "install",
    ]


def test_with_a_student_named_the_audit_comes_before_the_build(tmp_path: Path) -> None:
    for verb in (("ingest", str(LOGS)), ("sites",), ("hints",)):
        assert recompose(*verb, "-q", cwd=tmp_path).code == 0
    result = recompose("report", "--student.model", "some/model", "--json", cwd=tmp_path)
    assert result.value["next"] == "recompose hints --audit --student.model some/model"
    (tmp_path / "recompose" / "audit.json").write_text(
        json.dumps(
            {
                "student": "some/model",
                "measure": MEASURE,
                "kinds": [{"kind": "k", "n": 1, "decision": None}],
            }
        ),
        "utf-8",
    )
    refused = recompose("report", "--student.model", "some/model", "--json", cwd=tmp_path)
    # no kind of hint was kept: a build would be refused
    assert refused.value["next"] == "recompose show site"


def test_of_an_empty_store_the_next_step_brings_sessions_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = tmp_path / "agent" / "projects"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(agents.parent))
    assert recompose("ingest", str(LOGS), cwd=tmp_path).code == 0
    projects = {
        session["folder"]
        for session in recompose("sessions", "--json", cwd=tmp_path).value["sessions"]
    }
    result = recompose(
        "ingest",
        *(word for folder in projects for word in ("--forget", folder)),
        "--json",
        cwd=tmp_path,
    )
    assert result.code == 0 and result.value["next"] == "recompose doctor"
    shutil.copytree(LOGS, agents)
    for verb in (["sites"], ["hints"], ["report"]):
        command = recompose(*verb, "--json", cwd=tmp_path).value["next"]
        assert (
            command == f"recompose ingest {agents}"
            and recompose(*arguments_of(command), "--dry-run", cwd=tmp_path).code == 0
        )
    assert (
        recompose("sites", "--ingest.logs", str(agents), "--json", cwd=tmp_path).value["next"]
        == f"recompose ingest --ingest.logs {agents}"
    )


@pytest.mark.parametrize("where", ["nowhere", "an empty folder", "the settings", "gone", "agents"])
def test_the_step_that_brings_the_first_sessions_in_runs_as_printed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents, work = tmp_path / "agent's" / "projects", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(agents.parent))
    if where == "an empty folder":
        agents.mkdir(parents=True)
    elif where != "nowhere":
        shutil.copytree(LOGS, agents)
        codex = tmp_path / "home" / ".codex" / "sessions"
        codex.mkdir(parents=True)
        shutil.copy(OTHERS / "codex.jsonl", codex / "rollout-1.jsonl")
    if where in ("the settings", "gone"):
        logs = agents if where == "the settings" else tmp_path / "no such folder"
        (work / "recompose.toml").write_text(f"[ingest]\nlogs = [{json.dumps(str(logs))}]\n")
    told = recompose("sites", cwd=work)
    doctor = recompose("doctor", "--json", cwd=work).value["next"]
    if where in ("nowhere", "an empty folder", "gone"):
        assert arguments_of(doctor)[0] in ("demo", "doctor")
        assert "run first: recompose ingest PATH" in flat(told.err)
        return
    result = recompose(*arguments_of(doctor), "--json", cwd=work)
    assert result.code == 0 and result.value["next"] == "recompose sites", result.err
    assert len(result.value["files"]) == NUM_DEMO + (where == "agents")


def test_sites_and_report_count_the_same(tmp_path: Path) -> None:
    assert recompose("ingest", str(LOGS), cwd=tmp_path).code == 0
    outputs = [recompose(verb, cwd=tmp_path).out for verb in ("sites", "report")]
    counts = [
        match[0]
        for out in outputs
        if (match := re.findall(r"\d+ mistaken messages in \d+ of \d+ sessions", out))
    ]
    assert len(counts) == 2 and counts[0] == counts[1]


def test_doctor_lists_every_verb(tmp_path: Path) -> None:
    listed = recompose("doctor", "--json", cwd=tmp_path).value["verbs"]
    assert set(VERBS) <= {verb.split()[0] for verb in listed}


def three(
    work: Path,
    *,
    toml: str = "",
    without: tuple[str, ...] = (),
    empty: tuple[str, ...] = (),
    add: tuple[str, ...] = (),
) -> None:
    """Three sessions with a mistake and a hint each, in several states: other settings, and
    missing, empty or additional artefacts."""
    fill(work / "recompose", [session(f"sess-{n}", text=f"Please fix test {n}.") for n in "abc"])
    (work / "recompose.toml").write_text(toml, "utf-8")
    for name in without:
        (work / "recompose" / f"{name}.jsonl").unlink()
    for name in (*empty, *add):
        (work / "recompose" / f"{name}.jsonl").write_text("", "utf-8")


def built(work: Path, toml: str = "") -> None:
    three(work, toml=toml)
    recompose("build", "-q", cwd=work)


def one_session(work: Path) -> None:
    three(work, toml="[held_out]\nfraction = 0.2\n")
    write_sessions(work / "recompose" / "sessions.jsonl", [session("sess-a")])
    for name in ("sites", "hints"):
        path = work / "recompose" / f"{name}.jsonl"
        path.write_text(path.read_text("utf-8").splitlines(keepends=True)[0], "utf-8")


STATES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda work: None,
    "sessions": lambda work: three(work, without=("sites", "hints")),
    "sites": lambda work: three(work, without=("hints",)),
    "hints": three,
    "no mistake": lambda work: three(work, empty=("sites", "hints")),
    "no hint": lambda work: three(work, empty=("hints",)),
    "no pairs": lambda work: three(work, empty=("hints",), add=("preferences",)),
    "pairs and no sites": lambda work: three(
        work, without=("sites", "hints"), add=("preferences",)
    ),
    "pairs asked for": lambda work: three(
        work, toml="[train.preference]\nweight = 1.0\n", add=("preferences",)
    ),
    "a share that holds out none": lambda work: three(work, toml="[held_out]\nfraction = 0.01\n"),
    "a share that holds out all": lambda work: three(work, toml="[held_out]\nfraction = 0.99\n"),
    "one session and a share": one_session,
    "windows too short": lambda work: three(work, toml="[build]\nmax_tokens = 150\n"),
    "windows too short for good": lambda work: three(
        work, toml="[build]\nmax_tokens = 60\n[train]\nmicro_tokens = 60\n"
    ),
    "a build that was refused": lambda work: built(work, "[build]\nmax_tokens = 150\n"),
    "rollouts asked for, and none played": lambda work: built(
        work, "[train.policy]\nweight = 1.0\n"
    ),
    "a build": built,
}
WALKED = (
    "doctor",
    "sites",
    "hints",
    "report",
    "init",
    "curate",
    "build",
    "evaluate --logs",
    "train",
)
TRIED = re.compile(r"this was tried, and works: (recompose .*?)(?: or |$)")


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", text)).strip()


def run_line(command: str, work: Path) -> CliResult:
    """Run a line as printed; training and playing are dry runs."""
    argv = arguments_of(command)
    return recompose(
        *argv,
        *(
            ["--dry-run"]
            if argv[0] in ("train", "demo", "evaluate") and "--logs" not in argv
            else []
        ),
        cwd=work,
    )


@pytest.mark.train
@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_whatever_lies_there_no_next_line_ends_in_a_refusal(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb in every state, and every line that follows. A build may be refused; then it
    prints a command that was tried."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    for verb in WALKED:
        work = tmp_path / verb.replace(" ", "_")
        work.mkdir()
        STATES[state](work)
        command, walked = f"recompose {verb}", list[str]()
        while (
            command
            and command not in walked
            and len(walked) < 10
            and not command.startswith("recompose show")
        ):
            walked.append(command)
            result = run_line(command, work)
            message = flat(result.out + result.err)
            if result.code:
                assert "Traceback" not in message and "bug" not in message
                if walked == [f"recompose {verb}"]:  # run by hand: the error says what to do
                    assert result.code in (1, 2, 3) and "╭" in result.err, (state, walked, message)
                    break
                assert arguments_of(command)[0] == "build", (state, walked, message)
                if state == "windows too short for good":
                    assert "raise build.max_tokens" in message
                    command = recompose("doctor", "--json", cwd=work).value["next"]
                    continue
                tried = TRIED.search(flat(result.err))
                assert tried is not None, (state, walked, message)
                command = tried[1]
                assert run_line(command, work).code == 0, (state, walked, command)
                continue
            next_commands = re.findall(r"^ next   (recompose .*)$", result.out, re.MULTILINE)
            command = next_commands[-1] if next_commands else ""
        if command.startswith("recompose show"):
            assert recompose(*arguments_of(command), cwd=work).code == 0, (state, walked, command)


@pytest.mark.train
def test_a_refused_build_is_mended_by_what_it_prints_and_the_state_says_the_same(
    tmp_path: Path,
) -> None:
    three(tmp_path, toml="[build]\nmax_tokens = 150\n")
    assert recompose("report", "-q", cwd=tmp_path).code == 0
    result = recompose("build", cwd=tmp_path)
    tried = TRIED.search(flat(result.err))
    assert result.code == 1 and tried is not None and "--build.max_tokens" in tried[1]
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == tried[1]
    assert recompose("train", "--dry-run", cwd=tmp_path).code == 1
    mended = recompose(*arguments_of(tried[1]), "--json", cwd=tmp_path)
    window = re.search(r"--build.max_tokens \d+", tried[1])
    assert window is not None
    assert mended.code == 0 and mended.value["next"] == f"recompose train {window[0]}"
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == "recompose train"
    assert recompose("train", "--dry-run", cwd=tmp_path).code == 0
    (tmp_path / "recompose.toml").write_text(
        "[build]\nmax_tokens = 60\n[train]\nmicro_tokens = 60\n", "utf-8"
    )
    assert recompose("build", "-q", cwd=tmp_path).code == 1
    # no window is long enough
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == "recompose show site"
    (tmp_path / "recompose.toml").write_text("", "utf-8")
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == "recompose build"


@pytest.mark.train
def test_a_channel_that_would_get_nothing_is_told_by_build_and_not_by_train(tmp_path: Path) -> None:
    three(tmp_path, empty=("hints",), add=("preferences",))
    result = recompose("build", cwd=tmp_path)
    assert (
        result.code == 0
        and "next   recompose show site" in result.out
        and "recompose train" not in result.out
    )
    assert (
        "channel hint has weight 1.0, but the examples hold nothing for it" in result.out
        and "hints.writers" in result.out
    )
    refused = recompose("train", "--dry-run", cwd=tmp_path)
    assert refused.code == 1 and "channel hint has weight 1.0" in flat(refused.err)
    assert (
        "next   recompose train" in recompose("build", "--train.hint.weight", "0", cwd=tmp_path).out
    )
    assert (
        "next   recompose train"
        not in recompose("build", "--train.preference.weight", "1", cwd=tmp_path).out
    )


@pytest.mark.train
@pytest.mark.parametrize(
    ("toml", "command"),
    [
        ("", "recompose init --explain replay"),  # logs from elsewhere, and nobody to ask
        ('[replay]\nteachers = ["kimi", "glm"]\n', "recompose replay --estimate"),
        ('[replay]\nrecorded = "answers.jsonl"\n', "recompose replay"),
    ],
)
def test_a_preference_channel_without_pairs_is_followed_by_a_replay_if_somebody_can_be_asked(
    tmp_path: Path, toml: str, command: str
) -> None:
    three(tmp_path, toml=f"[train.preference]\nweight = 1.0\n{toml}")
    assert recompose("report", "-q", cwd=tmp_path).code == 0
    assert recompose("build", "--json", cwd=tmp_path).value["next"] == command
    before = command if arguments_of(command)[0] == "replay" else "recompose build"
    (tmp_path / "recompose" / "examples" / "meta.json").unlink()
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == before


@pytest.mark.train
def test_from_the_demo_s_logs_the_next_lines_lead_to_a_training(tmp_path: Path) -> None:
    logs = recompose("demo", "--logs-only", "--logs", "12", "--json", cwd=tmp_path)
    command, walked = logs.value["next"], list[str]()
    while arguments_of(command)[0] != "train" and len(walked) < 12:
        walked.append(arguments_of(command)[0])
        result = recompose(*arguments_of(command), "--json", cwd=tmp_path)
        assert result.code == 0, (command, result.err)
        command = result.value["next"]
    # the page is drawn again, because it says what the audit of the hints measured
    data = ["ingest", "sites", "hints", "report", "hints", "report"]
    assert walked == [*data, "replay", "curate", "build"]
    assert recompose(*arguments_of(command), "--dry-run", cwd=tmp_path).code == 0


@pytest.mark.train
@pytest.mark.parametrize("verb", ["report", "evaluate --logs", "doctor"])
def test_a_share_that_holds_out_nothing_is_followed_by_one_that_does(
    tmp_path: Path, verb: str
) -> None:
    three(tmp_path, toml="[held_out]\nfraction = 0.01\n")
    assert recompose("report", "-q", cwd=tmp_path).code == 0
    command = recompose(*verb.split(), "--json", cwd=tmp_path).value["next"]
    assert command.startswith("recompose build --held_out.fraction 0.")
    next_result = recompose(*arguments_of(command), "--json", cwd=tmp_path)
    assert (
        next_result.code == 0
        and next_result.value["held_out"]["held_out_sessions"]
        and next_result.value["held_out"]["train_sessions"]
    )
