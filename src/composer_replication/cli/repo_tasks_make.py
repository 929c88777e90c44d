"""`recompose tasks make`: repository after repository, with progress and a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.repo_tasks_check import EVERY_S, explain_stop
from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.making.attempts import (
    ENVIRONMENTS,
    TASKS,
    AttemptLog,
    count_tasks,
    tidy_tasks,
)
from composer_replication.repositories.making.history import (
    commits_with_tests,
    make_history_tasks,
)
from composer_replication.repositories.making.make_repo_tasks import TaskSettings, make_repo_tasks
from composer_replication.repositories.repo_task import KINDS
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox
from composer_replication.repositories.task_language import language_of

FOLDER = "tasks"


def make_and_print(
    job: Job,
    repositories: Sequence[Path],
    *,
    python: str,
    settings: TaskSettings,
    history: int,
) -> int:
    """Make the tasks of some repositories; one that gives none is skipped, with the reason."""
    folder = job.work / FOLDER
    TreeSandbox().check()
    rows: dict[str, dict[str, Any]] = {}
    with explain_stop(folder, go_on="run the same command again"):
        for path in repositories:
            try:
                rows[str(path)] = _make(
                    job, path, python=python, settings=settings, history=history
                )
            except DataError as error:
                job.screen.line(f" skipped  {path}: {error}", style="yellow")
                rows[str(path)] = {"skipped": error.what}
    tasks = tidy_tasks(folder)
    _print_rows(job, rows)
    gave_tasks = bool(tasks) and any("made" in row for row in rows.values())
    job.finish(
        {"repositories": rows, "tasks": len(tasks)},
        wrote=[folder / TASKS] if gave_tasks else [],
        next_command=job.command("tasks check") if gave_tasks else "",
    )
    return int(any("skipped" in row for row in rows.values()))


def _make(
    job: Job, path: Path, *, python: str, settings: TaskSettings, history: int
) -> dict[str, Any]:
    """The tasks of one repository; returns its row of the table."""
    folder = job.work / FOLDER
    start = time.monotonic()
    checkout = read_checkout(path)
    job.screen.line(
        f"\n {checkout.name}: {len(checkout.sources)} source files; setting up what its tests need"
    )
    environment = language_of(checkout).make_environment(
        checkout, folder=folder / ENVIRONMENTS / checkout.name, program=python
    )
    before = count_tasks(folder, checkout.name)
    if before.made or before.refused:
        job.screen.line(
            f" goes on: {sum(before.made.values())} tasks were made before, and"
            f" {sum(before.refused.values())} changes refused; they are not tried again"
        )
    job.screen.line(" its tests run three times, then every change is tried", style="dim")
    commits = len(commits_with_tests(path.resolve(), most=history, language=checkout.language))
    wanted = sum(settings.wanted().values()) + commits
    attempts = chain(
        make_repo_tasks(checkout, environment, folder=folder, settings=settings),
        make_history_tasks(
            path.resolve(),
            environment,
            name=checkout.name,
            target=folder,
            wanted=history,
            language=checkout.language,
        ),
    )
    known, new, made, last_shown = set(AttemptLog(folder).known), 0, 0, start
    for tried, attempt in enumerate(attempts, 1):
        made += not attempt.refused
        new += not attempt.refused and attempt.id not in known
        if (now := time.monotonic()) - last_shown > EVERY_S:
            left = (now - start) / max(1, new) * max(0, wanted - made)
            job.screen.line(
                f" {made} of at most {wanted} tasks, {tried} changes tried, {left:.0f} s left",
                style="dim",
            )
            last_shown = now
    counts = count_tasks(folder, checkout.name)
    return {**asdict(counts), "new": new, "seconds": round(time.monotonic() - start, 1)}


def check_names(repositories: Sequence[Path]) -> None:
    """Raise UsageError if two have one name: tasks are filed by the name of the folder."""
    places: dict[str, Path] = {}
    for path in repositories:
        name = path.resolve().name
        if places.setdefault(name, path).resolve() != path.resolve():
            raise UsageError(
                f"{places[name]} and {path} have the same name",
                where="recompose tasks make",
                fix="rename one of the folders, or make its tasks in a work folder of its own: -o",
            )


def _print_rows(job: Job, rows: dict[str, dict[str, Any]]) -> None:
    """A row for each repository with the tasks that it has now, then why changes were refused."""
    shown = [
        (
            Path(path).resolve().name,
            *(row["made"].get(kind, 0) for kind in KINDS),
            sum(row["made"].values()),
            row["new"],
            row["seconds"],
        )
        for path, row in rows.items()
        if "made" in row
    ]
    job.screen.line()
    job.screen.table(shown, head=("repository", *KINDS, "tasks", "new", "seconds"))
    refused: Counter[str] = Counter()
    for row in rows.values():
        refused.update(row.get("refused", {}))
    if refused:
        job.screen.line("\n refused:")
        job.screen.table(refused.most_common(), head=("reason", "changes"))
