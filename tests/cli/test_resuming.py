"""`train --resume`: latest, a checkpoint, a dry run, Ctrl-C, a second launch; each names the
command that continues, and it works."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from composer_replication.cli.train_text import Steps
from composer_replication.core.lock import OWNER, process_start
from composer_replication.core.rundir import RunDir
from composer_replication.report.run_view import run_view
from tests.cli.test_panel import job_on
from tests.cli.test_train_live import SETTINGS, tiny_student
from tests.cli.workspace import CliResult, files, recompose
from tests.training.test_resume import same

pytestmark = pytest.mark.train
STEPS = ("--train.steps", "3", "--train.checkpoint_every", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a run "first" of three steps, and a checkpoint after each of the last two,
    and the start."""
    folder = tmp_path_factory.mktemp("trained")
    student = tiny_student()
    student.model.save_pretrained(str(folder / "student"))
    student.tokenizer.save_pretrained(str(folder / "student"))
    (folder / "recompose.toml").write_text(SETTINGS, "utf-8")
    result = recompose("train", *STEPS, "--name", "first", cwd=folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def work(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "w", symlinks=True)
    # between its last checkpoint and its end: it can be resumed
    first(tmp_path / "w").update(state="stopped:interrupted")
    return tmp_path / "w"


def first(work: Path) -> RunDir:
    return RunDir(work / "recompose" / "runs" / "first")


def flat(result: CliResult) -> str:
    """The output of both streams, without box frames and line breaks."""
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", result.out + result.err))


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "wanted", ["latest", "first", "fir", "recompose/runs/latest", "recompose/runs/first"]
)
def test_a_run_is_resumed_by_any_of_its_names(work: Path, wanted: str) -> None:
    files_before = files(work)
    result = recompose("train", *STEPS, "--resume", wanted, "--dry-run", cwd=work)
    assert result.code == 0, result.err
    assert "from step_000003, 3 of 3 steps" in result.out and "no setting, no example" in result.out
    assert (
        "would write  " in result.out
        and "runs/first" in result.out
        and "<new run>" not in result.out
    )
    assert files(work) == files_before


def test_the_resume_command_leaves_out_flags_that_change_nothing(work: Path) -> None:
    same_as_file = ("--train.checkpoint_every", "1", "--seed", "7", "--train.grad-every", "7")
    (work / "recompose.toml").write_text(
        SETTINGS.replace("[train]", "[train]\ngrad_every = 7"), "utf-8"
    )
    more = ("--accept-changes", "--resume", "first", "--dry-run", "--json")
    value = recompose("train", "--train.steps", "4", *same_as_file, *more, cwd=work).value
    assert value["next"] == (
        "recompose train --resume recompose/runs/first --train.steps 4 --train.checkpoint_every 1"
        " --accept-changes"
    )
    again = recompose(*shlex.split(value["next"])[1:], "--dry-run", "--json", cwd=work).value
    assert again["resume"]["changed"] == value["resume"]["changed"]


def test_settings_that_do_not_change_the_mathematics_may_change(work: Path) -> None:
    """--train.checkpoint_every alone made `--resume` refuse."""
    other = ("--train.checkpoint_every", "2", "--train.keep_checkpoints", "9")
    call = ("train", "--train.steps", "3", *other, "--resume", "first", "--dry-run")
    resumed = recompose(*call, "--train.layout", "rows", "--json", cwd=work)
    assert resumed.code == 0 and resumed.value["resume"]["changed"] == []
    # of live rollouts it decides which hints are used
    fewer = recompose(*call, "--train.micro_tokens", "2048", cwd=work)
    assert fewer.code == 1 and "train.micro_tokens: 8192 -> 2048" in flat(fewer)


def test_a_dry_run_says_what_changed_and_refuses_as_the_real_one_would(work: Path) -> None:
    changed = ("--train.learning_rate", "0.5", "--resume", "latest", "--dry-run")
    result = recompose("train", *STEPS, *changed, cwd=work)
    assert (
        result.code == 1
        and re.search(r"train.learning_rate: [\d.e-]+ -> 0.5", flat(result))
        and "--accept-changes" in flat(result)
    )
    value = recompose("train", *STEPS, *changed, "--accept-changes", "--json", cwd=work).value
    assert value["resume"]["step"] == 3 and value["resume"]["checkpoint"].endswith("step_000003")
    assert [change.split(":")[0] for change in value["resume"]["changed"]] == [
        "train.learning_rate"
    ] and value["dry_run"] is True
    assert recompose(*shlex.split(value["next"])[1:], "--dry-run", cwd=work).code == 0


