"""Groups: advantages without a standard deviation; a group with equal rewards is counted and
replaced, never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Segment, Session, SourceRef, Text, Turn
from composer_replication.rollouts.envs.env import Env
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import Groups, MakeEnv, advantages, sample_groups
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from tests.rollouts.small_world import Shelf, Talk, tiny
from tests.tokens.students import renderer

REWARDS = {
    "flat-0": [0.0, 0.0, 0.0],
    "flat-1": [1.0, 1.0, 1.0],
    "mixed": [1.0, 0.0, 0.5],
    "rare": [0.0, 0.0, 1.0],
}


def pretend(envs: Sequence[Env], /, *, label: str) -> list[Rollout]:
    """Rollouts with the rewards listed above, without a model."""
    built = []
    for number, env in enumerate(envs):
        turns = (Turn(role="user", author="human", blocks=(Text("x"),)),)
        session = Session(
            id=f"{label}{number}",
            source=SourceRef(file=""),
            turns=turns,
            segments=(Segment(start=0, end=1),),
            outcome=REWARDS[env.task_id][number % 3],
        )
        built.append(
            Rollout(
                session=session,
                task_id=env.task_id,
                ids=(),
                ended="done",
                num_cut=0,
                num_malformed=0,
                measures={},
            )
        )
    return built


def tasks(*names: str) -> list[MakeEnv]:
    return [partial(Shelf, name) for name in names]


def groups(*names: str, num_groups: int = 2, max_extra: int = 0) -> Groups:
    return sample_groups(
        tasks(*names), num_groups=num_groups, size=3, sample=pretend, max_extra=max_extra
    )


def test_advantages_are_reward_minus_mean_and_nothing_else() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0]) == (0.75, -0.25, -0.25, -0.25)
    assert advantages([1.0, 0.0, 0.5]) == (0.5, -0.5, 0.0)
    # the spread stays in: no division by the standard deviation
    assert advantages([10.0, 0.0]) == (5.0, -5.0)


def test_flat_groups_are_skipped_and_counted() -> None:
    result = groups("flat-0", "mixed", "rare")
    assert [g.task_id for g in result.groups] == ["mixed"] and [g.task_id for g in result.flat] == [
        "flat-0"
    ]
    assert (result.num_sampled, result.num_extra, result.num_all_failed) == (2, 0, 1)
    assert len(result.rollouts) == 6
    assert result.groups[0].advantages == (0.5, -0.5, 0.0)


def test_flat_groups_are_replaced_by_the_next_tasks_up_to_a_bound() -> None:
    result = groups("flat-0", "flat-1", "mixed", "flat-0", "rare", "mixed", max_extra=8)
    assert [g.task_id for g in result.groups] == ["mixed", "rare"]
    assert [g.task_id for g in result.flat] == ["flat-0", "flat-1", "flat-0"]
    assert (result.num_extra, result.num_all_failed) == (3, 2)
    bounded = groups("flat-0", "flat-1", "flat-0", "mixed", "rare", max_extra=2)
    assert [g.task_id for g in bounded.groups] == ["mixed"] and bounded.num_extra == 2
    used_up = groups("flat-0", "flat-1", "mixed", max_extra=8)
    assert len(used_up.groups) == 1 and used_up.num_extra == 1


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are 1 tasks"):
        groups("mixed")
    for wrong in ({"size": 1}, {"num_groups": 0}, {"max_extra": -1}):
        with pytest.raises(ConfigError, match="groups of"):
            sample_groups(
                tasks("mixed"), **{"num_groups": 1, "size": 3, "sample": pretend, **wrong}
            )


def test_the_members_of_a_group_are_different_episodes_of_one_task() -> None:
    render = renderer("qwen3", "qwen3")
    sample = partial(
        sample_rollouts,
        tiny(len(render.tokenizer)),
        renderer=render,
        settings=Sampling(max_new_tokens=6, max_context_tokens=999),
        author="tiny",
    )
    makers = [partial(Talk, number, rounds=2) for number in range(4)]
    result = sample_groups(
        makers, num_groups=2, size=3, sample=sample, max_extra=1, label="step-1:"
    )
    assert result.groups == () and [g.task_id for g in result.flat] == [
        "talk-0",
        "talk-1",
        "talk-2",
    ]
    names = [r.session.id for r in result.rollouts]
    assert (
        names[:3] == ["step-1:0:talk-0:0", "step-1:0:talk-0:1", "step-1:0:talk-0:2"]
        and names[-1] == "step-1:1:talk-2:2"
    )
    assert len({r.ids for r in result.rollouts}) == len(result.rollouts) == 9
