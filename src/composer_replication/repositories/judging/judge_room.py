"""The room in which an episode is judged: the pristine files with the allowed changes on top.

    repository = open_repository(task, folder=Path("recompose/tasks"), environment=environment)
    with judge_room(task, repository, changed={"shop/cart.py": "..."}, deleted=()) as room:
        room.tree           # what the tests see at /repo, read-only
        room.ignored        # changes that were not taken: {"conftest.py": "a file of the tests"}

Only text files that the task names are taken, and new modules of the package beside them: below a
folder with an `__init__.py` a module can be imported by its full name alone, so it stands in for
nothing else. Tests, conftest.py, settings, `.pth` and the like always are those of the base.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder, write_text
from composer_replication.repositories.checkout import Checkout, is_test, read_checkout
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.making.attempts import BASE
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox import interpreter

JUDGE_CACHE = "judge"
"""Below the folder of the tasks: what the judge learned from the originals."""
MAX_TEXT = 1 << 20
"""Characters of a changed file; a longer one is not taken."""
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.py[co]", "*.so", "*.pth", "*.egg-info", "*.egg-link", "build", "dist"
)
"""What of a base never gets into the room: history, caches, bytecode, builds, links."""
_MODULE = re.compile(r"[A-Za-z_]\w*\.py", re.ASCII)
_INSTALLED = re.compile(r"^__editable___?\.?|_\d+[._].*|\..*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRepository:
    """The pristine files of a task's repository, the interpreter of its tests, and the folder in
    which what the judge learned from the original is kept."""

    checkout: Checkout
    environment: TestEnvironment
    cache: Path

    @property
    def packages(self) -> frozenset[str]:
        """The names under which its modules are imported: {"shop"}."""
        root = "" if self.checkout.import_root == "." else f"{self.checkout.import_root}/"
        inside = [path.removeprefix(root) for path in self.checkout.sources]
        return frozenset(path.partition("/")[0].removesuffix(".py") for path in inside)


def open_repository(
    task: RepoTask, *, folder: Path, environment: TestEnvironment
) -> JudgedRepository:
    """The repository of a task, from the folder that `recompose tasks make` wrote."""
    base = folder / BASE / f"{task.repository}-{task.base[:8]}"
    return JudgedRepository(
        checkout=read_checkout(base, name=task.repository),
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
    are the answer (call_replay.py)."""
    check_not_installed(repository)
    ignored: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="judge-") as place:
        tree = Path(place) / "tree"
        shutil.copytree(repository.checkout.folder, tree, ignore=LEFT_OUT)
        for path, text in {**task.changed_files(repository.checkout.folder), **changed}.items():
            if reason := not_taken(path, text, task=task, checkout=repository.checkout):
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
            for path in repository.checkout.files:
                if is_test(path):
                    (tree / path).unlink(missing_ok=True)
        for path in (Path(place), tree, *tree.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # the program inside is nobody
        taken = {*task.paths, *(set(changed) - set(ignored))}
        yield JudgeRoom(tree=tree, changed=tuple(sorted(taken)), ignored=ignored)


def not_taken(path: str, text: str, *, task: RepoTask, checkout: Checkout) -> str:
    """Why a changed file is left as it was; "" if it is taken.

    A task's own files are taken, and new modules in a package that holds one of them.
    """
    if len(text) > MAX_TEXT:
        return "too long"
    if path in task.paths:
        return ""
    folder, _, name = path.rpartition("/")
    if is_test(path):
        return "a file of the tests"
    if path in checkout.files:
        return "not of this task"
    parts = path.split("/")
    if ".." in parts or not _MODULE.fullmatch(name):
        return "no new module"
    files = set(checkout.files)
    packages = {path.rpartition("/")[0] for path in task.paths}
    if folder not in packages or f"{folder}/__init__.py" not in files:
        return "no new module of the package"
    if f"{folder}/{name.removesuffix('.py')}/__init__.py" in files:
        return "a package has its name"
    return ""


def check_not_installed(repository: JudgedRepository) -> None:
    """Raise DataError if the interpreter has the repository's package, or a link to it: a player
    could read the answer there, and the tests could run it instead."""
    packages, *_ = interpreter(repository.environment.python).packages
    names = {name.lower() for name in repository.packages}
    for entry in sorted(Path(packages).iterdir()):
        stem = _INSTALLED.sub("", entry.name.lower().replace("-", "_"))
        if stem in names or (entry.suffix == ".pth" and _leads_to(entry, names)):
            raise DataError(
                f"{entry.name} is in its interpreter: an installed copy holds the answers",
                where=repository.environment.python,
                fix="uninstall it there, or let `recompose tasks make` set up an environment",
            )


def _leads_to(link: Path, names: set[str]) -> bool:
    """Whether a .pth file names a folder with one of these modules."""
    lines = link.read_text(encoding="utf-8", errors="replace").splitlines()
    folders = [Path(line) for line in lines if line.startswith("/")]
    return any((f / n).is_dir() or (f / f"{n}.py").exists() for f in folders for n in names)
