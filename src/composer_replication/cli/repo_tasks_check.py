"""`recompose tasks check` and `recompose tasks list`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.cli.job import Job
from composer_replication.cli.problems import InterruptedRunError
from composer_replication.core.errors import DataError
from composer_replication.report.html import plural
from composer_replication.repositories.judging.original_check import NO_RISK, check_originals
from composer_replication.repositories.making.attempts import TASKS, tidy_tasks
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox
from composer_replication.repositories.task_language import language_named

EVERY_S = 15.0
"""Seconds between two lines of progress."""


@contextmanager
def explain_stop(folder: Path, *, go_on: str) -> Iterator[None]:
    """If this block is interrupted, raise with what the folder holds and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        tasks = tidy_tasks(folder)
        checked = sum(bool(task.residual_risk) for task in tasks)
        raise InterruptedRunError(
            f"interrupted; {len(tasks)} tasks are made, {checked} of them checked",
            where=str(folder / TASKS),
            fix=f"to go on where it stopped: {go_on}",
        ) from error


def _read(folder: Path) -> list[RepoTask]:
    """The tasks of the work folder; DataError if there are none."""
    if not (tasks := tidy_tasks(folder)):
        raise DataError("no tasks", where=str(folder), fix="recompose tasks make REPO...")
    return tasks


def check_tasks(job: Job, folder: Path) -> int:
    """Judge the original of each task that was not checked yet."""
    tasks = _read(folder)
    waiting = sum(not task.residual_risk for task in tasks)
    if waiting < len(tasks):
        job.screen.line(f" {len(tasks) - waiting} of {len(tasks)} tasks were checked before")
    if job.dry_run:
        job.screen.line(f" {plural(waiting, 'task')} to check")
        return job.finish({}, wrote=[folder / TASKS])
    TreeSandbox().check()
    began = last_shown = time.monotonic()
    refused: dict[str, str] = {}
    not_judged: dict[str, str] = {}
    with explain_stop(folder, go_on=job.command("tasks check")):
        for number, checked in enumerate(check_originals(folder), 1):
            if checked.refused:
                refused[checked.task.id] = checked.refused
                job.screen.line(f" {checked.task.id} left: {checked.refused}", style="yellow")
            if checked.not_judged:
                not_judged[checked.task.id] = checked.not_judged
                job.screen.line(
                    f" {checked.task.id} was not judged: {checked.not_judged}", style="yellow"
                )
            if (now := time.monotonic()) - last_shown > EVERY_S:
                left = (now - began) / number * (waiting - number)
                job.screen.line(f" {number} of {waiting} checked, {left:.0f} s left", style="dim")
                last_shown = now
    tasks = tidy_tasks(folder)
    risks = Counter(_kind_of_risk(task) for task in tasks if task.residual_risk)
    job.screen.table(risks.most_common(), head=("what the judge cannot exclude", "tasks"))
    seconds = sorted(task.judge_s for task in tasks if task.residual_risk)
    if seconds:
        job.screen.line(
            f"\n a judgement takes {seconds[len(seconds) // 2]:.1f} s (median), at most"
            f" {seconds[-1]:.1f} s"
        )
    if not_judged:
        job.screen.line(
            f" {plural(len(not_judged), 'task')} not judged: the judgement died or passed its"
            " limit; the next check tries again",
            style="yellow",
        )
    facts = {
        "checked": waiting - len(not_judged),
        "refused": refused,
        "not_judged": not_judged,
        "tasks": len(tasks),
        "risks": dict(risks),
    }
    return job.finish(facts, wrote=[folder / TASKS], next_command=job.command("tasks list"))


def _kind_of_risk(task: RepoTask) -> str:
    """The risk of a task without what is particular to it: "not replayed"."""
    language = language_named(task.language)
    kinds = dict(language.judge.risks) if language.judge else {}
    if language.unguarded:
        kinds[language.unguarded] = language.unguarded
    found = [kind for words, kind in kinds.items() if words in task.residual_risk]
    return "; ".join(found) or NO_RISK


def list_tasks(job: Job, folder: Path) -> int:
    """The tasks of the work folder, with their statements."""
    tasks = _read(folder)
    for task in tasks:
        job.screen.line(f"\n {task.id}  {task.kind}  {', '.join(task.paths)}", style="bold")
        judged = f"a judgement takes {task.judge_s:g} s; residual risk: {task.residual_risk}"
        unknown = "residual risk not known yet: recompose tasks check"
        job.screen.line(f"   {judged if task.residual_risk else unknown}", style="dim")
        for line in task.statement.splitlines():
            job.screen.line(f"   {line}")
    job.screen.line(f"\n {plural(len(tasks), 'task')}")
    listed = [
        {
            "id": task.id,
            "repository": task.repository,
            "kind": task.kind,
            "paths": task.paths,
            "difficulty": task.difficulty,
            "judge_s": task.judge_s,
            "residual_risk": task.residual_risk,
            "statement": task.statement,
        }
        for task in tasks
    ]
    job.screen.result({"tasks": listed})
    return 0
