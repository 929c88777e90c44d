"""`build`, `train`, `show example|pair|run` with the tiny student: their files, and the refusals
before anything is spent."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch

from composer_replication.cli import hints_audit, hints_audit_views
from composer_replication.cli.flags import Common
from composer_replication.cli.job import open_job
from composer_replication.cli.student_tokenizer import make_tokenizer
from composer_replication.core.codec import read_hints, read_sessions, record_to_json
from composer_replication.core.config.data_settings import HeldOutSettings, HintPosition
from composer_replication.core.config.root import Config
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Preference
from composer_replication.core.trace import Session, Text, Turn
from composer_replication.evaluation.hint_lift import audit_hints
from composer_replication.evaluation.hint_positions import measure_positions
from composer_replication.tokens.artefact import load_dataset
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import (
    is_held_out,
    possible_fractions,
    split_unit,
    unit_number,
)
from tests.cli.test_ingest import log_lines
from tests.cli.workspace import files, fill, inside, recompose, session
from tests.training.test_ranks import free_port

pytestmark = pytest.mark.train
TRAIN = (
    "train",
    "--train.steps",
    "2",
    "--train.batch_examples",
    "2",
    "--train.checkpoint_every",
    "1",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions, one a copy under other ids, taken as far as `build`, with a pair."""
    root = tmp_path_factory.mktemp("built")
    (root / "logs").mkdir()
    log_text = "\n".join(log_lines()) + "\n"
    two = log_text.replace("11111111-2222", "33333333-4444").replace("shop", "store")
    for old in ("u1", "u2", "u3", "a1", "a2", "a3", "c1", "c2"):
        two = two.replace(f'"{old}"', f'"{old}x"').replace(f"msg_{old}", f"msg_{old}x")
    (root / "logs" / "one.jsonl").write_text(log_text, "utf-8")
    (root / "logs" / "two.jsonl").write_text(two, "utf-8")
    assert recompose("ingest", "logs", cwd=root).code == 0
    assert recompose("sites", cwd=root).code == 0
    assert recompose("hints", cwd=root).code == 0
    better = Turn(
        role="assistant",
        author="someone",
        blocks=(Text("The file says return 0, so I replace that."),),
    )
    write_lines(
        root / "pairs.jsonl",
        [record_to_json(Preference(session_id="11111111-2222", turn=3, chosen=better))],
    )
    result = recompose("build", "--build.pairs", "pairs.jsonl", cwd=root)
    assert result.code == 0, result.err
    return root


@pytest.fixture
def work(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "w")
    return tmp_path / "w"


def test_build_counts_every_channel_and_says_what_it_left_out(work: Path) -> None:
    value = recompose("build", "--build.pairs", "pairs.jsonl", "--json", cwd=work).value
    # Each session has three messages: two that are fine and the mistaken one; of the first, the
    # pair's rejected side is that one.
    assert (value["examples"], value["views"], value["pairs"], value["trained_messages"]) == (
        2,
        2,
        1,
        4,
    )
    assert value["skipped"]["lm_ce/site"] == 2
    assert value["held_out"]["train_sessions"] == 2 and value["held_out"]["held_out_sessions"] == 0


def test_a_dry_run_of_build_counts_the_same_and_writes_nothing(work: Path) -> None:
    shutil.rmtree(work / "recompose" / "examples")
    files_before = files(work)
    dry = recompose("build", "--dry-run", "--json", cwd=work).value
    assert files(work) == files_before
    wet = recompose("build", "--json", cwd=work).value
    assert {k: dry[k] for k in ("examples", "views", "tokens")} == {
        k: wet[k] for k in ("examples", "views", "tokens")
    }


