"""Where a live student acts: the tasks of training and those that watch it, of the environment that
`rollouts.env` names.

with open_world("workshop") as world:
    makers = world.train(7)                # an endless stream of tasks of the split "train", a function of the seed
    makers = world.monitor(7, 48)          # 48 tasks that are never trained on

A held-out task never gets this far: every task is checked as it is drawn.

open_world("envs/mine.py:make") calls a function of the user's: make(seed, split="train" or
"monitor") gives a new environment (an Env of rollouts/envs/env.py) of a task, always the same task
for the same arguments. It runs in the trainer's own process and thread: what may fail or hang
belongs into the environment's methods, where it costs a rollout. Here it ends the run, with a name.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.data.sites.by_path import files_of, load_function, users_code
from composer_replication.rollouts.envs.env import Env
from composer_replication.rollouts.groups import MakeEnv
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_task, make_tasks
from composer_replication.workshop.vocabulary import toolset_is_held_out
from composer_replication.workshop.workshop_env import WorkshopEnv

SETTING = "rollouts.env"
METHODS = ("open", "reply", "reward", "measures", "close")
"""What an environment of the user's must have, beside task_id and max_turns."""
Split = Literal["train", "monitor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Tasks by seed: `train(seed)` is an endless stream, `monitor(seed, count)` a list; each item
    makes a fresh environment.

    `sources` are the user's files that decide what a task is; empty for what is built in.
    """

    name: str
    train: Callable[[int], Iterator[MakeEnv]]
    monitor: Callable[[int, int], list[MakeEnv]]
    sources: tuple[Path, ...] = ()

    def sha256(self) -> str:
        """A hash of the content of `sources`, "" where there are none."""
        digest = hashlib.sha256()
        for file in self.sources:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest() if self.sources else ""


@contextmanager
def _workshop() -> Iterator[TaskSource]:
    with Sandbox() as sandbox:

        def maker(task: Task) -> MakeEnv:
            return partial(WorkshopEnv, task, sandbox=sandbox)

        yield TaskSource(
            name="workshop",
            train=lambda seed: map(maker, training_tasks(seed)),
            monitor=lambda seed, count: [
                maker(task) for task in make_tasks(count, seed=seed, split="monitor")
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """Environments of the user's function, checked as they are made; `ids` are the tasks of each
    split that were made so far."""

    path: str
    make: Callable[..., Any]
    ids: dict[Split, set[str]] = field(default_factory=lambda: {"train": set(), "monitor": set()})

    def task(self, seed: int, *, split: Split) -> Env:
        """A new environment of one task; raises ConfigError for what is none, DataError for a task
        that stands in both splits."""
        with users_code(self.path, self.make, setting=SETTING, on=f"seed {seed}, split {split!r}"):
            env = self.make(seed, split=split)
            name, missing = (
                getattr(env, "task_id", None),
                [m for m in METHODS if not callable(getattr(env, m, None))],
            )
        if missing or not isinstance(name, str) or not name or not hasattr(env, "max_turns"):
            lacks = ", ".join(
                [
                    *(f"{m}()" for m in missing),
                    *(a for a in ("task_id", "max_turns") if not getattr(env, a, None)),
                ]
            )
            what = (
                f"{self.path} gave {type(env).__name__}, which is no environment: it lacks {lacks}"
            )
            raise ConfigError(
                what, where=SETTING, fix="give it what the Env of rollouts/envs/env.py has"
            )
        if name in self.ids["monitor" if split == "train" else "train"]:
            what = (
                "the task is both trained on and watched: what it says of unseen tasks would be"
                " that of training"
            )
            raise DataError(
                what, where=name, fix=f'let {self.path} give other tasks with split="monitor"'
            )
        self.ids[split].add(name)
        return env

    def stream(self, seed: int, *, split: Split) -> Iterator[MakeEnv]:
        """Tasks without an end, each of its own seed."""
        return (
            partial(self.task, stage_seed(seed, f"{split}:{n}"), split=split)
            for n in itertools.count()
        )


@contextmanager
def _own(path: str) -> Iterator[TaskSource]:
    make = load_function(path, setting=SETTING, built_in=WORLDS)
    own = _Own(path=path, make=make)
    yield TaskSource(
        name=path,
        train=partial(own.stream, split="train"),
        monitor=lambda seed, count: list(
            itertools.islice(own.stream(seed, split="monitor"), count)
        ),
        sources=files_of(path, make),
    )


WORLDS: dict[str, Callable[[], AbstractContextManager[TaskSource]]] = {"workshop": _workshop}


def open_world(name: str) -> AbstractContextManager[TaskSource]:
    """The environment of a run, open until the run ends; raises ConfigError for a name that is not
    in the table, or a useless function."""
    if name in WORLDS:
        return WORLDS[name]()
    if ":" in name:
        return _own(name)
    raise ConfigError(
        f"no environment {name!r}",
        where=SETTING,
        fix=f"one of: {', '.join(WORLDS)}, or path/to/file.py:function",
    )


def try_world(name: str) -> tuple[Path, ...]:
    """Make one task of the user's environment, so that what is wrong shows before a weight is
    loaded; returns `TaskSource.sources`."""
    with open_world(name) as world:
        env = next(world.train(0))()
        with users_code(name, env.close, setting=SETTING, on="close()"):
            env.close()
        return world.sources


def training_tasks(seed: int) -> Iterator[Task]:
    """An endless stream of different workshop tasks of the split "train", always the same for a
    seed."""
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
    """Raise DataError for a task or a tool set on which success is measured: its result would be
    that of training."""
    if task.split != "train" or toolset_is_held_out(task.tools):
        what = (
            f"its split is {task.split!r}" if task.split != "train" else "its tool set is held out"
        )
        raise DataError(f"a held-out task reached training: {what}", where=task.id)