def test_the_seed_that_is_shown_is_the_one_that_was_set(work: Path) -> None:
    """A number derived from it was shown, which nothing had used."""
    run = first(work)
    assert run.info()["seed"] == run.resolved()["seed"] == run_view(run.path)["seed"] == 7
    more = ("--train.steps", "4", "--seed", "11", "--resume", "first", "--accept-changes")
    result = recompose("train", *STEPS[2:], *more, cwd=work)
    assert result.code == 0, result.err
    assert run_view(run.path)["seed"] == run.resolved()["seed"] == 11


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_changed_settings_are_refused_before_anything_is_loaded(
    work: Path, has_checkpoint: bool
) -> None:
    """It took minutes to hear of it, and without a checkpoint nothing was compared."""
    if not has_checkpoint:
        shutil.rmtree(first(work).checkpoints_dir)
    (work / "student" / "tokenizer.json").unlink()
    (work / "student" / "model.safetensors").unlink()
    changed = ("--train.learning_rate", "0.5", "--resume", "first")
    result = recompose("train", *STEPS, *changed, cwd=work)
    assert result.code == 1 and "loading" not in result.out
    since = "the checkpoint" if has_checkpoint else "the run was started"
    assert f"settings changed since {since}: train.learning_rate: " in flat(result)
    assert "-> 0.5" in flat(result) and "--accept-changes" in flat(result)
    assert first(work).info()["attempts"] == 1
    accepted = recompose("train", *STEPS, *changed, "--accept-changes", cwd=work)
    assert "settings changed" not in flat(accepted) and "tokenizer" in flat(accepted)


@pytest.mark.parametrize(
    ("steps", "state"), [("3", "done"), ("2", "stopped:interrupted"), ("2", "done")]
)
@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_run_with_no_step_left_says_so_and_claims_to_have_written_nothing(
    work: Path, steps: str, state: str, flags: tuple[str, ...]
) -> None:
    run = first(work)
    run.update(state=state)
    mtimes_before = {path: (work / path).stat().st_mtime_ns for path in files(work)}
    command_parts = (
        "--train.steps",
        steps,
        "--train.checkpoint_every",
        "1",
        "--resume",
        "first",
        "--accept-changes",
    )
    result = recompose("train", *command_parts, *flags, cwd=work)
    assert (
        result.code == 1
        and f"nothing is left to train: step_000003 has 3 steps, train.steps is {steps}"
        in flat(result)
    )
    assert "wrote" not in result.out and "train.steps above 3" in flat(result)
    assert {path: (work / path).stat().st_mtime_ns for path in files(work)} == mtimes_before
    more = recompose("train", *command_parts[2:], "--train.steps", "4", "--dry-run", cwd=work)
    assert more.code == 0, more.err


@pytest.mark.parametrize("verb", ["train", "export", "evaluate"])
def test_a_damaged_checkpoint_is_named_and_the_command_for_the_one_before_works(
    work: Path, verb: str
) -> None:
    flip(first(work).checkpoint(3) / "model.safetensors")
    flags = [*STEPS, "--resume", "latest"] if verb == "train" else []
    result = recompose(verb, *flags, "--dry-run", cwd=work)
    assert (
        result.code == 1
        and "model.safetensors is not what was written" in flat(result)
        and "step 3 is damaged" in flat(result)
    )
    assert f"to go on from there: recompose {verb} " in flat(result)
    # the last one: a command that wraps in the box is repeated below it, unwrapped
    offered = re.search(rf".*recompose ({verb} .*step_000002.*?) *$", flat(result))
    assert offered is not None
    assert recompose(*shlex.split(offered[1]), "--dry-run", cwd=work).code == 0
    if verb == "train":
        before = [same(metrics) for metrics in first(work).metrics()]
        assert recompose(*shlex.split(offered[1]), cwd=work).code == 0
        assert [same(metrics) for metrics in first(work).metrics()] == before
        assert (
            sorted(p.name for p in first(work).checkpoints_dir.iterdir())[0]
            == "rejected_step_000003"
        )


def test_a_second_launch_is_told_who_is_at_work_before_anything_is_loaded(work: Path) -> None:
    run, own_pid = first(work), os.getppid()
    owner = {
        "pid": own_pid,
        "began": process_start(own_pid),
        "host": os.uname().nodename,
        "since": "2026-11-20T14:02:11+00:00",
    }
    (run.path / OWNER).write_text(json.dumps(owner), "utf-8")
    for flags in ((), ("--dry-run",)):
        result = recompose("train", *STEPS, "--resume", "latest", *flags, cwd=work)
        assert (
            result.code == 1
            and f"process {own_pid} on {owner['host']}, since 2026-11-20" in flat(result)
            and "loading" not in result.out
        )


def launched(work: Path, *message: str) -> subprocess.Popen[str]:
    started = "from composer_replication.cli.main import main; print('started', flush=True); main()"
    command = [sys.executable, "-c", started, "train", "--trust-settings", *message]
    handler = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731 - ignored where the tests run in the background
    process = subprocess.Popen(
        command,
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handler,
    )
    # before that, Python's own start is interrupted
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    return process


