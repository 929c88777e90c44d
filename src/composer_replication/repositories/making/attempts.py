"""What became of each change that was tried, and the files that tasks are written to.

    log = AttemptLog(Path("recompose/tasks"))
    log.known                       # by id: a change is never tried twice
    log.add(attempt, task)          # on disk before the next one is tried

`tasks.jsonl` has the tasks of all repositories, `attempts.jsonl` every attempt with its reason,
`base/NAME-HASH` the files that the tasks of one state of a repository change.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from composer_replication.core.files import append_text, make_folder
from composer_replication.core.jsonl import dumps, read_lines, write_lines
from composer_replication.repositories.checkout import Checkout, copy_checkout
from composer_replication.repositories.repo_task import (
    RepoTask,
    TaskKind,
    read_tasks,
    task_line,
)

TASKS, ATTEMPTS, BASE = "tasks.jsonl", "attempts.jsonl", "base"
ENVIRONMENTS = "environments"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttempt:
    """One change that was tried: the id of the task that it became, or why it did not. `cpu_s` is
    what all its test runs cost."""

    id: str
    repository: str
    kind: TaskKind
    refused: str
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """What a folder holds of a repository, of all runs so far: its tasks by kind, the refused
    attempts by reason, and what all attempts cost."""

    made: Mapping[str, int]
    refused: Mapping[str, int]
    cpu_s: float


def commit_attempt(repository: str, commit: str) -> str:
    """The id of the attempt that tries a commit.

    >>> commit_attempt("shop", "0123456789abcdef")
    'shop-0123456789'
    """
    return f"{repository}-{commit[:10]}"


class AttemptLog:
    """The attempts of a folder; `add` writes the task first, so none is lost by a kill."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder
        file = folder / ATTEMPTS
        rows = read_lines(file) if file.exists() else ()
        self.known = {value["id"]: TaskAttempt(**value) for _, value in rows}

    def add(self, attempt: TaskAttempt, task: RepoTask | None) -> None:
        """Write an attempt and the task that it became."""
        if task is not None:
            append_text(self._folder / TASKS, dumps(task_line(task)) + "\n")
        append_text(self._folder / ATTEMPTS, dumps(asdict(attempt)) + "\n")
        self.known[attempt.id] = attempt


def base_folder(checkout: Checkout, *, folder: Path) -> Path:
    """The files that tasks of this state change; copied once."""
    base = folder / BASE / f"{checkout.name}-{checkout.sha256[:8]}"
    if not base.exists():
        make_folder(base.parent)
        scratch = base.with_name(f".{base.name}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        copy_checkout(checkout, scratch).rename(base)
    return base


def count_tasks(folder: Path, repository: str) -> TaskCounts:
    """Count a repository's tasks and refused attempts."""
    attempts = [row for row in AttemptLog(folder).known.values() if row.repository == repository]
    tasks = [task for task in tidy_tasks(folder) if task.repository == repository]
    refused = [row.refused.partition(":")[0] for row in attempts if row.refused]
    return TaskCounts(
        made=dict(Counter(task.kind for task in tasks)),
        refused=dict(Counter(refused)),
        cpu_s=round(sum(row.cpu_s for row in attempts), 1),
    )


def tidy_tasks(folder: Path) -> list[RepoTask]:
    """The tasks of a folder; a line that a killed run wrote twice is removed."""
    if not (folder / TASKS).exists():
        return []
    tasks = {task.id: task for task in read_tasks(folder / TASKS)}
    write_lines(folder / TASKS, [task_line(task) for task in tasks.values()])
    return list(tasks.values())
