"""`recompose tasks`: your own repositories as tasks with tests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.repo_tasks_check import (
    EVERY_S,
    check_tasks,
    explain_stop,
    list_tasks,
)
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


def tasks_command(
    what: Literal["make", "check", "list"],
    /,
    *repositories: Path,
    python: str = "",
    functions: int = 12,
    classes: int = 3,
    bugs: int = 15,
    history: int = 10,
    seed: int = 0,
    common: Common = Common(),
) -> int:
    """Turn repositories with tests into tasks: removed code to write again, small mistakes to
    find, commits to make again. Each passes four gates before it counts.

    Their tests run in a sandbox: no network, none of your files, a copy of the tree. Run it again
    to go on after a stop; the same repository and seed give the same tasks. Tasks that were made
    stay, also if a later run asks for fewer.

    Parameters
    ----------
    what
        `make` the tasks; `check` them: judge the original of each task like an episode, to see how
        long judging takes and what it cannot rule out; `list` them, with their statements.
    repositories
        Repository folders; Python with pytest or unittest.
    python
        Python interpreter with what the tests need, plus pytest and coverage. Default: an
        environment created from what the repository declares.
    functions
        Removed functions and methods per repository.
    classes
        Removed classes per repository.
    bugs
        Small bugs per repository.
    history
        Commits per repository.
    seed
        Random seed of the changes.
    """
    job = open_job(common)
    folder = job.work / FOLDER
    if what == "list":
        return list_tasks(job, folder)
    if what == "check":
        return check_tasks(job, folder)
    if not repositories:
        raise UsageError(
            "no repository is named", where="recompose tasks make", fix="name their folders"
        )
    for path in repositories:
        if not path.is_dir():
            raise UsageError(
                f"{path} is no folder",
                where="recompose tasks make",
                fix="name a repository's folder",
            )
    _check_names(repositories)
    settings = TaskSettings(functions=functions, classes=classes, bugs=bugs, seed=seed)
    if job.dry_run:
        for path in repositories:
            checkout = read_checkout(path)
            job.screen.line(f" {checkout.name}: {len(checkout.sources)} files, {checkout.tests}")
        return job.finish({}, wrote=[folder / TASKS])
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
    job.finish(
        {"repositories": rows, "tasks": len(tasks)},
        wrote=[folder / TASKS] if tasks else [],
        next_command=job.command("tasks check") if tasks else "",
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


def _check_names(repositories: Sequence[Path]) -> None:
    """Tasks are filed by the name of the repository's folder."""
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
