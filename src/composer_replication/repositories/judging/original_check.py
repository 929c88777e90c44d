"""Judge the original of every task as an episode is judged: what a judgement takes, and what it
cannot exclude, stand on the task from then on.

    for checked in check_originals(Path("recompose/tasks")):
        checked.task.judge_s, checked.task.residual_risk

A task whose original earns nothing cannot be solved: it leaves tasks.jsonl, and its attempt says
why. A task that was checked is not checked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_lines
from composer_replication.repositories.environment import read_environment
from composer_replication.repositories.judging.judge import judge_changes
from composer_replication.repositories.judging.judge_room import open_repository
from composer_replication.repositories.making.attempts import (
    ENVIRONMENTS,
    TASKS,
    AttemptLog,
    TaskAttempt,
    commit_attempt,
    tidy_tasks,
)
from composer_replication.repositories.making.gates import LIMIT_S
from composer_replication.repositories.repo_task import RepoTask, task_line
from composer_replication.repositories.task_language import language_of

NO_RISK = "none known"
REFUSED = "the judge refuses the original"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTask:
    """A task with what its judgement takes and cannot exclude; `refused` says why it left."""

    task: RepoTask
    refused: str = ""


def check_originals(folder: Path) -> Iterator[CheckedTask]:
    """Check the tasks of a folder that were not checked yet, each written before the next one.

    Raises SandboxError where there are no walls.
    """
    tasks = {task.id: task for task in tidy_tasks(folder)}
    log = AttemptLog(folder)
    for task in [task for task in tasks.values() if not task.residual_risk]:
        checked = _check(task, folder)
        if checked.refused:
            log.add(_refused(task, log, reason=checked.refused), None)
            del tasks[task.id]
        else:
            tasks[task.id] = checked.task
        write_lines(folder / TASKS, [task_line(kept) for kept in tasks.values()])
        yield checked


def _refused(task: RepoTask, log: AttemptLog, *, reason: str) -> TaskAttempt:
    """The attempt that the task came from, refused; one of a commit has the commit's name."""
    name = commit_attempt(task.repository, task.commit) if task.commit else task.id
    known = log.known.get(name)
    return TaskAttempt(
        id=name,
        repository=task.repository,
        kind=task.kind,
        refused=f"{REFUSED}: {reason}",
        cpu_s=known.cpu_s if known else 0.0,
    )


def _check(task: RepoTask, folder: Path) -> CheckedTask:
    environment = read_environment(folder / ENVIRONMENTS / task.repository)
    try:
        repository = open_repository(task, folder=folder, environment=environment)
        original = task.original_files(repository.checkout.folder)
        # What the judge learns from the original once is no part of what an episode costs.
        if (judge := language_of(repository.checkout).judge) is not None:
            judge.learn(task, repository, limit_s=LIMIT_S)
        began = time.monotonic()
        judged = judge_changes(task, repository=repository, changed=original)
    except DataError as error:
        return CheckedTask(task=task, refused=error.what)
    risk = judged.residual_risk or NO_RISK
    timed = replace(task, judge_s=round(time.monotonic() - began, 2), residual_risk=risk)
    return CheckedTask(task=timed, refused=judged.reason)
