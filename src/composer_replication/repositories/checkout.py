"""A repository as tasks see it: its files, which of them are tests, and a hash of all.

    checkout = read_checkout(Path("shop"))
    checkout.sources            # ("shop/cart.py", ...): what a task may change
    checkout.tests              # ("tests",): what pytest is given
    copy_checkout(checkout, Path("base"))

Only files that belong to the repository are taken: those that git tracks, or, where there is no
git, all but caches, build folders, environments and hidden folders. Nothing else gets into a task:
no `.git`, no bytecode, no installed copy.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder

MAX_FILES, MAX_MB = 20_000, 200
_LEFT_OUT = re.compile(r"__pycache__|build|dist|node_modules|venv|env|.*\.egg-info|\..+", re.ASCII)
_NO_SOURCE = frozenset(
    ("docs", "doc", "bench", "benchmark", "benchmarks", "examples", "example", "scripts", "bin")
)
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
_TEST_FILE = re.compile(r"(tests?_.*|.*_tests?|tests?)\.py", re.ASCII)
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A repository's files and their roles; paths are relative to `folder`, with slashes.

    `import_root` is what PYTHONPATH gets ("." or "src"); `sources` are Python files that are no
    tests; `tests` are the files and folders that pytest is given; `sha256` is over all files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    import_root: str
    sha256: str


def read_checkout(folder: Path, *, name: str = "") -> Checkout:
    """Read a repository's layout; raises DataError if it has no Python files or no tests."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise DataError("no folder", where=str(folder), fix="name a repository's folder")
    files = _files(folder)
    root = "src" if any(path.startswith("src/") for path in files) else "."
    python = [path for path in files if path.endswith(".py")]
    tests = [path for path in python if is_test(path)]
    sources = [path for path in python if path not in set(tests) and _is_source(path, root)]
    started = {os.path.dirname(path) or path for path in tests if _TEST_FILE.fullmatch(_base(path))}
    tops = [t for t in sorted(started) if not any(t.startswith(f"{o}/") for o in started)]
    for what, found in (("Python files", sources), ("tests", tops)):
        if not found:
            raise DataError(
                f"no {what}", where=str(folder), fix="tasks need a Python package and its tests"
            )
    return Checkout(
        name=name or folder.name,
        folder=folder,
        files=tuple(files),
        sources=tuple(sources),
        tests=tuple(tops),
        import_root=root,
        sha256=tree_sha256(folder, files),
    )


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by its name or its folder's.

    >>> is_test("tests/helpers.py"), is_test("shop/test_cart.py"), is_test("shop/testing_tools.py")
    (True, True, False)
    """
    *folders, name = path.split("/")
    return (
        bool(_TEST_FOLDERS & set(folders))
        or name == "conftest.py"
        or _TEST_FILE.fullmatch(name) is not None
    )


def copy_checkout(checkout: Checkout, target: Path) -> Path:
    """Copy a repository's own files, and nothing else, into a new folder."""
    for path in checkout.files:
        copied = target / path
        make_folder(copied.parent)
        shutil.copyfile(checkout.folder / path, copied)
        shutil.copymode(checkout.folder / path, copied)
    return target


def tree_sha256(folder: Path, files: list[str]) -> str:
    """A hash of names and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        content = hashlib.sha256((folder / path).read_bytes()).hexdigest()
        digest.update(f"{path}\0{content}\n".encode())
    return digest.hexdigest()


def git(folder: Path, *arguments: str) -> bytes:
    """What git prints, without the programs that a repository's own settings could name."""
    try:
        return subprocess.run(
            [*_GIT, *arguments], cwd=folder, capture_output=True, check=True, timeout=120
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", b"") or str(error).encode()
        raise DataError(
            f"git {arguments[0]}: {reason.decode(errors='replace').strip()}", where=str(folder)
        ) from error


def _files(folder: Path) -> list[str]:
    if (folder / ".git").exists():
        paths = [text.decode() for text in git(folder, "ls-files", "-z").split(b"\0") if text]
    else:
        paths = []
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not _LEFT_OUT.fullmatch(name))
            inside = Path(parent).relative_to(folder).as_posix()
            paths += [n if inside == "." else f"{inside}/{n}" for n in names if not _is_cache(n)]
    kept = [p for p in sorted(paths) if (folder / p).is_file() and not (folder / p).is_symlink()]
    size = sum((folder / path).stat().st_size for path in kept)
    if len(kept) > MAX_FILES or size > MAX_MB << 20:
        raise DataError(
            f"{len(kept)} files, {size >> 20} MB: more than {MAX_FILES} or {MAX_MB} MB",
            where=str(folder),
            fix="name the folder of one package",
        )
    return kept


def _is_cache(name: str) -> bool:
    return name.endswith((".pyc", ".pyo")) or name in {".coverage", ".DS_Store"}


def _is_source(path: str, root: str) -> bool:
    inside = path.removeprefix("src/") if root == "src" else path
    if root == "src" and inside == path:
        return False
    return not _NO_SOURCE & set(path.split("/")[:-1]) and inside not in ("setup.py", "noxfile.py")


def _base(path: str) -> str:
    return path.rpartition("/")[2]
