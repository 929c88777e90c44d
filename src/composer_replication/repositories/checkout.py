"""A repository as tasks see it: its files, which of them are tests, and a hash of all.

    checkout = read_checkout(Path("shop"))
    checkout.sources            # ("shop/cart.py", ...): what a task may change
    checkout.tests              # ("tests",): what the tests' runner is given
    copy_checkout(checkout, Path("base"))

Only files that belong to the repository are taken: those that git tracks, or, where there is no
git, all but hidden folders and what the language names (caches, build folders, environments).
Nothing else gets into a task: no `.git`, no bytecode, no installed copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder
from composer_replication.repositories.known_languages import DEFAULT_LANGUAGE, load_language

MAX_FILES, MAX_MB = 20_000, 200
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRoles:
    """The roles of a repository's files, as in Checkout."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    import_root: str


class FileRules(Protocol):
    """What a language says of a repository's files (task_language.py has the rest)."""

    name: str
    title: str
    """As people call it: "Python"."""

    def is_left_out(self, name: str, *, folder: bool) -> bool:
        """Whether a folder, or a file, of this name is a cache, a build or an environment, where
        there is no git to say what belongs to the repository."""
        ...

    def is_code(self, path: str) -> bool:
        """Whether a file is one of the language: "shop/cart.py"."""
        ...

    def is_test(self, path: str) -> bool:
        """Whether a file belongs to the tests, by its name or its folder's."""
        ...

    def layout(self, files: Sequence[str]) -> FileRoles:
        """The roles of a repository's files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A repository's files and their roles; paths are relative to `folder`, with slashes.

    `language` is the name of its language; `import_root` is the folder below which its modules are
    found ("." or "src"); `sources` are files of the language that are no tests; `tests` are the
    files and folders that the tests' runner is given; `sha256` is over all files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    import_root: str
    sha256: str
    language: str = DEFAULT_LANGUAGE


def read_checkout(folder: Path, *, name: str = "", language: str = DEFAULT_LANGUAGE) -> Checkout:
    """Read a repository's layout; raises DataError if it has no files of the language, no tests."""
    rules: FileRules = load_language(language)
    folder = folder.resolve()
    if not folder.is_dir():
        raise DataError("no folder", where=str(folder), fix="name a repository's folder")
    files = _files(folder, rules)
    layout = rules.layout(files)
    for what, found in ((f"{rules.title} files", layout.sources), ("tests", layout.tests)):
        if not found:
            raise DataError(
                f"no {what}",
                where=str(folder),
                fix=f"tasks need a {rules.title} package and its tests",
            )
    return Checkout(
        name=name or folder.name,
        folder=folder,
        files=tuple(files),
        sources=layout.sources,
        tests=layout.tests,
        import_root=layout.import_root,
        sha256=tree_sha256(folder, files),
        language=language,
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


def _files(folder: Path, rules: FileRules) -> list[str]:
    if (folder / ".git").exists():
        paths = [text.decode() for text in git(folder, "ls-files", "-z").split(b"\0") if text]
    else:
        paths = []
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(n for n in folders if not _is_left_out(n, rules, folder=True))
            inside = Path(parent).relative_to(folder).as_posix()
            kept = [name for name in names if not _is_left_out(name, rules, folder=False)]
            paths += [name if inside == "." else f"{inside}/{name}" for name in kept]
    kept = [p for p in sorted(paths) if (folder / p).is_file() and not (folder / p).is_symlink()]
    size = sum((folder / path).stat().st_size for path in kept)
    if len(kept) > MAX_FILES or size > MAX_MB << 20:
        raise DataError(
            f"{len(kept)} files, {size >> 20} MB: more than {MAX_FILES} or {MAX_MB} MB",
            where=str(folder),
            fix="name the folder of one package",
        )
    return kept


def _is_left_out(name: str, rules: FileRules, *, folder: bool) -> bool:
    return (folder and name.startswith(".")) or rules.is_left_out(name, folder=folder)
