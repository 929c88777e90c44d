"""How often a waiting replica polls the store: within the bounds of a sync if another one is late
by up to a twentieth of the round, and by the logarithm of the lateness beyond."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("obstore")  # the optional part that the exchange needs

from benchmarks.diloco import requests_when_late
from composer_replication.training.diloco.polling import (
    POLL_CYCLE,
    PollSchedule,
    PollTarget,
    Timing,
)

pytestmark = pytest.mark.train


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("late", [0.0, 0.01, 0.02, 0.05])
def test_a_sync_costs_no_more_than_its_bound_if_one_is_late(replicas: int, late: float) -> None:
    found = requests_when_late(late, replicas=replicas)
    assert found["in_time"]
    assert (found["puts"], found["lists_most"]) <= (3, 3) and found["lists_most"] <= 3
    assert found["gets"] <= 2 * replicas + 2
    assert found["lost"] <= 0.75 * late + 0.0025 + 0.002  # the last poll came too early; 30 ms each


def test_requests_grow_with_the_logarithm_of_the_lateness() -> None:
    totals = [
        found["gets"] + found["lists_most"]
        for late in (0.1, 0.2, 0.4, 0.8)
        if (found := requests_when_late(late, replicas=3))
    ]
    assert max(b - a for a, b in pairwise(totals)) <= 2
    assert totals[-1] - totals[0] <= 5


def test_one_late_round_makes_nobody_wait_in_the_next() -> None:
    schedule, now = PollSchedule(timing=Timing(), round_began_s=0.0), 0.0
    firsts = []
    for waited in (0.0, 0.0, 50.0, 0.0, 40.0, 40.0, 40.0):
        now += 100.0
        firsts.append(schedule.begin_wait(now)[0])
        schedule.record_wait(waited, waited)
    assert firsts == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 30.0]


def test_pauses_end_at_grace() -> None:
    schedule = PollSchedule(timing=Timing(grace_s=5.0, max_poll_s=2.0), round_began_s=0.0)
    pause = schedule.begin_wait(100.0)[1]
    assert pause == 0.25
    for _ in range(20):
        pause = schedule.next_pause(pause)
    assert pause == 5.0


def test_a_get_finds_no_unexpected_offer_so_every_third_poll_is_a_list() -> None:
    assert POLL_CYCLE.count(PollTarget.ALL_KEYS) == 1
    assert POLL_CYCLE[0] is PollTarget.ALL_KEYS and len(POLL_CYCLE) == 3
