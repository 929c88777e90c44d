"""Rollouts that are sampled while the step before trains: equal to the synchronous loop wherever no
update lies between, one step old elsewhere, bounded in drift, and the same after a kill."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import StoppedError
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.training import loop as loop_module
from composer_replication.training.loop import train
from composer_replication.training.on_policy import live as live_module
from composer_replication.training.on_policy.live import RolloutSource
from composer_replication.training.on_policy.overlap import WeightsCopy
from tests.training.serving import Engine
from tests.training.small_student import make_run
from tests.training.taught import PAIRS, live, live_config, taught_student
from tests.training.test_generator import handovers, run_training
from tests.training.test_resume import same

NO_STEP = 1e-30
"""A learning rate at which no float32 weight moves."""


@cache
def start() -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in taught_student().model.named_parameters()}


def run_with(
    folder: Path, *, overlap: int, run: RunDir | None = None, on_step: Any = None, **settings: Any
) -> tuple[RunDir, Student]:
    """Four steps of the taught student on all channels, with the rollouts' own weights' age."""
    train_settings = {"steps": 4, "checkpoint_every": 4, "grad_every": 9, **settings}
    config = live_config(train=train_settings, overlap=overlap)
    student = taught_student(weights=start())
    resume, run = run is not None, run or make_run(folder, config)
    train(
        config,
        student=student,
        run=run,
        live=live(config),
        pairs=PAIRS,
        resume=resume,
        on_step=on_step,
    )
    return run, student


def moved(student: Student, reference: dict[str, torch.Tensor]) -> float:
    """The distance of the weights from others."""
    squares = [
        (p.detach() - reference[n]).square().sum() for n, p in student.model.named_parameters()
    ]
    return float(torch.stack(squares).sum().sqrt())


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in student.model.named_parameters()}


def column(run: RunDir, name: str) -> list[float]:
    return [metrics[name] for metrics in run.metrics()]


def no_thread_is_left() -> bool:
    return not any(t.name.startswith("rollouts-") for t in threading.enumerate())


# ---- equal where no update lies between ----


def test_a_run_whose_every_step_is_saved_is_the_synchronous_run_bit_for_bit(tmp_path: Path) -> None:
    """Nothing is sampled across a checkpoint, so nothing is sampled ahead: what is left is the
    thread and the copy of the weights."""
    ahead, student = run_with(tmp_path / "ahead", overlap=1, checkpoint_every=1, steps=3)
    before, expected = run_with(tmp_path / "before", overlap=0, checkpoint_every=1, steps=3)
    assert [same(m) for m in ahead.metrics()] == [same(m) for m in before.metrics()]
    assert moved(student, weights(expected)) == 0.0 < moved(student, start())
    assert column(ahead, "rollouts/age") == [0, 0, 0]


def test_without_an_update_rollouts_ahead_are_those_of_the_synchronous_run(tmp_path: Path) -> None:
    """Same tasks, same seeds, same ids and log-probs: training beside them changes nothing."""
    ahead, _ = run_with(tmp_path / "ahead", overlap=1, learning_rate=NO_STEP)
    before, _ = run_with(tmp_path / "before", overlap=0, learning_rate=NO_STEP)
    assert column(ahead, "rollouts/age") == [0, 1, 1, 1]
    assert column(before, "rollouts/age") == [0, 0, 0, 0]
    apart = ("rollouts/age",)
    for got, expected in zip(ahead.metrics(), before.metrics(), strict=True):
        assert {k: v for k, v in same(got).items() if k not in apart} == {
            k: v for k, v in same(expected).items() if k not in apart
        }


# ---- one step old, and corrected ----


def test_the_next_rollouts_are_sampled_during_the_step_with_the_weights_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled_with: list[tuple[int, int, dict[str, torch.Tensor]]] = []
    trains = {step: threading.Event() for step in range(4)}
    before_step: list[dict[str, torch.Tensor]] = []
    original, original_step = RolloutSource.sample, loop_module.train_step

    def sample(self: Any, model: Any, *, step: int, version: int) -> Any:
        if version != step:
            assert trains[step - 1].wait(60), "the step does not run beside its sampling"
        held = {n: p.detach().clone() for n, p in model.named_parameters()}
        sampled_with.append((step, version, held))
        return original(self, model, step=step, version=version)

    def step_of(trainer: Any, inputs: Any, *, step: int, **options: Any) -> Any:
        before_step.append(weights(trainer.models.student))
        trains[step].set()
        return original_step(trainer, inputs, step=step, **options)

    monkeypatch.setattr(RolloutSource, "sample", sample)
    monkeypatch.setattr(loop_module, "train_step", step_of)
    run, _ = run_with(tmp_path, overlap=1)
    assert [(step, version) for step, version, _ in sampled_with] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
    ]
    for _, version, held in sampled_with:
        assert all(torch.equal(held[n], p) for n, p in before_step[version].items())
    assert not torch.equal(*(w["model.norm.weight"] for w in before_step[:2]))
    assert run.info()["state"] == "done" and no_thread_is_left()


def test_the_drift_of_one_step_is_measured_and_bounded(tmp_path: Path) -> None:
    """The policy's distance from what sampled its tokens is zero for rollouts of its own weights,
    small for those one step old; the weights end near those of the synchronous run."""
    ahead, student = run_with(tmp_path / "ahead", overlap=1, learning_rate=5e-4)
    before, expected = run_with(tmp_path / "before", overlap=0, learning_rate=5e-4)
    kl = column(ahead, "policy/sampler_kl")
    assert kl[0] < 1e-6 and max(column(before, "policy/sampler_kl")) < 1e-6
    assert all(1e-6 < value < 0.02 for value in kl[1:])
    assert max(column(ahead, "policy/clipped")) < 0.1
    assert column(ahead, "rollouts/stale") == [0, 0, 0, 0]
    apart = moved(student, weights(expected))
    assert 0 < apart < 0.8 * moved(expected, start())


# ---- kill, resume, end ----


def test_a_resumed_run_with_overlap_repeats_the_killed_one(tmp_path: Path) -> None:
    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 4:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"steps": 5, "checkpoint_every": 3}
    whole, expected = run_with(tmp_path / "whole", overlap=1, **settings)
    with pytest.raises(KeyboardInterrupt):
        run_with(tmp_path / "killed", overlap=1, on_step=interrupt, **settings)
    assert no_thread_is_left()
    killed = RunDir(next((tmp_path / "killed" / "runs").glob("20*")))
    resumed, student = run_with(tmp_path / "killed", overlap=1, run=killed, **settings)
    assert column(whole, "rollouts/age") == [0, 1, 1, 0, 1]
    assert [same(m) for m in resumed.metrics()] == [same(m) for m in whole.metrics()]
    assert moved(student, weights(expected)) == 0.0


def test_an_error_of_the_thread_ends_the_run_at_the_step_that_needs_its_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = live_module.sample_rollouts

    def sample(model: Any, envs: Any, *, label: str, **options: Any) -> Any:
        if label.startswith("step-2:"):
            raise StoppedError("planted", where="rollouts")
        return original(model, envs, label=label, **options)

    monkeypatch.setattr(live_module, "sample_rollouts", sample)
    with pytest.raises(StoppedError, match="planted"):
        run_with(tmp_path, overlap=1)
    run = RunDir(next((tmp_path / "runs").glob("20*")))
    assert [metrics["step"] for metrics in run.metrics()] == [1, 2] and no_thread_is_left()


def test_a_server_writes_ahead_with_the_weights_it_was_handed(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "served")
    run, _ = run_training(
        tmp_path,
        engine,
        student=taught_student(weights=start()),
        train_settings={"steps": 3, "checkpoint_every": 3},
        overlap=1,
    )
    assert [event["version"] for event in handovers(run)] == [0, 1]
    assert engine.loads == 2
    assert column(run, "rollouts/age") == [0, 1, 1]


# ---- parts ----


def test_the_copy_is_the_student_as_it_was() -> None:
    student = taught_student(weights=start())
    copy = WeightsCopy(student)
    with torch.no_grad():
        student.model.model.norm.weight.add_(1.0)
    assert torch.equal(copy.model.model.norm.weight, start()["model.norm.weight"])
    copy.refresh()
    assert torch.equal(copy.model.model.norm.weight, student.model.model.norm.weight)
    assert not any(p.requires_grad for p in copy.model.parameters())


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("about live rollouts", {"overlap": 1}),
        ("max_staleness = 0 would leave them out", {"overlap": 1, "max_staleness": 0}),
        ("less than or equal to 1", {"overlap": 2}),
        (
            "and overlap = 1 rollouts are up to 2 steps old",
            {
                "overlap": 1,
                "refresh_every": 2,
                "generator": "served",
                "server": {"url": "http://a/v1", "model": "m", "weights_dir": "w"},
            },
        ),
    ],
)
def test_what_no_rollout_could_be_trained_on_is_refused(
    message: str, settings: dict[str, Any]
) -> None:
    env = {} if message == "about live rollouts" else {"env": "workshop"}
    with pytest.raises(ValidationError, match=message):
        RolloutSettings.model_validate({**env, **settings})
