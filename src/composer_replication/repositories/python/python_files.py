"""Python's files: which are tests, which are the package, what never gets into a room.

>>> is_test("tests/helpers.py"), is_test("shop/test_cart.py"), is_test("shop/testing_tools.py")
(True, True, False)
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import Checkout, FileRoles
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.sandbox.tree_sandbox import interpreter

KEPT_OUT = (
    *(".*", "__pycache__", "*.py[co]", "*.so", "*.pth"),
    *("*.egg-info", "*.egg-link", "build", "dist"),
)
"""What of a base never gets into the room: history, caches, bytecode, builds, links."""
_SKIPPED_FOLDER = re.compile(r"__pycache__|build|dist|node_modules|venv|env|.*\.egg-info", re.ASCII)
_SKIPPED_FILES = frozenset((".coverage", ".DS_Store"))
_NO_SOURCE = frozenset(
    ("docs", "doc", "bench", "benchmark", "benchmarks", "examples", "example", "scripts", "bin")
)
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
_TEST_FILE = re.compile(r"(tests?_.*|.*_tests?|tests?)\.py", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*\.py", re.ASCII)
_INSTALLED = re.compile(r"^__editable___?\.?|_\d+[._].*|\..*", re.ASCII)


def is_left_out(name: str, *, folder: bool) -> bool:
    """Whether a folder or file is a cache, a build, or an environment.

    >>> is_left_out("build", folder=True), is_left_out("cart.pyc", folder=False)
    (True, True)
    """
    if folder:
        return _SKIPPED_FOLDER.fullmatch(name) is not None
    return name.endswith((".pyc", ".pyo")) or name in _SKIPPED_FILES


def is_code(path: str) -> bool:
    """Whether a file is a module."""
    return path.endswith(".py")


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by its name or its folder's."""
    *folders, name = path.split("/")
    return (
        bool(_TEST_FOLDERS & set(folders))
        or name == "conftest.py"
        or _TEST_FILE.fullmatch(name) is not None
    )


def layout(files: Sequence[str]) -> FileRoles:
    """The modules of the package, the files and folders that pytest is given, and what PYTHONPATH
    gets ("." or "src")."""
    root = "src" if any(path.startswith("src/") for path in files) else "."
    python = [path for path in files if is_code(path)]
    tests = [path for path in python if is_test(path)]
    sources = [path for path in python if path not in set(tests) and _is_source(path, root)]
    started = {os.path.dirname(path) or path for path in tests if _TEST_FILE.fullmatch(_base(path))}
    tops = [t for t in sorted(started) if not any(t.startswith(f"{o}/") for o in started)]
    return FileRoles(sources=tuple(sources), tests=tuple(tops), import_root=root)


def new_file_refused(path: str, *, paths: Sequence[str], files: Collection[str]) -> str:
    """Why a new file beside a task's `paths` is not taken; "" for a new module of their package.

    Below a folder with an `__init__.py` a module can be imported by its full name alone, so it
    stands in for nothing else.
    """
    folder, _, name = path.rpartition("/")
    parts = path.split("/")
    if ".." in parts or not _MODULE.fullmatch(name):
        return "no new module"
    packages = {path.rpartition("/")[0] for path in paths}
    if folder not in packages or f"{folder}/__init__.py" not in files:
        return "no new module of the package"
    if f"{folder}/{name.removesuffix('.py')}/__init__.py" in files:
        return "a package has its name"
    return ""


def check_not_installed(checkout: Checkout, environment: TestEnvironment) -> None:
    """Raise DataError if the interpreter has the repository's package, or a link to it: a player
    could read the answer there, and the tests could run it instead."""
    packages, *_ = interpreter(environment.program).packages
    names = {name.lower() for name in package_names(checkout)}
    for entry in sorted(Path(packages).iterdir()):
        stem = _INSTALLED.sub("", entry.name.lower().replace("-", "_"))
        if stem in names or (entry.suffix == ".pth" and _leads_to(entry, names)):
            raise DataError(
                f"{entry.name} is in its interpreter: an installed copy holds the answers",
                where=environment.program,
                fix="uninstall it there, or let `recompose tasks make` set up an environment",
            )


def package_names(checkout: Checkout) -> frozenset[str]:
    """The names under which a repository's modules are imported: {"shop"}."""
    root = "" if checkout.import_root == "." else f"{checkout.import_root}/"
    inside = [path.removeprefix(root) for path in checkout.sources]
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in inside)


def _leads_to(link: Path, names: set[str]) -> bool:
    """Whether a .pth file names a folder with one of these modules."""
    lines = link.read_text(encoding="utf-8", errors="replace").splitlines()
    folders = [Path(line) for line in lines if line.startswith("/")]
    return any((f / n).is_dir() or (f / f"{n}.py").exists() for f in folders for n in names)


def _is_source(path: str, root: str) -> bool:
    inside = path.removeprefix("src/") if root == "src" else path
    if root == "src" and inside == path:
        return False
    return not _NO_SOURCE & set(path.split("/")[:-1]) and inside not in ("setup.py", "noxfile.py")


def _base(path: str) -> str:
    return path.rpartition("/")[2]
