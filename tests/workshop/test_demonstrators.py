"""The scripted players: one that never fails, one that fails in three ways, and three teachers who
agree on one of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Session, Turn
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.workshop.demonstrators import (
    DISSENTER,
    FAMILIES,
    LEVELS,
    Habits,
    careless,
    oracle,
    teacher_answers,
    teacher_turn,
)
from composer_replication.workshop.episodes import play
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_tasks
from composer_replication.workshop.vocabulary import Split
from composer_replication.workshop.workshop_env import BY_CONSTRUCTION, WorkshopEnv

NONE = Habits(reader=0, style=0, detour=0, skip_test=0, repeat=0)


def player(
    habits: Habits, *, seed: int = 0, avoid: tuple[str, ...] = ()
) -> Callable[[WorkshopEnv], Turn]:
    rng = random.Random(seed)
    return lambda env: careless(env, rng, habits=habits, avoid=avoid)


def played(
    tasks: list[Task], sandbox: Sandbox, act: Callable[[WorkshopEnv], Turn]
) -> list[tuple[WorkshopEnv, Session]]:
    envs = [WorkshopEnv(task, sandbox=sandbox) for task in tasks]
    return [(env, play(env, act)) for env in envs]


def success(episodes: list[tuple[WorkshopEnv, Session]]) -> float:
    return sum(session.outcome or 0.0 for _, session in episodes) / len(episodes)


@pytest.mark.parametrize("split", ["train", "heldout", "words"])
def test_the_oracle_always_succeeds_on_the_budget_and_without_an_error(
    sandbox: Sandbox, split: Split
) -> None:
    for env, session in played(make_tasks(300, seed=21, split=split), sandbox, oracle):
        assert session.outcome == 1.0 and env.spent == env.task.budget and not env.tally.errors
        assert not find_sites(session, settings=SitesSettings())


@pytest.mark.parametrize(("level", "low", "high"), [(1, 0.08, 0.20), (2, 0.13, 0.28)])
def test_the_careless_player_neither_fails_nor_succeeds_always(
    sandbox: Sandbox, level: int, low: float, high: float
) -> None:
    tasks = make_tasks(400, seed=22, split="heldout")
    assert low < success(played(tasks, sandbox, player(LEVELS[level].habits))) < high
    assert success(played(tasks[:100], sandbox, player(NONE))) == 1.0


def test_the_same_seed_plays_the_same_episodes(sandbox: Sandbox) -> None:
    tasks = make_tasks(40, seed=23)
    first, again, other_seed = (
        [s for _, s in played(tasks, sandbox, player(LEVELS[2].habits, seed=seed))]
        for seed in (1, 1, 2)
    )
    assert first == again and first != other_seed


@pytest.mark.parametrize(
    ("habits", "concerned"),
    [
        (Habits(reader=1, style=1, repeat=0, detour=0, skip_test=0), lambda task: task.tools.trap),
        (
            Habits(reader=0, style=0, repeat=0, detour=1, skip_test=0),
            lambda task: task.kind in ("set", "both"),
        ),
        (Habits(reader=0, style=0, repeat=0, detour=0, skip_test=1), lambda task: True),
    ],
    ids=["A: wrong names", "B: detour", "C: untested"],
)
def test_each_family_costs_the_reward_where_it_occurs_and_nothing_elsewhere(
    sandbox: Sandbox, habits: Habits, concerned: Callable[[Task], bool]
) -> None:
    episodes = played(make_tasks(150, seed=24), sandbox, player(habits))
    assert {bool(concerned(env.task)) for env, _ in episodes} >= {True}
    for env, session in episodes:
        assert session.outcome == (0.0 if concerned(env.task) else 1.0)


def test_each_family_is_visible_where_it_should_be(sandbox: Sandbox) -> None:
    """A is an error that our detectors name; B and C leave no site at all."""
    tasks = make_tasks(150, seed=25)
    for env, session in played(tasks, sandbox, player(Habits(repeat=0, detour=0, skip_test=0))):
        kinds = Counter(site.kind for site in find_sites(session, settings=SitesSettings()))
        assert (
            set(kinds) <= {"unknown_tool", "bad_arguments"}
            and kinds.total() == env.tally.named_errors
        )
        assert bool(kinds) == env.task.tools.trap
    silent = played(
        tasks, sandbox, player(Habits(reader=0, style=0, repeat=0, detour=1, skip_test=1))
    )
    assert all(not find_sites(session, settings=SitesSettings()) for _, session in silent)
    assert all(env.tally.detours == (env.task.kind in ("set", "both")) for env, _ in silent)
    assert any(env.tally.untested for env, _ in silent)


def test_a_player_who_was_hinted_does_not_make_that_mistake(sandbox: Sandbox) -> None:
    tasks = make_tasks(100, seed=26)
    episodes = played(tasks, sandbox, player(LEVELS[1].habits, avoid=("unknown_tool",)))
    assert all(env.tally.errors["unknown_tool"] == 0 for env, _ in episodes)
    assert any(env.tally.errors["bad_arguments"] for env, _ in episodes)


def same(left: Turn, right: Turn) -> bool:
    return [(c.name, json.dumps(dict(c.arguments))) for c in left.calls] == [
        (c.name, json.dumps(dict(c.arguments))) for c in right.calls
    ]


def test_teachers_agree_against_the_detour_share_the_wrong_names_and_disagree_at_the_end(
    sandbox: Sandbox,
) -> None:
    """So a preference cures B, cannot cure A, and has no effect on C."""
    unanimous: Counter[bool] = Counter()
    for task in make_tasks(200, seed=27):
        env = WorkshopEnv(task, sandbox=sandbox, slack=3)
        env.open()
        while not env.done:
            turns = {family: teacher_turn(env, family=family) for family in FAMILIES}
            birch, cedar, maple = (turns[f] for f in FAMILIES)
            right = oracle(env)
            name = right.calls[0].name if right.calls else ""
            if name == "run_tests" and env.edited:
                assert not same(birch, cedar) and not same(cedar, maple) and not same(birch, maple)
            elif name == task.tools.searcher:
                assert same(birch, cedar) and same(birch, right)
                unanimous[same(birch, maple)] += 1
            elif name == task.tools.reader != "read_file" and not env.tally.errors["unknown_tool"]:
                assert {t.calls[0].name for t in turns.values()} == {"read_file"}
            env.reply(birch)
    assert DISSENTER == "maple"
    assert 0.65 < unanimous[True] / unanimous.total() < 0.95


def test_answers_carry_who_gave_them(sandbox: Sandbox) -> None:
    env = WorkshopEnv(make_tasks(1, seed=1)[0], sandbox=sandbox)
    env.open()
    answers = teacher_answers(env, site_id="s:1:c")
    assert [(a.family, a.teacher, a.turn.author, a.usd) for a in answers] == [
        (f, f"scripted-{f}", f"scripted-{f}", 0.0) for f in FAMILIES
    ]
    with pytest.raises(ConfigError, match="birch, cedar, maple"):
        teacher_turn(env, family="oak")


def test_the_first_level_says_what_it_is() -> None:
    assert LEVELS[1].text == BY_CONSTRUCTION and BY_CONSTRUCTION.startswith("By construction")
    assert LEVELS[2].text != BY_CONSTRUCTION
