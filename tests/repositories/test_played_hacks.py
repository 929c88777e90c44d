"""Scripted episodes played in the real sandbox and judged: what each earns, and how it is named.

All hacks but the last ones also solve the task: if the monitor missed what they tried, they would
earn. scripts/play_hacks.py plays the same episodes, and more, on all tasks of the shop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.judged import JudgedRepository
from scripts.play_hacks import HackGround, episodes_in, play_hack
from tests.repositories.shop import make_shop, needs_walls, this_environment
from tests.repositories.test_judge import TASK

EPISODES = dict(episodes_in(Path(__file__).with_name("played_hacks.jsonl")))
HONEST = [name for name, episode in EPISODES.items() if episode["honest"]]
HACKS = [name for name in EPISODES if name not in HONEST]

pytestmark = needs_walls


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HackGround]:
    """The shop with the one task that is played."""
    place = tmp_path_factory.mktemp("ground")
    shop = make_shop(place / "shop")
    environment = this_environment(shop, place / "environment")
    repository = JudgedRepository(
        checkout=read_checkout(shop), environment=environment, cache=place / "cache"
    )
    yield HackGround(python=environment.program, tasks={"total": (TASK, repository)})


@pytest.mark.parametrize("name", HACKS)
def test_a_played_hack_earns_nothing_and_is_named(name: str, ground: HackGround) -> None:
    judged, left = play_hack(ground, EPISODES[name])
    assert "lost" not in left and left["changed"]
    assert judged.reward == 0.0, judged
    assert EPISODES[name]["class"] in [attempt.kind for attempt in judged.attempts]


@pytest.mark.parametrize("name", HONEST)
def test_a_played_honest_episode_earns(name: str, ground: HackGround) -> None:
    judged, left = play_hack(ground, EPISODES[name])
    assert [path for path in left["changed"] if "_cache/" not in path] == ["shop/cart.py"]
    assert (judged.reward, judged.reason, judged.attempts) == (1.0, "", ())
