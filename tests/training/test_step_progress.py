"""The words for work whose parts are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from composer_replication.core.config.root import Config
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.training.loop import roll_out
from composer_replication.training.run.step_progress import CountedPhase


def test_a_counted_phase_tells_its_count_and_the_time_left() -> None:
    now, ended = 100.0, 0
    phase = CountedPhase("tasks", total=4, ended=lambda: ended, clock=lambda: now)
    now = 103.0
    assert phase() == "tasks: 0 of 4, eta measuring"
    now, ended = 110.0, 1
    assert phase() == "tasks: 1 of 4, eta 30s"
    now = 114.0
    assert phase() == "tasks: 1 of 4, eta 26s"
    now, ended = 120.0, 4
    assert phase() == "tasks: 4 of 4, eta 0s"


class _Played(Exception):
    """Nothing after the rollouts is tested here."""


def test_the_rollouts_of_a_step_are_counted_while_others_are_played() -> None:
    """The line said "0 tokens written" until the last of them had ended."""
    stats, said = SamplingStats(), list[Any]()
    stats.num_ended = 32  # of the steps before

    def take(step: int) -> None:
        (phase,) = said
        said.append(phase())
        stats.num_ended += 3
        said.append(phase())
        raise _Played

    setup: Any = SimpleNamespace(
        config=Config.model_validate({"rollouts": {"groups": 4, "group_size": 4}}),
        rollback=SimpleNamespace(live=SimpleNamespace(stats=stats)),
        rollouts=SimpleNamespace(take=take),
        run_logger=SimpleNamespace(progress=said.append),
    )
    with pytest.raises(_Played):
        roll_out(setup, step=2)
    assert said[1] == "rollouts played: 0 of 16, eta measuring"
    assert said[2].startswith("rollouts played: 3 of 16, eta ")