@pytest.mark.timeout(240)
def test_ctrl_c_names_the_checkpoint_and_a_command_that_goes_on(work: Path) -> None:
    many = (
        "--train.steps",
        "500",
        "--train.checkpoint_every",
        "1",
        "--train.health.monitor_tasks",
        "0",
        "--train.starved_steps",
        "1000",
    )
    process = launched(work, *many, "--name", "a b")
    run = RunDir(work / "recompose" / "runs" / "a b")
    deadline = time.monotonic() + 120
    while len(run.checkpoints()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    result = CliResult(0, *process.communicate(timeout=60))
    assert process.returncode == 130 and "Traceback" not in result.err
    steps, newest = run.metrics()[-1]["step"], run.checkpoints()[-1][1].name
    assert (
        f"interrupted after step {steps}; the newest checkpoint is recompose/runs/a"
        f" b/checkpoints/{newest}" in flat(result)
    )
    # the last one: a command that wraps in the box is repeated below it, unwrapped
    again = shlex.split(flat(result)[flat(result).rindex("recompose train") :])[1:]
    assert again[-2:] == ["--train.starved_steps", "1000"] and again[2:4] == [
        "--resume",
        "recompose/runs/a b",
    ]
    assert run.info()["state"] == "stopped:interrupted"
    dry = recompose(*again, "--dry-run", cwd=work)
    assert dry.code == 0 and f"from {newest}" in dry.out and "no setting, no example" in dry.out


@pytest.mark.timeout(240)
def test_ctrl_c_while_the_program_starts_ends_it_without_a_traceback(work: Path) -> None:
    """Imports of libraries turn it into other errors now and then, so several moments are tried."""
    for wait in (0.02, 0.1, 0.3, 0.7, 1.5, 2.5):
        process = launched(work, "--train.steps", "100")
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "interrupted" in err, err
        assert "Traceback" not in err and "bug" not in err


def test_an_import_that_turns_a_ctrl_c_into_another_error_is_still_an_interrupt(
    work: Path, repository_root: Path
) -> None:
    """As dataclasses' __set_name__ does on Python 3.11: RuntimeError from KeyboardInterrupt."""
    code = (
        "import os, signal, sys\n"
        "from composer_replication.cli import main as program\n"
        "def torn(argv):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt as error:\n"
        "        raise RuntimeError('Error calling __set_name__') from error\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "program._check_verb = torn\n"
        "if sys.argv[1] == 'early':\n"
        "    program.run = lambda argv, interrupted: torn(argv)\n"
        "program.main()\n"
    )
    for place in ("early", "late"):
        ended = subprocess.run(
            [sys.executable, "-c", code, place],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 130 and "interrupted" in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr and "bug" not in ended.stderr


def test_a_ctrl_c_that_python_ignores_is_an_interrupt_all_the_same(work: Path) -> None:
    """An exception in the callback of a weak reference is ignored; an import's lock has one."""
    code = (
        "import os, signal, time, weakref\n"
        "from composer_replication.cli import main as program\n"
        "class Lock:\n"
        "    pass\n"
        "def callback(_):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "def checked(argv):\n"
        "    lock = Lock()\n"
        "    reference = weakref.ref(lock, callback)\n"
        "    del lock\n"
        "    time.sleep(20)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "program._check_verb = checked\n"
        "program.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 130 and "interrupted" in ended.stderr, ended.stderr
    assert "ignored" not in ended.stderr


def test_a_step_that_takes_long_says_what_it_is_at(tmp_path: Path) -> None:
    out = io.StringIO()
    with Steps(job_on(Console(file=out, width=120), tmp_path), every_s=0.05) as steps:
        steps.progress(lambda: "part 3 of 12, backward, eta 30s")
        time.sleep(0.3)
        steps({"step": 1})
        steps.progress(lambda: "rollouts played: 3 of 4, eta 9s")
        time.sleep(0.3)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(" ...      step 1 of 4: part 3 of 12, backward, eta 30s (")
    assert any(
        line.startswith(" ...      step 2 of 4: rollouts played: 3 of 4, eta 9s (")
        for line in lines
    )
    quiet = io.StringIO()
    with Steps(job_on(Console(file=quiet, width=120), tmp_path, json=True), every_s=0.02):
        time.sleep(0.2)
    assert quiet.getvalue() == ""


def test_a_run_tells_what_its_first_step_is_at(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    phases: list[Callable[[], str]] = []

    def hear(self: Steps, doing: Callable[[], str]) -> None:
        heard.append(doing())
        phases.append(doing)

    monkeypatch.setattr(Steps, "progress", hear)
    monitored = ("--train.health.monitor_tasks", "2", "--train.health.max_kl", "9")
    assert recompose("train", "--train.steps", "1", *monitored, cwd=work).code == 0
    assert heard[0] == "rollouts played: 0 of 4, eta measuring"
    counted = {
        text: phase()
        for text, phase in zip(heard, phases, strict=True)
        if ": 0 of " in text and "eta measuring" in text
    }
    drift, monitor = "KL and entropy of the rollouts, parts: ", "monitor tasks played: "
    assert [text for text in counted if text.startswith(drift)]
    assert counted[f"{monitor}0 of 2, eta measuring"] == f"{monitor}2 of 2, eta 0s"
    for end in counted.values():
        done, total = end.partition(": ")[2].partition(",")[0].split(" of ")
        assert done == total and end.endswith("eta 0s")
