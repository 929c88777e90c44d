"""Groups of rollouts of one task, and the advantage of each rollout.

    sample = partial(sample_rollouts, model, renderer=renderer, settings=settings, author="me")
    result = sample_groups(tasks, num_groups=8, size=4, max_extra=8, sample=sample, label="step-3:")
    result.groups[0].advantages        # (0.75, -0.25, -0.25, -0.25): reward minus the group's mean

Dr.GRPO (arXiv 2503.20783): the advantage is `reward - mean`, not divided by the group's standard
deviation, which would overweight very easy and very hard tasks, and the loss has no `1 / length` of
the message, which would make long wrong messages cheap. A group whose rewards are all equal teaches
nothing: its advantages are zero. It is counted, left out, and replaced by a group of the *next*
task. The same task is not sampled again until its rewards differ: that would overweight its rarer
outcome, by one over the chance of seeing it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Protocol

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.rollouts.envs.env import Env, MakeEnv
from composer_replication.rollouts.episode import Rollout, episode_name, first_rollouts


class Sample(Protocol):
    """`sample_rollouts`, or a source's own sampler, with all but the environments filled in."""

    def __call__(self, envs: Sequence[Env], /, *, label: str) -> list[Rollout]:
        """The rollouts of one episode in each environment, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task; those of one episode (serve/) stand together."""

    task_id: str
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of each episode."""
        return tuple(rollout.reward for rollout in first_rollouts(self.rollouts).values())

    @property
    def advantages(self) -> tuple[float, ...]:
        """Reward minus the group's mean, for each episode."""
        return advantages(self.rewards)

    @property
    def is_flat(self) -> bool:
        """Whether all rewards are equal, so that the group has nothing to teach."""
        return min(self.rewards) == max(self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The result of sampling: groups to train on, and flat ones, which are counted and reported.

    `num_extra` groups were sampled to replace flat ones; if that was not enough, `groups` holds
    fewer than asked for.
    """

    groups: tuple[Group, ...]
    flat: tuple[Group, ...]
    num_extra: int

    @property
    def num_sampled(self) -> int:
        """The number of all groups, including flat ones."""
        return len(self.groups) + len(self.flat)

    @property
    def num_all_failed(self) -> int:
        """The number of flat groups in which no rollout earned anything."""
        return sum(max(group.rewards) == 0 for group in self.flat)

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """Every rollout, flat groups included: a success rate without them would be biased."""
        return tuple(rollout for group in (*self.groups, *self.flat) for rollout in group.rollouts)


def advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Reward minus mean; no standard deviation.

    >>> advantages([1.0, 0.0, 0.0, 0.0])
    (0.75, -0.25, -0.25, -0.25)
    """
    mean = sum(rewards) / len(rewards)
    return tuple(reward - mean for reward in rewards)


def scaled_advantages(rewards: Sequence[float]) -> tuple[float, ...]:
    """Reward minus mean, divided by the sample standard deviation plus 1e-4: GRPO and DAPO.

    >>> [round(a, 3) for a in scaled_advantages([1.0, 0.0, 0.0, 0.0])]
    [1.5, -0.5, -0.5, -0.5]

    As in TRL and verl.
    """
    deviation = stdev(rewards)
    return tuple(a / (deviation + 1e-4) for a in advantages(rewards))


def drop_stale(groups: Groups, *, now: int, max_staleness: int) -> Groups:
    """The groups without rollouts of weights that are too old.

    Too old is more than `max_staleness` steps older than `now`; rollouts of unknown age are stale.
    A group with fewer than two rollouts left has no difference and is dropped.
    """
    return _filter_rollouts(groups, lambda r: r.version >= 0 and now - r.version <= max_staleness)


def drop_unanswered(groups: Groups) -> Groups:
    """The groups without rollouts that a server left without a message.

    Those say nothing about the policy. A rollout that its environment lost stays: what the policy
    did may have been the reason. A group of one is dropped.
    """
    return _filter_rollouts(groups, lambda r: r.ended != "no_message")


def _filter_rollouts(groups: Groups, keep: Callable[[Rollout], bool]) -> Groups:
    def kept(members: Iterable[Group]) -> tuple[Group, ...]:
        smaller = [Group(g.task_id, tuple(r for r in g.rollouts if keep(r))) for g in members]
        return tuple(group for group in smaller if len(group.rewards) >= 2)

    return Groups(groups=kept(groups.groups), flat=kept(groups.flat), num_extra=groups.num_extra)


def sample_groups(
    tasks: Iterable[MakeEnv],
    *,
    num_groups: int,
    size: int,
    sample: Sample,
    max_extra: int = 0,
    label: str = "",
) -> Groups:
    """`size` episodes of each of the first `num_groups` tasks.

    Flat groups are replaced from the tasks that follow, at most `max_extra`; with `max_extra=0`
    they are left out without replacement. Raises ConfigError if a group is too small to have a
    difference or the tasks run out before `num_groups` were sampled.
    """
    if size < 2 or num_groups < 1 or max_extra < 0:
        raise ConfigError(
            f"groups of {size}, {num_groups} of them, {max_extra} more",
            fix="size >= 2, num_groups >= 1, max_extra >= 0",
        )
    supply = iter(tasks)
    varied: list[Group] = []
    flat: list[Group] = []
    num_extra = 0
    for number in itertools.count():
        num_wanted = (
            num_groups if number == 0 else min(num_groups - len(varied), max_extra - num_extra)
        )
        makers = list(itertools.islice(supply, num_wanted))
        if number == 0 and len(makers) < num_groups:
            raise ConfigError(
                f"{num_groups} groups were asked for, and there are {len(makers)} tasks"
            )
        if not makers:
            break
        num_extra += len(makers) if number else 0
        for group in _sample_batch(makers, size=size, sample=sample, label=f"{label}{number}:"):
            (flat if group.is_flat else varied).append(group)
    return Groups(groups=tuple(varied), flat=tuple(flat), num_extra=num_extra)


def _sample_batch(
    makers: Sequence[MakeEnv], *, size: int, sample: Sample, label: str
) -> Iterator[Group]:
    rollouts = sample([make() for make in makers for _ in range(size)], label=label)
    episodes = [list(part) for _, part in itertools.groupby(rollouts, key=episode_name)]
    for start in range(0, len(episodes), size):
        members = tuple(itertools.chain.from_iterable(episodes[start : start + size]))
        if len({rollout.task_id for rollout in members}) != 1:
            raise DataError("a task made environments of different tasks", where=members[0].task_id)
        yield Group(members[0].task_id, members)
