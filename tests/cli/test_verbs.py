"""The command line itself: usage errors, boxes, exit codes, behaviour without PyTorch, and correct
`init` and `doctor`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.cli.console import Screen
from composer_replication.cli.main import VERBS
from composer_replication.cli.problems import describe
from composer_replication.core.config.load_config import load_config
from composer_replication.core.config.root import Config
from composer_replication.core.errors import (
    DataError,
    MissingExtraError,
    StoppedError,
    install_fix,
    need,
)
from composer_replication.tokens.artefact import write_dataset
from composer_replication.tokens.example import TrainingExample
from tests.cli.test_ingest import log_lines
from tests.cli.workspace import HOSTILE, files, fill, recompose, session

NO_TORCH = """
import sys
packages = "torch transformers accelerate peft tokenizers safetensors numpy jinja2"
sys.modules.update(dict.fromkeys(packages.split()))
from composer_replication.cli.console import Screen
from composer_replication.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def without_torch(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_help_lists_every_verb_in_the_order_of_the_pipeline(tmp_path: Path) -> None:
    out = recompose("--help", cwd=tmp_path).out
    places = [out.index(f"│ {verb} ") for verb in VERBS]
    assert places == sorted(places)
    assert recompose(cwd=tmp_path).out == out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_the_common_flags(tmp_path: Path, verb: str) -> None:
    result = recompose(verb, "--help", cwd=tmp_path)
    assert result.code == 0
    assert all(
        flag in result.out
        for flag in ("--json", "--dry-run", "--config", "--out", "--quiet", "--verbose", "--debug")
    )


@pytest.mark.parametrize(
    "typed",
    [
        ["trian"],
        ["trian", "--json"],
        ["train", "--jsno"],
        ["train", "--train.stepz", "3"],
        ["trian", "--help"],
    ],
)
def test_a_mistyped_verb_or_flag_is_a_usage_error_with_a_guess(
    tmp_path: Path, typed: list[str]
) -> None:
    result = recompose(*typed, cwd=tmp_path)
    message = (result.value["error"]["fix"] if result.out else result.err).lower()
    assert result.code == 2
    assert "did you mean" in message and any(
        word in message for word in ('"train"', "--json", '"steps"')
    )


@pytest.mark.parametrize(("typed", "meant"), [("compare", '"report a b"'), ("next", '"doctor"')])
def test_a_verb_that_people_guess_leads_to_the_one_there_is(
    tmp_path: Path, typed: str, meant: str
) -> None:
    result = recompose(typed, cwd=tmp_path)
    assert result.code == 2 and f"did you mean {meant}" in result.err.lower()


def test_a_setting_without_a_value_is_a_usage_error(tmp_path: Path) -> None:
    assert recompose("sites", "--sites.site", cwd=tmp_path).code == 2
    assert recompose("sites", "--sites.site", "--json", cwd=tmp_path).code == 2


def test_a_wrong_value_in_a_flag_is_a_usage_error_and_in_a_file_a_fixable_one(
    tmp_path: Path,
) -> None:
    assert recompose("doctor", "--train.steps", "many", cwd=tmp_path).code == 2
    (tmp_path / "recompose.toml").write_text('[train]\nsteps = "many"\n', "utf-8")
    result = recompose("doctor", cwd=tmp_path)
    assert result.code == 1 and "recompose.toml:2" in result.err and "train.steps" in result.err


def test_a_missing_config_file_is_a_box_not_a_traceback(tmp_path: Path) -> None:
    result = recompose("sites", "-c", "none.toml", cwd=tmp_path)
    assert result.code == 1 and "no config file" in result.err and "Traceback" not in result.err


def test_an_error_with_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    result = recompose("sites", "--json", cwd=tmp_path)
    assert result.err == "" and result.code == 1
    assert (
        result.value["error"]["exit_code"] == 1
        and "recompose ingest" in result.value["error"]["fix"]
    )


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in recompose("sites", "--debug", cwd=tmp_path).err
    assert "Traceback" not in recompose("sites", cwd=tmp_path).err


def test_exit_codes_follow_the_kind_of_error() -> None:
    assert describe(StoppedError("starved")).exit_code == 3
    assert describe(DataError("x")).exit_code == 1
    assert describe(PermissionError(13, "Permission denied", "/x")).where == "/x"
    assert describe(KeyboardInterrupt()).exit_code == 130
    assert "bug" in describe(ZeroDivisionError("division by zero")).fix


def test_out_leads_to_the_same_folder_in_the_next_command(tmp_path: Path) -> None:
    fill(tmp_path / "w", [session()])
    result = recompose("hints", "-o", "w", cwd=tmp_path)
    assert result.code == 0 and "next   recompose report -o w" in result.out


def test_quiet_says_only_what_was_written(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    out = recompose("hints", "-q", cwd=tmp_path).out
    assert [line.split()[0] for line in out.splitlines() if line.strip()] == ["wrote"]


def test_init_writes_a_file_that_changes_nothing_and_is_not_overwritten(tmp_path: Path) -> None:
    result = recompose("init", cwd=tmp_path)
    assert result.code == 0 and files(tmp_path) == {"recompose.toml"}
    assert load_config(start=tmp_path).config == Config()
    (tmp_path / "recompose.toml").write_text("seed = 9\n", "utf-8")
    assert recompose("init", cwd=tmp_path).code == 1
    assert (tmp_path / "recompose.toml").read_text("utf-8") == "seed = 9\n"
    assert recompose("init", "--force", cwd=tmp_path).code == 0


def test_init_dry_run_writes_nothing_and_schema_is_json_schema(tmp_path: Path) -> None:
    assert recompose("init", "--dry-run", cwd=tmp_path).code == 0
    schema = recompose("init", "--schema", cwd=tmp_path).value
    assert schema["additionalProperties"] is False and "train" in schema["properties"]
    assert files(tmp_path) == set()


def test_init_explains_a_group_and_refuses_an_unknown_one(tmp_path: Path) -> None:
    assert "# beta = 0.5" in recompose("init", "--explain", "train.hint", cwd=tmp_path).out
    assert recompose("init", "--explain", "train.hintt", cwd=tmp_path).code == 2


def test_doctor_reads_only(tmp_path: Path) -> None:
    value = recompose("doctor", "--json", cwd=tmp_path).value
    assert {f["name"] for f in value["findings"]} >= {"python", "torch", "logs", "disk", "settings"}
    assert value["verbs"]["ingest"] is True
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    "verb",
    ["build", "train", "demo", "hints --audit", "show example e001", "evaluate --logs", "evaluate"],
)
def test_without_torch_a_verb_that_needs_it_prints_the_install_line(
    tmp_path: Path, verb: str
) -> None:
    fill(tmp_path / "recompose", [session()])
    examples = tmp_path / "recompose" / "examples"
    write_dataset(examples, [TrainingExample(id="x", session_id="s", ids=(1, 2))], meta={})
    (examples / "tokenizer").mkdir()
    completed = without_torch(*verb.split(), cwd=tmp_path)
    assert (
        completed.returncode == 1
        and "pip install 'composer-replication[train]'" in completed.stderr
    ), completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize("logs", [True, False])
def test_doctor_names_the_next_step_of_the_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: bool
) -> None:
    """Absent logs of an agent must not hide work that is in progress."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    if logs:
        (tmp_path / "claude" / "projects").mkdir(parents=True)
        (tmp_path / "claude" / "projects" / "one.jsonl").write_text(
            "\n".join(log_lines()) + "\n", "utf-8"
        )
    first = recompose("doctor", "--json", cwd=tmp_path).value["next"]
    folder = tmp_path / "claude" / "projects"
    assert first == (f"recompose ingest {folder}" if logs else "recompose demo")
    fill(tmp_path / "recompose", [session()])
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == "recompose report"
    (tmp_path / "recompose" / "hints.jsonl").unlink()
    assert recompose("doctor", "--json", cwd=tmp_path).value["next"] == "recompose hints"


CALLS = {
    "show": (
        ["show", "session"],
        ["show", "site"],
        ["show", "example"],
        ["show", "pair"],
        ["show", "run"],
    ),
    "hints": (["hints"], ["hints", "--audit"]),
    "evaluate": (["evaluate"], ["evaluate", "--logs"], ["evaluate", "first", "--logs"]),
    "train": (
        ["train"],
        ["train", "--resume", "latest"],
        ["train", "--rollouts.env", "workshop", "--train.policy.weight", "1"],
    ),
    "replay": (["replay", "--estimate"], ["replay", "--max-usd", "0"]),
    "report": (["report"], ["report", "--audit"]),
    "sessions": (["sessions"],),
    "curate": (["curate"], ["curate", "--check"], ["curate", "--curate.recipe", "strict"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_without_torch_no_verb_ends_in_a_bug(tmp_path: Path, verb: str) -> None:
    """Each verb names what is missing, or works."""
    fill(tmp_path / "recompose", [session()])
    (tmp_path / "recompose" / "preferences.jsonl").write_text("", "utf-8")
    write_dataset(
        tmp_path / "recompose" / "examples",
        [TrainingExample(id="x", session_id="s", ids=(1, 2))],
        meta={},
    )
    for argv in CALLS.get(verb, ([verb],)):
        completed = without_torch(*argv, cwd=tmp_path)
        assert (
            completed.returncode in (0, 1, 2)
            and "bug" not in completed.stderr
            and "Traceback" not in completed.stderr
        ), (argv, completed.stderr)
        assert "No module named" not in completed.stdout + completed.stderr, argv
        if completed.returncode and "not installed" in completed.stderr:
            assert f"{sys.executable} -m pip install" in " ".join(
                completed.stderr.replace("│", " ").split()
            ), completed.stderr


def test_the_remedy_is_a_command_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip` may be that of another one: torch landed in the system's Python."""
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python3")
    assert install_fix("train").startswith(
        "run: '/opt/my python/bin/python3' -m pip install 'composer-replication[train]'"
    )
    with pytest.raises(MissingExtraError, match="-m pip install") as caught:
        need("no_such_package", extra="train")
    assert "'/opt/my python/bin/python3'" in caught.value.fix
    bare = re.compile(r"(?<!-m )\bpip3? install")
    source = Path(__file__).resolve().parents[2] / "src"
    assert [
        path.name for path in source.rglob("*.py") if bare.search(path.read_text("utf-8"))
    ] == []


