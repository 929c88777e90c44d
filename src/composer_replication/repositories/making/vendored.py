"""Whether a task's answer stands in what the sandbox can read: the interpreter, its packages, and
the rest of the repository.

    index = index_packages(interpreter(python).packages, cache=Path("packages.txt"))
    holds_answer(index, ["total = 0\\n    for item in cart: ..."])

Programs vendor each other: a copy of the repository's own code in another package is the answer,
and so is a twin of the function in the next file. Three lines in a row, without indentation and
comments, are taken as the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from composer_replication.core.files import write_text

_WINDOW = 3
_HASH = 8
_MAX_BYTES = 2 << 20
_SHORTEST = 40
_TWIN = 0.5
"""Functions of a package share idioms: half of the windows make a twin."""
_LEFT_OUT = ("test/", "site-packages/")
"""Below the standard library: its tests, and packages that an environment hides."""


def index_packages(folders: Sequence[str], *, cache: Path) -> frozenset[str]:
    """The three-line windows of every Python file below some folders, as hashes.

    They are kept in a file: reading the standard library takes seconds.
    """
    if cache.exists():
        return frozenset(cache.read_text(encoding="ascii").split())
    index: set[str] = set()
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            inside = path.relative_to(folder).as_posix()
            if path.stat().st_size <= _MAX_BYTES and not inside.startswith(_LEFT_OUT):
                index.update(_windows(path.read_text(encoding="utf-8", errors="replace")))
    write_text(cache, "\n".join(sorted(index)))
    return frozenset(index)


def holds_answer(index: frozenset[str], removed: Sequence[str]) -> bool:
    """Whether a part of a removed text stands in an indexed file."""
    return any(window in index for text in removed for window in _windows(text))


class TwinIndex:
    """The three-line windows of a repository's Python files, by file."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self._windows = {
            path: frozenset(_windows((folder / path).read_text(encoding="utf-8", errors="replace")))
            for path in files
            if path.endswith(".py")
        }

    def has_twin(self, removed: Sequence[str], *, path: str, changed: str) -> bool:
        """Whether a removed text of `path` stands elsewhere in the repository too; `changed` is
        the rest of its file."""
        others = {**self._windows, path: frozenset(_windows(changed))}
        for text in removed:
            windows = set(_windows(text))
            if windows and any(len(windows & o) >= _TWIN * len(windows) for o in others.values()):
                return True
        return False


def _windows(text: str) -> Iterator[str]:
    """A hash of each three lines of code in a row; lines that say little do not count alone."""
    lines = [plain for line in text.splitlines() if (plain := line.split("#")[0].strip())]
    for start in range(len(lines) - _WINDOW + 1):
        window = "\n".join(lines[start : start + _WINDOW])
        if len(window) >= _SHORTEST:
            yield blake2b(window.encode(), digest_size=_HASH).hexdigest()
