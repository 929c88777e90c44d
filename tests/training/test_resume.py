"""kill -9 and resume: the remaining steps are the same bit by bit; settings that do not fit the
checkpoint are refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.rundir import RunDir
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.loop import train
from composer_replication.training.run import token_probe
from composer_replication.training.run.checkpoint import load_tensors, read_state
from composer_replication.training.run.optimiser import make_optimiser
from tests.training.child import KILL_STEP, resume_run
from tests.training.small_student import make_config, make_example, make_run, make_student

EXAMPLES = [make_example(i, length=20 + 3 * i, hints=i % 2) for i in range(6)]


def same(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a step without those that depend on time and launch."""
    return {k: v for k, v in metrics.items() if k not in ("t", "step_s", "attempt")}


def test_a_killed_run_resumes_bit_by_bit(tmp_path: Path, repository_root: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        command = [sys.executable, "-m", "tests.training.child", str(tmp_path / "killed"), "kill"]
        ended = subprocess.run(command, cwd=repository_root, timeout=120, check=False)
        assert ended.returncode == -signal.SIGKILL
        killed = RunDir(tmp_path / "killed" / "runs" / "r")
        assert killed.info()["state"] == "running" and len(killed.metrics()) == KILL_STEP
        assert [step for step, _ in killed.checkpoints()] == [2, 4]
        # the folder that a kill during a checkpoint leaves
        (killed.checkpoints_dir / ".step_000006.part").mkdir()

        uninterrupted, student = resume_run(tmp_path / "whole")
        resumed, resumed_student = resume_run(tmp_path / "killed", resume=True)
    finally:
        torch.set_num_threads(threads)
    clipped = [metrics["clipped"] for metrics in uninterrupted.run.metrics()]
    # the mean that the clip compares with is part of the checkpoint
    assert any(clipped[5:]) and not all(clipped)
    assert [same(metrics) for metrics in killed.metrics()] == [
        same(metrics) for metrics in uninterrupted.run.metrics()
    ]
    assert all(
        torch.equal(a, b)
        for a, b in zip(student.model.parameters(), resumed_student.model.parameters(), strict=True)
    )
    assert (
        killed.info()["state"] == "done" and killed.info()["attempts"] == 2 and resumed.steps == 8
    )
    assert [(e["kind"], e["step"]) for e in killed.events() if e["kind"] == "resume"] == [
        ("resume", 4)
    ]
    attempts = [
        json.loads(text)["attempt"]
        for text in killed.metrics_jsonl.read_text(encoding="utf-8").splitlines()
    ]
    assert attempts == [1] * 5 + [2] * 4  # step 5 ran twice
    assert killed.tokens(8).read_bytes() == uninterrupted.run.tokens(8).read_bytes()
    assert not list(killed.checkpoints_dir.glob(".*")) and [s for s, _ in killed.checkpoints()] == [
        4,
        6,
        8,
    ]


def finished(folder: Path, **train_settings: Any) -> RunDir:
    config = make_config(**train_settings)
    run = make_run(folder, config)
    train(config, student=make_student(), examples=EXAMPLES, run=run)
    return run


def test_changed_settings_are_shown_and_refused_unless_accepted(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=2)
    longer = make_config(steps=3, learning_rate=5e-4)
    with pytest.raises(
        ConfigError, match=r"train.learning_rate: 0.001 -> 0.0005; train.steps: 2 -> 3"
    ):
        train(longer, student=make_student(), examples=EXAMPLES, run=run, resume=True)
    assert run.info()["state"] == "crashed"
    result = train(
        longer, student=make_student(), examples=EXAMPLES, run=run, resume=True, accept_changes=True
    )
    assert result.steps == 3 and [metrics["step"] for metrics in run.metrics()] == [1, 2, 3]
    assert run.resolved()["train"]["steps"] == 3
    (event,) = (e for e in run.events() if e["kind"] == "resume")
    assert event["changed"] == ["train.learning_rate: 0.001 -> 0.0005", "train.steps: 2 -> 3"]


def test_changed_settings_are_refused_before_the_first_checkpoint_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config(steps=2))
    changed = make_config(steps=2, learning_rate=5e-4)
    with pytest.raises(ConfigError, match=r"train.learning_rate: 0.001 -> 0.0005") as caught:
        train(changed, student=make_student(), examples=EXAMPLES, run=run, resume=True)
    assert "since the run was started" in caught.value.what
    assert "--accept-changes" in caught.value.fix and caught.value.where == str(run.path)
    assert not run.metrics() and run.resolved()["train"]["learning_rate"] == 1e-3
    train(
        changed,
        student=make_student(),
        examples=EXAMPLES,
        run=run,
        resume=True,
        accept_changes=True,
    )
    assert run.resolved()["train"]["learning_rate"] == 5e-4


