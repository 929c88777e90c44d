"""The tasks of the workshop, opened like a user's own environment.

    with open_world("workshop") as task_source: ...    # core/config maps the name to this file

A held-out task never reaches training: every task is checked when it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from composer_replication.core.errors import DataError
from composer_replication.rollouts.envs.env import EnvMetadata, MakeEnv, MistakeFamily
from composer_replication.rollouts.envs.method_env import MethodEnvs
from composer_replication.rollouts.task_source import (
    RecordedSessions,
    TaskSource,
    UnseenTask,
    task_source,
)
from composer_replication.workshop.as_tools import (
    TOOL_SLACK,
    WorkshopTools,
    task_rows,
    with_taught_tools,
)
from composer_replication.workshop.demonstrators import LEVELS
from composer_replication.workshop.recorded_task import SPLITS, was_recorded_here
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.scripted_teachers import fails_here, gap_here, scripted_teachers
from composer_replication.workshop.tasks import Task, distinct_tasks, make_tasks
from composer_replication.workshop.vocabulary import toolset_is_held_out
from composer_replication.workshop.workshop_env import WorkshopEnv

HINTS_ARE_TAUGHT = (
    "That a hint is followed was taught to the workshop's students in their warm-up. What the hint"
    " channel adds is the same behaviour without the hint; how well hints are followed by a model"
    " that was not taught to is not shown here."
)
METADATA = EnvMetadata(
    title="the built-in workshop",
    families=(
        MistakeFamily(name="A", title="A: a wrong name (hint channel)", set_by_task=True),
        MistakeFamily(
            name="B", title="B: a needless listing (preference channel)", set_by_task=True
        ),
        MistakeFamily(name="C", title="C: the last test left out (policy channel)"),
    ),
    notes=(HINTS_ARE_TAUGHT,),
    levels={number: level.text for number, level in LEVELS.items()},
)


@task_source
def workshop_tasks() -> Iterator[TaskSource]:
    """The tasks of the workshop, with one sandbox for all its environments."""
    with Sandbox() as sandbox:

        def maker(task: Task) -> MakeEnv:
            return partial(WorkshopEnv, task, sandbox=sandbox)

        def unseen(seed: int, count: int, split: str) -> list[UnseenTask]:
            return [
                UnseenTask(id=task.id, kind=task.kind, split=task.split, make=maker(task))
                for task in make_tasks(count, seed=seed, split=SPLITS[split])
            ]

        yield TaskSource(
            name="workshop",
            train=lambda seed: map(maker, training_tasks(seed)),
            monitor=lambda seed, count: [
                maker(task) for task in make_tasks(count, seed=seed, split="monitor")
            ],
            metadata=METADATA,
            unseen=unseen,
            method_envs=MethodEnvs(
                env_class=WorkshopTools,
                arguments={"sandbox": sandbox, "slack": TOOL_SLACK},
                rows=task_rows,
                adapt_template=with_taught_tools,
            ),
            recorded=RecordedSessions(
                is_from_here=was_recorded_here,
                teachers=lambda sessions: scripted_teachers(sessions, sandbox),
                fails=partial(fails_here, sandbox=sandbox),
                gap=partial(gap_here, sandbox=sandbox),
            ),
        )


def training_tasks(seed: int) -> Iterator[Task]:
    """An endless stream of different tasks of the split "train", always the same for a seed."""
    for _, task in distinct_tasks(f"{seed}:{number}" for number in itertools.count()):
        check_trainable(task)
        yield task


def check_trainable(task: Task) -> None:
    """Raise DataError for a task or tool set on which success is measured: it would no longer be
    held out."""
    if task.split != "train" or toolset_is_held_out(task.tools):
        reason = (
            f"its split is {task.split!r}" if task.split != "train" else "its tool set is held out"
        )
        raise DataError(f"a held-out task reached training: {reason}", where=task.id)
