"""The room in which an episode is judged: the pristine files with the allowed changes on top.

    repository = open_repository(task, folder=Path("recompose/tasks"), environment=environment)
    with judge_room(task, repository, changed={"shop/cart.py": "..."}, deleted=()) as room:
        room.tree           # what the tests see at /repo, read-only
        room.ignored        # changes that were not taken: {"conftest.py": "a file of the tests"}

Only text files that the task names are taken, and new files of the package beside them where the
language says that they stand in for nothing else. Tests and settings always are those of the base.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.files import make_folder, write_text
from composer_replication.repositories.checkout import Checkout, read_checkout
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.making.attempts import BASE
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.task_language import Language, language_of

JUDGE_CACHE = "judge"
"""Below the folder of the tasks: what the judge learned from the originals."""
MAX_TEXT = 1 << 20
"""Characters of a changed file; a longer one is not taken."""


def open_repository(
    task: RepoTask, *, folder: Path, environment: TestEnvironment
) -> JudgedRepository:
    """The repository of a task, from the folder that `recompose tasks make` wrote."""
    base = folder / BASE / f"{task.repository}-{task.base[:8]}"
    return JudgedRepository(
        checkout=read_checkout(base, name=task.repository, language=task.language),
        environment=environment,
        cache=folder / JUDGE_CACHE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRoom:
    """A tree to judge, the player's files in it, and what was not taken with the reason."""

    tree: Path
    changed: tuple[str, ...]
    ignored: Mapping[str, str]


@contextmanager
def judge_room(
    task: RepoTask,
    repository: JudgedRepository,
    *,
    changed: Mapping[str, str],
    deleted: Sequence[str],
    tests: bool = True,
) -> Iterator[JudgeRoom]:
    """A copy of the base with the allowed changes, gone at the end; without its tests where they
    are the answer, as in a replay."""
    checkout = repository.checkout
    language = language_of(checkout)
    language.check_not_installed(checkout, repository.environment)
    ignored: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="judge-") as place:
        tree = Path(place) / "tree"
        shutil.copytree(checkout.folder, tree, ignore=shutil.ignore_patterns(*language.kept_out))
        for path, text in {**task.changed_files(checkout.folder), **changed}.items():
            if reason := not_taken(path, text, task=task, checkout=checkout, language=language):
                ignored[path] = reason
            else:
                make_folder((tree / path).parent)
                write_text(tree / path, text)
        for path in deleted:
            if path in task.paths:
                (tree / path).unlink(missing_ok=True)
            else:
                ignored[path] = "not of this task"
        if not tests:
            for path in checkout.files:
                if language.is_test(path):
                    (tree / path).unlink(missing_ok=True)
        for path in (Path(place), tree, *tree.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # the program inside is nobody
        taken = {*task.paths, *(set(changed) - set(ignored))}
        yield JudgeRoom(tree=tree, changed=tuple(sorted(taken)), ignored=ignored)


def not_taken(
    path: str, text: str, *, task: RepoTask, checkout: Checkout, language: Language
) -> str:
    """Why a changed file is left as it was; "" if it is taken.

    A task's own files are taken, and new files in a package that holds one of them.
    """
    if len(text) > MAX_TEXT:
        return "too long"
    if path in task.paths:
        return ""
    if language.is_test(path):
        return "a file of the tests"
    if path in checkout.files:
        return "not of this task"
    return language.new_file_refused(path, paths=task.paths, files=set(checkout.files))