def test_the_held_out_split_is_applied_and_printed(work: Path) -> None:
    numbers = sorted(
        unit_number(split_unit(s, by="session"))
        for s in read_sessions(work / "recompose" / "sessions.jsonl")
    )
    between = f"{sum(numbers) / 2:.4f}"  # holds out one of the two
    result = recompose("build", "--held_out.fraction", between, "--json", cwd=work)
    assert (
        result.value["held_out"]["by"] == "session"
        and result.value["held_out"]["held_out_sessions"] == 1
    )
    assert result.value["examples"] == 1 and result.value["skipped"]["session/held_out"] == 1
    dry_run_output = recompose("build", "--held_out.fraction", between, "--dry-run", cwd=work).out
    assert (
        "held out" in dry_run_output
        and "by session, as there are fewer than 5 repositories" in " ".join(dry_run_output.split())
    )


@pytest.mark.parametrize(
    ("fraction", "by", "message"),
    [
        ("0.01", "session", "none of 2"),
        ("0.9999", "auto", "all of 2"),
        ("0.01", "repository", "none of"),
    ],
)
def test_a_split_that_holds_out_nothing_or_everything_is_refused_before_training(
    work: Path, fraction: str, by: str, message: str
) -> None:
    """This used to fail only after training, in an evaluation without anything to judge."""
    files_before = files(work)
    result = recompose("build", "--held_out.fraction", fraction, "--held_out.by", by, cwd=work)
    error_text = " ".join(result.err.split())
    assert result.code == 1 and f"holds out {message}" in error_text and files(work) == files_before
    sessions = read_sessions(work / "recompose" / "sessions.jsonl")
    fractions = possible_fractions(split_unit(s, by="session") for s in sessions)
    smallest = f"{fractions[0]:g}"
    assert (
        'held_out.by = "session"' in error_text
        if by == "repository"
        else f"held_out.fraction = {smallest}" in error_text
    )
    fixed = recompose(
        "build", "--held_out.fraction", smallest, "--held_out.by", "session", "--json", cwd=work
    )
    assert fixed.value["held_out"]["held_out_sessions"] >= 1


def test_a_run_has_the_split_of_its_examples(work: Path) -> None:
    run = Path(recompose(*TRAIN, "--held_out.fraction", "0.5", "--json", cwd=work).value["run"])
    run = run if run.is_absolute() else work / run
    assert json.loads((run / "resolved.json").read_text("utf-8"))["held_out"] == {
        "by": "session",
        "fraction": 0.0,
    }


def test_train_writes_a_run_with_every_weighted_channel_active(work: Path) -> None:
    result = recompose(*TRAIN, "--train.preference.weight", "0.5", "--json", cwd=work)
    assert (result.code, result.err) == (0, "")
    assert result.value["statuses"] == {
        "policy": "off",
        "lm_ce": "active",
        "hint": "active",
        "preference": "active",
    }
    run = Path(result.value["run"])
    run = run if run.is_absolute() else work / run
    assert {"run.json", "resolved.json", "command.txt", "metrics.jsonl", "events.jsonl"} <= files(
        run
    )
    assert json.loads((run / "resolved.json").read_text("utf-8"))["train"]["steps"] == 2
    (listed,) = recompose("show", "run", "--json", cwd=work).value["runs"]
    assert (listed["name"], listed["latest"], listed["placebo"]) == (run.name, True, [])
    names = recompose("show", "run", cwd=work).out
    assert f"{run.name} (latest)" in names and "2 of 2" in names
    wrong = recompose("show", "run", f"{run.name[:-1]}x", cwd=work)
    assert wrong.code == 1 and f"did you mean {run.name}?" in " ".join(wrong.err.split())
    view = recompose("show", "run", "latest", "--json", cwd=work).value
    assert view["state"] == "done" and view["steps"] == 2
    assert (
        view["channels"]["hint"]["statuses"] == {"active": 2}
        and view["channels"]["hint"]["tokens"] > 0
    )
    assert any(line.startswith("train.preference.weight") for line in view["changed_settings"])
    shown = recompose("show", "run", run.name, cwd=work)
    assert "no evidence of learning" in shown.out and "hint" in shown.out
    assert recompose("show", "run", "nope", cwd=work).code == 1