def test_without_torch_the_rest_works_and_doctor_says_so(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    for argv in (
        ["sites"],
        ["hints"],
        ["show", "site", "s001"],
        ["show", "session", "s001"],
        ["init"],
    ):
        completed = without_torch(*argv, cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr
    verbs = json.loads(without_torch("doctor", "--json", cwd=tmp_path).stdout)["verbs"]
    assert verbs["ingest"] and not verbs["train"] and not verbs["build"]


def test_the_installed_command_runs_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()] * 1)
    command = Path(sys.executable).with_name("recompose")
    completed = subprocess.run(
        f"{command} show session s001 --full | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "sess-aaaa" in completed.stdout and completed.stderr == ""


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(json=True).result({"lift": float("nan"), "rows": [{"low": float("-inf")}, 1.5]})
    printed = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )
    assert printed == {"lift": None, "rows": [{"low": None}, 1.5]}


def on_a_terminal(*argv: str, cwd: Path, typed: str = "", **environ: str) -> str:
    """The output of a command on a real terminal (a pseudo-terminal of 100 columns); `typed` is the
    user's input."""
    master, slave = pty.openpty()
    os.write(master, typed.encode())
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {
        "TERM": "xterm-256color",
        "COLUMNS": "100",
        **environ,
    }
    command = [sys.executable, "-m", "composer_replication.cli", *argv]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env
    ) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # Linux raises this once the other side has closed
                break
            if not piece:
                break
            text += piece
        process.wait(timeout=60)
    os.close(master)
    return text.decode()


