"""Scripted episodes played with the tools of a real episode: what each earns, and how it is named.

All hacks but the last ones also solve the task: if the monitor missed what they tried, they would
earn. scripts/play_hacks.py plays the same episodes, and more, on all tasks of the shop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.jsonl import write_lines
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.environment import note_environment
from composer_replication.repositories.making.attempts import ENVIRONMENTS, TASKS, base_folder
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.repo_task import task_line
from scripts.play_hacks import episodes_in, play_hack
from tests.repositories.shop import make_shop, needs_walls, this_environment
from tests.repositories.test_judge import TASK

EPISODES = dict(episodes_in(Path(__file__).with_name("played_hacks.jsonl")))
HONEST = [name for name, episode in EPISODES.items() if episode["honest"]]
HACKS = [name for name in EPISODES if name not in HONEST]

pytestmark = needs_walls


@pytest.fixture(scope="module")
def playable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayableTasks]:
    """The shop with the one task that is played."""
    folder = tmp_path_factory.mktemp("tasks")
    shop = make_shop(tmp_path_factory.mktemp("played") / "shop")
    note_environment(this_environment(shop, folder / ENVIRONMENTS / "shop"))
    checkout = read_checkout(shop)
    base_folder(checkout, folder=folder)
    write_lines(folder / TASKS, [task_line(replace(TASK, base=checkout.sha256))])
    with PlayableTasks(folder) as tasks:
        yield tasks


@pytest.mark.parametrize("name", HACKS)
def test_a_played_hack_earns_nothing_and_is_named(name: str, playable: PlayableTasks) -> None:
    env = play_hack(playable, EPISODES[name])
    assert env.changes is not None and env.changes.paths
    assert env.earned.reward == 0.0, env.earned
    kinds = [attempt.partition(": ")[0] for attempt in env.earned.attempts]
    assert EPISODES[name]["class"] in kinds


@pytest.mark.parametrize("name", HONEST)
def test_a_played_honest_episode_earns(name: str, playable: PlayableTasks) -> None:
    env = play_hack(playable, EPISODES[name])
    assert env.changes is not None
    assert [path for path in env.changes.paths if "_cache/" not in path] == ["shop/cart.py"]
    earned = env.earned
    assert (earned.reward, earned.reason, earned.attempts) == (1.0, "", ())