def test_a_dry_run_of_train_plans_and_writes_nothing(work: Path) -> None:
    files_before = files(work)
    result = recompose(*TRAIN, "--dry-run", "--json", cwd=work)
    assert (
        result.value["plan"]["units"]["hint"] > 0
        and result.value["plan"]["units"]["preference"] == 1
    )
    assert files(work) == files_before


def test_a_weighted_channel_without_data_is_refused_before_a_run_exists(work: Path) -> None:
    assert recompose("build", cwd=work).code == 0
    result = recompose(*TRAIN, "--train.preference.weight", "0.5", cwd=work)
    assert result.code == 1 and "preference" in result.err and "build.pairs" in result.err
    assert not (work / "recompose" / "runs").exists()


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("setting", "others"),
    [
        ("focus", ("--train.hint.focus", "decision", "--train.fork", "true")),
        ("estimator", ("--train.hint.estimator", "sampled_token", "--train.hint.divergence",
                       "kl(student, teacher)")),
    ],
)  # fmt: skip
def test_a_control_that_the_views_cannot_have_is_refused_before_a_run_exists(
    work: Path, setting: str, others: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    """The dry run passed; the run loaded the student and made its folder first."""
    files_before = files(work)
    result = recompose(*TRAIN, *others, *flags, cwd=work)
    assert result.code == 1 and f"train.hint.{setting}" in result.err
    assert files(work) == files_before


def test_a_dry_run_says_what_focus_and_contrast_leave(work: Path) -> None:
    views = [
        view
        for example in load_dataset(work / "recompose" / "examples").examples
        for view in example.hints
    ]
    total = sum(len(view.target_ids) for view in views)
    focus = recompose(*TRAIN, "--train.hint.focus", "decision", "--dry-run", "--json", cwd=work)
    left = focus.value["plan"]["focused_tokens"]
    assert 0 < left < total
    said = recompose(*TRAIN, "--train.hint.focus", "decision", "--dry-run", cwd=work).out
    assert f"{left} of {total} tokens are distilled; 0 of {len(views)} hint views" in said
    contrast = recompose(*TRAIN, "--train.hint.contrast", "true", "--dry-run", cwd=work)
    # both sessions are copies, with hints of the same text
    assert contrast.code == 1 and "train.hint.contrast" in contrast.err
    file = work / "recompose" / "examples" / "examples.jsonl"
    first, *rest = map(json.loads, file.read_text("utf-8").splitlines())
    first["hints"][0]["hint_ids"].append(5)
    write_lines(file, [first, *rest])
    contrast = recompose(*TRAIN, "--train.hint.contrast", "true", "--dry-run", cwd=work)
    assert f"{len(views)} of {len(views)} hint views have a hint of another" in contrast.out


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_what_would_stop_a_run_in_its_middle_is_refused_before_it_exists(
    work: Path, flags: tuple[str, ...]
) -> None:
    """In the rows layout a pair counts twice its longer side, so it can be too long even if every
    example fits."""
    files_before = files(work)
    data = load_dataset(work / "recompose" / "examples", tokenizer_sha256=None)
    (pair,), widest = (
        data.pairs,
        max(len(e.ids) + sum(len(v.hint_ids) for v in e.hints) for e in data.examples),
    )
    needs = 2 * (len(pair.prefix_ids) + max(len(pair.chosen_ids), len(pair.rejected_ids)))
    limit = ("--train.layout", "rows", "--train.micro_tokens", str(needs - 1))
    result = recompose(*TRAIN, *limit, *flags, cwd=work)
    assert needs > widest and result.code == 1 and f"pair {pair.id}" in result.err
    assert (
        f"needs {needs} tokens" in result.err
        and "train.micro_tokens" in result.err
        and "build.max_tokens" in result.err
    )
    assert files(work) == files_before
    assert recompose(*TRAIN, "--train.micro_tokens", str(needs), "--dry-run", cwd=work).code == 0


def test_a_run_that_a_health_rule_stops_ends_with_exit_code_3(work: Path) -> None:
    """Steps of 1e30 overflow; the statuses of the channels that lead to 3 as well are tested with
    the trainer."""
    flags = (
        "--train.learning_rate",
        "1e30",
        "--train.warmup_steps",
        "0",
        "--train.steps",
        "5",
        "--train.batch_examples",
        "2",
    )
    result = recompose("train", *flags, "--name", "wild", cwd=work)
    assert result.code == 3 and "not finite" in result.err and "stopped" in result.err
    assert (
        recompose("show", "run", "wild", "--json", cwd=work).value["state"] == "stopped:not_finite"
    )


def test_resume_goes_on_and_refuses_changed_settings(work: Path) -> None:
    assert recompose(*TRAIN, "--name", "first", cwd=work).code == 0
    longer = (
        "train",
        "--train.steps",
        "4",
        "--train.batch_examples",
        "2",
        "--train.checkpoint_every",
        "1",
    )
    result = recompose(
        *longer, "--resume", "recompose/runs/first", "--train.learning_rate", "0.5", cwd=work
    )
    assert result.code == 1 and "learning_rate" in result.err
    result = recompose(
        *longer, "--resume", "recompose/runs/latest", "--accept-changes", "--json", cwd=work
    )
    assert result.code == 0 and result.value["steps"] == 4
    # a launch that is refused before anything is loaded leaves no trace
    assert recompose("show", "run", "first", "--json", cwd=work).value["attempts"] == 2


def test_another_student_than_the_one_built_for_is_refused(work: Path) -> None:
    result = recompose(*TRAIN, "--student.model", "./elsewhere", cwd=work)
    assert result.code == 1 and "Traceback" not in result.err


def test_hints_stand_in_the_set_position_from_build_to_training(work: Path) -> None:
    there = ("--hints.position", "reminder")
    assert recompose("build", *there, cwd=work).code == 0
    out = recompose("show", "example", "e001", "--full", cwd=work).out
    assert out.index("<system-reminder>") < out.index("return 1")
    (hint,) = recompose("show", "example", "e001", "--json", cwd=work).value["hints"]
    assert (hint["position"], hint["rendering"]) == ("reminder", "line")
    assert hint["text"].startswith("<system-reminder>\n")
    refused = recompose(*TRAIN, cwd=work)
    assert refused.code == 1 and not (work / "recompose" / "runs").exists()
    assert "position 'reminder', hints.position is 'system'" in refused.err.replace("\n", " ")
    assert "recompose build" in refused.err
    assert recompose(*TRAIN, *there, "--dry-run", cwd=work).code == 0
    audit = recompose("hints", "--audit", "--json", *there, cwd=work).value["audit"]
    assert audit["not_built"] == {}


def test_an_example_is_shown_token_by_token(work: Path) -> None:
    value = recompose("show", "example", "e001", "--json", cwd=work).value
    kinds = [t["loss"] for t in value["tokens"]]
    assert value["counts"] == {kind: kinds.count(kind) for kind in ("lm_ce", "hint", "none")}
    assert all(value["counts"].values())
    target = "".join(t["text"] for t in value["tokens"] if t["loss"] == "hint")
    assert (
        "return 1" in target
        and "<|im_start|>" not in target
        and target.rstrip().endswith("<|im_end|>")
    )
    trained = "".join(t["text"] for t in value["tokens"] if t["loss"] == "lm_ce")
    assert "I read it first." in trained and "return 2" not in trained
    out = recompose("show", "example", "e001", "--full", cwd=work).out
    plain = out.replace("|", "").replace("\n", "")
    assert out.index("seen only by the teacher") < out.index("{<tool_call>")
    assert "[I|" in out or "[I read it first." in plain
    assert "e002" in recompose("show", "example", cwd=work).out


def test_examples_that_hold_a_forgotten_session_are_removed_and_never_used(work: Path) -> None:
    backup = work / "kept"
    shutil.copytree(work / "recompose" / "examples", backup)
    result = recompose("ingest", "--forget", "11111111-2222", cwd=work)
    assert (
        result.code == 0
        and "recompose build makes it anew" in result.out
        and not (work / "recompose" / "examples").exists()
    )
    shutil.copytree(backup, work / "recompose" / "examples")
    for argv in (TRAIN, (*TRAIN, "--dry-run"), ("show", "example", "e001"), ("show", "pair")):
        result = recompose(*argv, cwd=work)
        assert (
            result.code == 1
            and "forgotten since: 11111111-2222" in result.err
            and "recompose build" in result.err
        ), argv
    assert not (work / "recompose" / "runs").exists()


def test_a_pair_is_shown_side_by_side(work: Path) -> None:
    value = recompose("show", "pair", "p001", "--json", cwd=work).value
    assert (
        "I replace that." in value["chosen"]
        and "return 2" in value["rejected"]
        and "I read it first." in value["prefix"]
    )
    assert "p001" in recompose("show", "pair", cwd=work).out
    assert "chosen" in recompose("show", "pair", "p001", cwd=work).out


def test_show_example_before_build_names_the_command(tmp_path: Path) -> None:
    result = recompose("show", "example", cwd=tmp_path)
    assert result.code == 1 and "recompose build" in result.err


def test_the_audit_measures_each_kind_and_writes_what_it_measured(work: Path) -> None:
    files_before = files(work)
    dry = recompose("hints", "--audit", "--dry-run", "--json", cwd=work)
    assert dry.code == 0 and files(work) == files_before
    plan = dry.value["audit"]["planned"]
    assert plan["messages"] == 2 and set(plan["positions"]) == set(get_args(HintPosition))
    assert not {"kinds", "sites_measured"} & set(dry.value["audit"])
    assert "nothing was measured" in recompose("hints", "--audit", "--dry-run", cwd=work).out
    value = recompose("hints", "--audit", "--json", cwd=work).value
    assert json.loads((work / "recompose" / "audit.json").read_text("utf-8")) == value["audit"]
    # Both sites have the same hint but for a file's name; each is measured against the other's.
    assert [(k["kind"], k["n"]) for k in value["audit"]["kinds"]] or value["audit"]["skipped"][
        "no_donor"
    ] == 2
    out = recompose("hints", "--audit", cwd=work).out
    assert "donors   of 2 messages: 2 with fewer than 3" in out and "fix      set train.hint" in out
    assert "no kind is kept: `build` and `train` refuse" in out and "knows nothing yet" in out


def test_the_audit_counts_the_hints_that_could_not_be_built(work: Path) -> None:
    """Hints that do not fit used to be dropped silently: "4 sites" for 17 hints."""
    hints = [
        json.loads(line)
        for line in (work / "recompose" / "hints.jsonl").read_text("utf-8").splitlines()
    ]
    hints[0]["text"] = "word " * 3000
    write_lines(work / "recompose" / "hints.jsonl", hints)
    for name in ("audit.json", "audit.meta.json"):
        (work / "recompose" / name).unlink(missing_ok=True)
    measured, lost = _examples_of(work)
    assert (len(measured), lost) == (1, {"too_long": 1})


def test_a_position_in_which_no_hint_can_be_placed_is_reported(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end with a KeyError, after minutes of measuring."""
    build = hints_audit_views._examples

    def none_as_reminder(*args: Any, position: Any, **kwargs: Any) -> Any:
        if position == "reminder":
            return [], {"not_insertable": 2}
        return build(*args, position=position, **kwargs)

    monkeypatch.setattr(hints_audit_views, "_examples", none_as_reminder)
    audit = recompose("hints", "--audit", "--json", cwd=work).value["audit"]
    assert audit["not_placed"] == {"reminder": 2}
    assert "reminder" not in {effect["position"] for effect in audit["positions"]}
    out = recompose("hints", "--audit", cwd=work).out
    assert "'reminder' is impossible with this template: 2 of the compared hints" in out


def test_a_long_audit_tells_how_far_it_is(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hints_audit, "Progress", functools.partial(hints_audit.Progress, every_s=0.0)
    )
    out = recompose("hints", "--audit", cwd=work).out
    assert "message 1 of 2 | eta=measuring" in out and "message 2 of 2 | eta=0s" in out


def test_an_audit_without_any_view_says_what_became_of_the_hints(work: Path) -> None:
    result = recompose("hints", "--audit", "--build.max-tokens", "100", cwd=work)
    assert (
        result.code == 1 and "none of 2 hints could be built into a view: too_long 2" in result.err
    )


def _examples_of(work: Path) -> tuple[list[TrainingExample], dict[str, int]]:
    with inside(work):
        job = open_job(Common())
        renderer = Renderer.for_tokenizer(make_tokenizer(job.config, job.sessions))
        return hints_audit_views._examples(
            job, renderer, list(read_hints(job.hints)), position="system"
        )


def two_sessions(work: Path) -> tuple[Session, Session, HeldOutSettings]:
    """Written with sites and hints: one session to train on, one that is held out, and the settings
    by which it is."""
    settings = HeldOutSettings(fraction=0.5, by="session")
    named = [(f"sess-{n}", is_held_out(session(f"sess-{n}"), settings=settings)) for n in range(20)]
    trained_session, out = (
        next(name for name, held in named if held is wanted) for wanted in (False, True)
    )
    pair = session(trained_session, text="plainly kept"), session(out, text="zyxwvut " * 9)
    fill(work, pair)
    return *pair, settings


@pytest.mark.parametrize("by", ["session", "auto"])
def test_the_tiny_tokenizer_never_sees_a_held_out_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Literal["session", "auto"]
) -> None:
    """Nor by the unit that "auto" stands for: `hints --audit` makes the tokenizer, too."""
    settings = two_sessions(tmp_path)[2].model_copy(update={"by": by})
    recorded: list[str] = []
    monkeypatch.setattr(
        "composer_replication.cli.student_tokenizer.train_tiny_tokenizer",
        lambda texts: recorded.extend(texts),
    )
    make_tokenizer(Config(held_out=settings), tmp_path / "sessions.jsonl")
    assert any("plainly kept" in text for text in recorded) and not any(
        "zyxwvut" in text for text in recorded
    )


def test_the_audit_leaves_held_out_sites_out_and_runs_on_the_gpu_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_session, out, settings = two_sessions(tmp_path / "recompose")
    flags = ("hints", "--audit", "--json", "--held_out.by", settings.by, "--held_out.fraction")
    asked: list[tuple[set[str], Any]] = []

    def spying(
        model: Any, examples: list[TrainingExample], *, device: Any = "cpu", **kwargs: Any
    ) -> Any:
        asked.append(({e.session_id for e in examples}, device))
        return audit_hints(model, examples, device="cpu", **kwargs)

    moved: list[Any] = []

    def to(model: torch.nn.Module, device: Any) -> torch.nn.Module:
        moved.append(device)
        return model

    devices: list[Any] = []

    def positions(*args: Any, device: Any, **kwargs: Any) -> Any:
        devices.append(device)
        return measure_positions(*args, device="cpu", **kwargs)

    monkeypatch.setattr("composer_replication.evaluation.hint_lift.audit_hints", spying)
    monkeypatch.setattr(
        "composer_replication.evaluation.hint_positions.measure_positions", positions
    )
    assert recompose(*flags, str(settings.fraction), cwd=tmp_path).code == 0
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("transformers.PreTrainedModel.to", to)
    assert recompose(*flags, "0", cwd=tmp_path).code == 0
    assert (
        asked == [({trained_session.id}, "cpu"), ({trained_session.id, out.id}, "cuda")]
        and moved[-1] == "cuda"
        and devices == ["cpu", "cuda"]
    )


def test_two_ranks_share_one_run_directory_and_one_voice(work: Path, repository_root: Path) -> None:
    shared = {
        **os.environ,
        "PYTHONPATH": str(repository_root / "src"),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "composer_replication.cli", *TRAIN]
    ranks = [
        subprocess.Popen(
            command,
            cwd=work,
            env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0]
    assert "step=2" in outputs[0] and not outputs[1].strip()
    (run,) = (path for path in (work / "recompose" / "runs").iterdir() if path.name != "latest")
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert '"ranks":2' in (run / "events.jsonl").read_text()