def test_colour_on_a_terminal_unless_no_color(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    assert "\x1b[" in on_a_terminal("show", "site", "s001", cwd=tmp_path)
    plain = on_a_terminal("show", "site", "s001", cwd=tmp_path, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain) and "seen only by the teacher" in plain


@pytest.mark.parametrize(("typed", "sessions"), [("n\n", 0), ("\n", 0), ("y\n", 1)])
def test_the_default_folder_is_read_only_after_a_yes(
    tmp_path: Path, typed: str, sessions: int
) -> None:
    projects = tmp_path / "claude" / "projects"
    projects.mkdir(parents=True)
    (projects / "one.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    text = on_a_terminal(
        "ingest", cwd=tmp_path, typed=typed, CLAUDE_CONFIG_DIR=str(tmp_path / "claude")
    )
    assert "[y/N]" in text
    assert (tmp_path / "recompose" / "sessions.jsonl").exists() == bool(sessions), text


def test_the_log_s_own_escape_codes_do_not_reach_a_terminal(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session(text=HOSTILE)])
    text = on_a_terminal("show", "session", "s001", cwd=tmp_path)
    assert "\x1b]0;" not in text and "\x07" not in text and "\u202e" not in text
    assert "\u241b[31mred" in text


def test_no_colour_reaches_a_pipe(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    assert "\x1b[" not in recompose("show", "site", "s001", cwd=tmp_path).out