def test_other_data_or_another_start_are_refused(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=2)
    with pytest.raises(DataError, match="examples or pairs are not those"):
        train(
            make_config(steps=2),
            student=make_student(),
            examples=EXAMPLES[:-1],
            run=run,
            resume=True,
        )
    with pytest.raises(DataError, match="start weights are not those"):
        train(
            make_config(steps=2),
            student=make_student(seed=1),
            examples=EXAMPLES,
            run=run,
            resume=True,
        )


def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=2)
    before = run.metrics()
    result = train(
        make_config(steps=2), student=make_student(), examples=EXAMPLES, run=run, resume=True
    )
    assert run.metrics() == before and result.steps == 2 and result.statuses["hint"] == "active"


def test_a_run_cut_off_in_its_last_token_probe_has_its_steps_and_only_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run has no other checkpoint, and the probe takes as long as its steps."""
    whole = finished(tmp_path / "whole", steps=2)
    token_table, config = token_probe.token_table, make_config(steps=2)
    run = make_run(tmp_path / "cut", config)

    def cut_off(*args: Any, **more: Any) -> Any:
        if run.metrics():
            raise KeyboardInterrupt
        return token_table(*args, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(token_probe, "token_table", cut_off)
        train(config, student=make_student(), examples=EXAMPLES, run=run)
    assert [step for step, _ in run.checkpoints()] == [2] and len(run.metrics()) == 2
    assert [step for step, _ in run.token_tables()] == [0]

    steps: list[Any] = []
    more = {"run": run, "resume": True, "on_step": steps.append}
    train(config, student=make_student(), examples=EXAMPLES, **more)
    assert not steps and run.info()["state"] == "done"
    assert run.tokens(2).read_bytes() == whole.tokens(2).read_bytes()


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    config = make_config(steps=2)
    run = make_run(tmp_path, config)
    run.add_metrics({"step": 1, "loss": 9.0})
    train(config, student=make_student(), examples=EXAMPLES, run=run, resume=True)
    assert [metrics["loss"] != 9.0 for metrics in run.metrics()] == [True, True]


class Drying:
    """A producer that runs out of hint views after the second step, as when a policy stops making a
    mistake."""

    def __init__(self, *, examples: list[TrainingExample], **_: Any) -> None:
        self.examples = examples

    def step(self, step: int) -> tuple[list[TrainingExample], list[Any]]:
        return [e for e in self.examples if step < 2 or not e.hints], []


def test_a_channel_that_was_exhausted_stays_so_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.training.inputs.Sampler", Drying)
    config = make_config(steps=6, checkpoint_every=1, starved_steps=1)
    run = make_run(tmp_path, config)

    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, student=make_student(), examples=EXAMPLES, run=run, on_step=interrupt)
    result = train(config, student=make_student(), examples=EXAMPLES, run=run, resume=True)
    assert [step_metrics["hint/status"] for step_metrics in run.metrics()] == ["active"] * 2 + [
        "exhausted"
    ] * 4
    assert result.statuses["hint"] == "exhausted" and not [
        e for e in run.events() if e["kind"] == "starved"
    ]


def test_running_means_and_bad_streaks_go_on_after_a_resume(tmp_path: Path) -> None:
    uninterrupted = finished(
        tmp_path / "whole", steps=4, starved_steps=9, learning_rate=1e-2, warmup_steps=0
    )
    config = make_config(steps=4, starved_steps=9, learning_rate=1e-2, warmup_steps=0)
    run = make_run(tmp_path / "cut", config)

    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, student=make_student(), examples=EXAMPLES, run=run, on_step=interrupt)
    train(config, student=make_student(), examples=EXAMPLES, run=run, resume=True)
    for ours, theirs in zip(run.metrics(), uninterrupted.metrics(), strict=True):
        assert ours["hint/scale"] == pytest.approx(theirs["hint/scale"], rel=1e-4)
    norms = [step_metrics["hint/grad_norm"] for step_metrics in uninterrupted.metrics()]
    weights = [0.9**k for k in range(3)]
    expected = sum(w * n for w, n in zip(weights, norms[2::-1], strict=True)) / sum(weights)
    assert uninterrupted.metrics()[3]["hint/scale"] == pytest.approx(1.0 / expected, rel=1e-6)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=7, checkpoint_every=1, keep_checkpoints=2)
    assert [step for step, _ in run.checkpoints()] == [6, 7]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=2)
    folder = run.checkpoint(2)
    student = make_student(family="llama")
    with pytest.raises(DataError, match="another model"):
        load_tensors(
            folder, student=student, optimiser=make_optimiser(student.model, make_config().train)
        )
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is missing"):
        train(make_config(steps=2), student=make_student(), examples=EXAMPLES, run=run, resume=True)
    (folder / "trainer.json").write_text('{"schema": 99}', encoding="utf-8")
    with pytest.raises(DataError, match="checkpoint schema 99"):
        read_state(folder)
    (folder / "trainer.json").unlink()
    with pytest.raises(DataError, match="no trainer state"):
        read_state(folder)
