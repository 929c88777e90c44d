"""Judge the original of every task as an episode is judged: what a judgement takes, and what it
cannot exclude, stand on the task from then on.

    for checked in check_originals(Path("recompose/tasks")):
        checked.task.judge_s, checked.task.residual_risk

An original is judged several times, so that no coin decides. A task whose original earns nothing
cannot be solved: it leaves tasks.jsonl, and its attempt says why. A judgement that died or passed
its limit decides nothing: the task waits for the next check. A task that was checked is not checked
again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_lines
from composer_replication.repositories.environment import read_environment
from composer_replication.repositories.judged import JudgedRepository, OriginalRefusedError
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
JUDGED = 3
"""How often an original is judged; it has to earn 1 each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTask:
    """A task with what its judgement takes and cannot exclude; `refused` says why it left,
    `not_judged` why nothing is known of it."""

    task: RepoTask
    refused: str = ""
    not_judged: str = ""


def check_originals(folder: Path) -> Iterator[CheckedTask]:
    """Check the tasks of a folder that were not checked yet, each written before the next one.

    Raises SandboxError where there are no walls, and DataError where a repository's environment no
    longer runs its tests: that says nothing about a task.
    """
    tasks = {task.id: task for task in tidy_tasks(folder)}
    log = AttemptLog(folder)
    tried: set[str] = set()
    for task in [task for task in tasks.values() if not task.residual_risk]:
        environment = read_environment(folder / ENVIRONMENTS / task.repository)
        repository = open_repository(task, folder=folder, environment=environment)
        if task.repository not in tried:
            _try_environment(task, repository)
            tried.add(task.repository)
        checked = _check(task, repository)
        if checked.refused:
            _try_environment(task, repository)
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


def _try_environment(task: RepoTask, repository: JudgedRepository) -> None:
    """Raise if the files of a task's tests can no longer be collected on the original: the gates
    have shown that they can, so it is the environment that changed."""
    checkout, environment = repository.checkout, repository.environment
    language = language_of(checkout)
    with language.runner(environment, checkout.folder, import_root=checkout.import_root) as runner:
        run = runner.run(tests=[*task.must_pass, *task.must_keep], limit_s=LIMIT_S)
    if run.ended and (run.errors or not run.outcomes):
        reason = f": {run.failure}" if run.failure else ""
        raise DataError(
            f"the environment of {task.repository} no longer runs its tests{reason}",
            where=environment.program,
            fix="set it up again: recompose tasks make REPO, with --python PATH for your own",
        )


def _check(task: RepoTask, repository: JudgedRepository) -> CheckedTask:
    original = task.original_files(repository.checkout.folder)
    spent_s, risk = 0.0, ""
    try:
        # What the judge learns from the original once is no part of what an episode costs.
        if (judge := language_of(repository.checkout).judge) is not None:
            judge.learn(task, repository, limit_s=LIMIT_S)
        for number in range(1, JUDGED + 1):
            began = time.monotonic()
            judged = judge_changes(task, repository=repository, changed=original)
            spent_s += time.monotonic() - began
            risk = judged.residual_risk or NO_RISK
            if not judged.reward:
                raise OriginalRefusedError(
                    f"{judged.reason} (judgement {number} of {JUDGED})",
                    where=task.id,
                    fix="leave the task out",
                    unfinished=judged.unfinished,
                )
    except OriginalRefusedError as error:
        if error.unfinished:
            return CheckedTask(task=task, not_judged=error.what)
        return CheckedTask(task=task, refused=error.what)
    timed = replace(task, judge_s=round(spent_s / JUDGED, 2), residual_risk=risk)
    return CheckedTask(task=timed)
