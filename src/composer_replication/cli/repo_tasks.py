"""`recompose tasks`: your own repositories as tasks with tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from composer_replication.cli.flags import Common
from composer_replication.cli.job import open_job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.repo_tasks_check import check_tasks, list_tasks
from composer_replication.cli.repo_tasks_make import FOLDER, check_names, make_and_print
from composer_replication.report.html import plural
from composer_replication.repositories.checkout import read_checkout
from composer_replication.repositories.making.attempts import TASKS
from composer_replication.repositories.making.make_repo_tasks import TaskSettings


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
    if repositories and what != "make":
        raise UsageError(
            f"{repositories[0]} is not taken: it {what}s all tasks of the work folder",
            where=f"recompose tasks {what}",
            fix="leave it out; -o names another work folder",
        )
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
    check_names(repositories)
    wanted = {"functions": functions, "classes": classes, "bugs": bugs, "history": history}
    for name, count in wanted.items():
        if count < 0:
            raise UsageError(
                f"--{name} {count} is no number of tasks",
                where="recompose tasks make",
                fix="give 0 or more; 0 makes none of this kind",
            )
    settings = TaskSettings(functions=functions, classes=classes, bugs=bugs, seed=seed)
    if job.dry_run:
        for path in repositories:
            checkout = read_checkout(path)
            files = plural(len(checkout.sources), "file")
            job.screen.line(f" {checkout.name}: {files}, {checkout.tests}")
        return job.finish({}, wrote=[folder / TASKS])
    return make_and_print(job, repositories, python=python, settings=settings, history=history)
