"""The words for work whose parts are counted."""

from __future__ import annotations

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
