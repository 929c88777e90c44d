"""Where a live student acts: the tasks of training and those that watch it, of the environment that `rollouts.env` names.

with open_world("workshop") as world:
    makers = world.train(7)                # an endless stream of tasks of the split "train", a function of the seed
    makers = world.monitor(7, 48)          # 48 tasks that are never trained on

A held-out task never gets this far: every task is checked as it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.rollouts.envs.workshop.env import WorkshopEnv
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
from composer_replication.rollouts.envs.workshop.tasks import Task, make_task, make_tasks
from composer_replication.rollouts.envs.workshop.vocabulary import toolset_is_held_out
from composer_replication.rollouts.groups import MakeEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Tasks by seed: `train(seed)` is an endless stream, `monitor(seed, count)` a list; each item makes a fresh environment."""

    name: str
    train: Callable[[int], Iterator[MakeEnv]]
    monitor: Callable[[int, int], list[MakeEnv]]


@contextmanager
def _workshop() -> Iterator[World]:
    with Sandbox() as sandbox:

        def maker(task: Task) -> MakeEnv:
            return partial(WorkshopEnv, task, sandbox=sandbox)

        yield World(
            name="workshop",
            train=lambda seed: map(maker, training_tasks(seed)),
            monitor=lambda seed, count: [maker(task) for task in make_tasks(count, seed=seed, split="monitor")],
        )


WORLDS: dict[str, Callable[[], AbstractContextManager[World]]] = {"workshop": _workshop}


def open_world(name: str) -> AbstractContextManager[World]:
    """The environment of a run, open until the run ends; raises ConfigError for a name that is not in the table."""
    if name not in WORLDS:
        raise ConfigError(f"no environment {name!r}", where="rollouts.env", fix=f"one of: {', '.join(WORLDS)}")
    return WORLDS[name]()


def training_tasks(seed: int) -> Iterator[Task]:
    """An endless stream of different workshop tasks of the split "train", always the same for a seed."""
    seen: set[str] = set()
    number = 0
    while True:
        task = make_task(f"{seed}:{number}", split="train")
        number += 1
        if task.id not in seen:
            seen.add(task.id)
            check_trainable(task)
            yield task


def check_trainable(task: Task) -> None:
    """Raise DataError for a task or a tool set on which success is measured: its result would be that of training."""
    if task.split != "train" or toolset_is_held_out(task.tools):
        what = f"its split is {task.split!r}" if task.split != "train" else "its tool set is held out"
        raise DataError(f"a held-out task reached training: {what}", where=task.id)
