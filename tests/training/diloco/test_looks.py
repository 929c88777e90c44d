"""How often a waiting replica looks at the store: within the bounds of a sync for those who are
late by up to a twentieth of the round, and by the logarithm of the lateness beyond."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("obstore")  # the optional part that the exchange needs

from benchmarks.diloco import requests_when_late
from composer_replication.training.diloco.looks import TURNS, Look, Looks, Timing

pytestmark = pytest.mark.train


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("late", [0.0, 0.01, 0.02, 0.05])
def test_a_sync_costs_no_more_than_its_bound_if_one_is_late(replicas: int, late: float) -> None:
    found = requests_when_late(late, replicas=replicas)
    assert found["in_time"]
    assert (found["puts"], found["lists_most"]) <= (3, 3) and found["lists_most"] <= 3
    assert found["gets"] <= 2 * replicas + 2
    assert found["lost"] <= 0.75 * late + 0.0025 + 0.002  # the last look came too early; 30 ms each


def test_requests_grow_with_the_logarithm_of_the_lateness() -> None:
    totals = [
        found["gets"] + found["lists_most"]
        for late in (0.1, 0.2, 0.4, 0.8)
        if (found := requests_when_late(late, replicas=3))
    ]
    assert max(b - a for a, b in pairwise(totals)) <= 2
    assert totals[-1] - totals[0] <= 5


def test_one_late_round_makes_nobody_wait_in_the_next() -> None:
    looks, now = Looks(timing=Timing(), since=0.0), 0.0
    firsts = []
    for waited in (0.0, 0.0, 50.0, 0.0, 40.0, 40.0, 40.0):
        now += 100.0
        firsts.append(looks.begin(now)[0])
        looks.learn(waited, waited)
    assert firsts == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 30.0]


def test_pauses_end_at_grace() -> None:
    looks = Looks(timing=Timing(grace_s=5.0, max_poll_s=2.0), since=0.0)
    pause = looks.begin(100.0)[1]
    assert pause == 0.25
    for _ in range(20):
        pause = looks.longer(pause)
    assert pause == 5.0


def test_a_look_by_name_sees_no_stranger_so_every_third_is_a_list() -> None:
    assert TURNS.count(Look.ALL) == 1 and TURNS[0] is Look.ALL and len(TURNS) == 3
