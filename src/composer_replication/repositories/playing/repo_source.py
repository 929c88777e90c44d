"""The tasks of a user's repositories, opened like the user's own environment.

    with open_world("repo", settings=config.rollouts) as source: ...   # core/config maps the name

Repositories that are held out never reach training. Training tasks are drawn by p(1 - p) of the
student's own success p, so that tasks which it always or never solves are rare, but not gone.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from composer_replication.core.config.rollout_settings import RepoSettings, RolloutSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.program_sampler import ProgramSampler
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.task_language import is_replayed
from composer_replication.rollouts.envs.env import EnvMetadata, MakeEnv
from composer_replication.rollouts.task_history import TaskSuccess, TaskSuccesses
from composer_replication.rollouts.task_source import TaskSource, UnseenTask, task_source

_UNPLAYED = TaskSuccess(passed=0, played=0)
METADATA = EnvMetadata(
    title="tasks of your repositories",
    notes=(
        "The tests of a task run in the interpreter that also runs the player's code: a reward"
        " can be cheated for, and the player's own word that it is done is required.",
        "Commands may answer differently the second time, so episodes are not played again to"
        " check them. Intervals are over tasks; those of one repository are alike.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """The tasks to train on, and those that no training sees."""

    train: tuple[RepoTask, ...]
    held_out: tuple[RepoTask, ...]


def used_tasks(tasks: Sequence[RepoTask], settings: RepoSettings) -> list[RepoTask]:
    """The tasks that are drawn: with `replayed_only`, those whose results are replayed."""
    if not settings.replayed_only:
        return list(tasks)
    if unknown := sum(not task.residual_risk for task in tasks):
        raise ConfigError(
            f"it is not known of {unknown} of {len(tasks)} tasks whether they are replayed",
            where="rollouts.repo.replayed_only",
            fix="recompose tasks check",
        )
    if not (used := [task for task in tasks if is_replayed(task)]):
        raise ConfigError(
            f"none of {len(tasks)} tasks is replayed",
            where="rollouts.repo.replayed_only",
            fix="make tasks of other repositories (recompose tasks make), or set it to false",
        )
    return used


def split_tasks(tasks: Sequence[RepoTask], settings: RepoSettings) -> TaskSplit:
    """Split the tasks that are used by repository: the named ones are held out, else a share of
    them by hash, at least one and not all. Of a single repository its tasks are split."""
    tasks = used_tasks(tasks, settings)
    names = sorted({task.repository for task in tasks}, key=_share)
    if unknown := sorted(set(settings.held_out) - set(names)):
        raise ConfigError(
            f"no task is of the repository {unknown[0]!r}",
            where="rollouts.repo.held_out",
            fix=f"one of: {', '.join(sorted(names))}",
        )
    share = settings.held_out_share
    if settings.held_out or len(names) > 1:
        hidden = set(settings.held_out)
        if share and not hidden:
            hidden = {name for name in names[:-1] if _share(name) < share} or set(names[:1])
        chosen = [task for task in tasks if task.repository in hidden]
    else:
        ordered = sorted(tasks, key=lambda task: _share(task.id))
        chosen = ordered[: max(1, round(share * len(ordered)))] if share else []
    ids = {task.id for task in chosen}
    train = tuple(task for task in tasks if task.id not in ids)
    if not train:
        raise ConfigError(
            "every task is held out",
            where="rollouts.repo.held_out",
            fix="make tasks of another repository: recompose tasks make",
        )
    return TaskSplit(train=train, held_out=tuple(chosen))


def _share(name: str) -> float:
    """A number from 0 to 1 that depends on a name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32


def draw_tasks(
    tasks: Sequence[RepoTask], *, seed: int, successes: TaskSuccesses, floor: float
) -> Iterator[RepoTask]:
    """An endless stream: each round has every task once, in the order of a draw without
    replacement, weighted by max(floor, p(1 - p)) (Efraimidis and Spirakis 2006)."""
    for number in itertools.count():
        keys: dict[str, float] = {}
        for task in tasks:
            rate = successes.get(task.id, _UNPLAYED).rate
            luck = random.Random(f"{seed}:{number}:{task.id}").random()
            keys[task.id] = luck ** (1 / max(floor, rate * (1 - rate)))
        yield from sorted(tasks, key=lambda task: (-keys[task.id], task.id))


@dataclass(slots=True)
class _OpenTasks:
    """The folder of tasks, opened when the first of them is asked for."""

    settings: RepoSettings
    stack: ExitStack
    _playable: PlayableTasks | None = field(default=None, init=False)

    def playable(self) -> PlayableTasks:
        if self._playable is None:
            folder = Path(self.settings.tasks or "recompose/tasks")
            self._playable = self.stack.enter_context(PlayableTasks(folder))
        return self._playable

    def split(self) -> TaskSplit:
        return split_tasks(self.playable().tasks, self.settings)

    def maker(self, task: RepoTask) -> MakeEnv:
        return partial(
            RepoEnv,
            task,
            self.playable(),
            max_turns=self.settings.turns,
            command_s=self.settings.command_s,
        )

    def train(self, seed: int, successes: TaskSuccesses) -> Iterator[MakeEnv]:
        drawn = draw_tasks(
            self.split().train, seed=seed, successes=successes, floor=self.settings.floor
        )
        return map(self.maker, drawn)

    def monitor(self, seed: int, count: int) -> list[MakeEnv]:
        held_out = self.split().held_out
        drawn = draw_tasks(held_out, seed=seed, successes={}, floor=self.settings.floor)
        return [self.maker(task) for task in itertools.islice(drawn, count)] if held_out else []

    def unseen(self, seed: int, count: int, split: str) -> list[UnseenTask]:
        del split  # a folder has two: repositories to train on, and the others
        held_out = self.split().held_out
        if count > len(held_out):
            raise DataError(
                f"{len(held_out)} tasks are held out, and {count} are asked for",
                where=str(self.playable().folder),
                fix=f"set evaluate.tasks = {len(held_out)}, or make tasks of more repositories",
            )
        drawn = draw_tasks(held_out, seed=seed, successes={}, floor=self.settings.floor)
        return [
            UnseenTask(id=task.id, kind=task.kind, split="monitor", make=self.maker(task))
            for task in itertools.islice(drawn, count)
        ]


@task_source
def repo_tasks(settings: RolloutSettings) -> Iterator[TaskSource]:
    """The tasks of the folder that [rollouts.repo] names."""
    with ExitStack() as stack:
        opened = _OpenTasks(settings.repo, stack)
        yield TaskSource(
            name="repo",
            train=lambda seed: opened.train(seed, {}),
            adaptive=opened.train,
            monitor=opened.monitor,
            unseen=opened.unseen,
            replayable=False,
            metadata=METADATA,
            sampler=ProgramSampler(settings) if settings.player else None,
        )
