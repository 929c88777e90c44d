"""Trackers mirror the metrics, and a broken one costs no run. With the real libraries:
tests/backends_trackers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError, MissingExtraError
from composer_replication.core.rundir import RunDir
from composer_replication.training.loop import train
from composer_replication.training.run import trackers
from composer_replication.training.run.trackers import Mirror, check_trackers, numbers_of
from tests.training.small_student import make_config, make_example, make_run, make_student

EXAMPLES = [make_example(i, length=20, hints=1) for i in range(4)]


def trained(folder: Path) -> RunDir:
    """A run of three steps with `tensorboard`."""
    config = make_config(steps=3, trackers=["tensorboard"])
    run = make_run(folder, config)
    train(config, student=make_student(), examples=EXAMPLES, run=run)
    return run


def test_only_numbers_are_mirrored() -> None:
    metrics = {"step": 3, "attempt": 1, "clipped": True, "hint/status": "active", "loss": 0.5}
    odd = {"none": None, "nan": float("nan"), "infinite": float("inf"), "list": [1.0]}
    assert numbers_of(metrics | odd) == {"clipped": 1.0, "loss": 0.5}


def test_each_step_reaches_the_mirror_once_and_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[int, Mapping[str, float]]] = []
    closed: list[str] = []

    def opened(run: RunDir) -> Mirror:
        return Mirror(
            name="tensorboard",
            add=lambda step, numbers: rows.append((step, numbers)),
            close=lambda: closed.append(run.path.name),
            failures=(),
        )

    monkeypatch.setattr(trackers, "check_trackers", lambda names: None)
    monkeypatch.setitem(trackers.OPEN, "tensorboard", opened)  # type: ignore[arg-type]
    run = trained(tmp_path)
    assert rows == [(row["step"], numbers_of(row)) for row in run.metrics()]
    assert [step for step, _ in rows] == [1, 2, 3] and "hint/loss" in rows[0][1]
    assert closed == [run.path.name]


def test_a_tracker_that_cannot_write_is_an_event_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def full(step: int, numbers: Mapping[str, float]) -> None:
        tried.append(step)
        if step == 2:
            raise OSError("No space left on device")

    def close() -> None:
        raise OSError("No space left on device")

    def opened(run: RunDir) -> Mirror:
        return Mirror(name="tensorboard", add=full, close=close, failures=(OSError,))

    monkeypatch.setattr(trackers, "check_trackers", lambda names: None)
    monkeypatch.setitem(trackers.OPEN, "tensorboard", opened)  # type: ignore[arg-type]
    run = trained(tmp_path)
    assert run.info()["state"] == "done" and len(run.metrics()) == 3
    assert tried == [1, 2]
    assert [(e["tracker"], e["reason"]) for e in run.events() if e["kind"] == "tracker_lost"] == [
        ("tensorboard", "No space left on device")
    ]


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb") as raised:
        check_trackers(("wandb",))
    assert "composer-replication[wandb]" in str(raised.value.fix)


def test_a_variable_that_makes_trackio_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "need", lambda name, extra: None)
    check_trackers(("trackio",))
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    check_trackers(("tensorboard",))
    with pytest.raises(ConfigError, match="TRACKIO_SPACE_ID"):
        check_trackers(("trackio",))
