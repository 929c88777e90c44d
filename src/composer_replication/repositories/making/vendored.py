"""Whether a task's answer stands in what the sandbox can read: the interpreter, its packages, and
the rest of the repository.

    index = index_packages(language, language.installed_code(environment), cache=Path("p.txt"))
    holds_answer(index, language, ["total = 0\\n    for item in cart: ..."])

Programs vendor each other: a copy of the repository's own code in another package is the answer,
and so is a twin of the function in the next file. Three lines in a row, without indentation and
comments, are taken as the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from composer_replication.core.files import write_text
from composer_replication.repositories.task_language import Language

_WINDOW = 3
_HASH = 8
_MAX_BYTES = 2 << 20
_SHORTEST = 40
_TWIN = 0.5
"""Functions of a package share idioms: half of the windows make a twin."""


def index_packages(language: Language, files: Iterable[Path], *, cache: Path) -> frozenset[str]:
    """The three-line windows of some files, as hashes.

    They are kept in a file: reading the standard library takes seconds.
    """
    if cache.exists():
        return frozenset(cache.read_text(encoding="ascii").split())
    index: set[str] = set()
    for path in files:
        if path.stat().st_size <= _MAX_BYTES:
            text = path.read_text(encoding="utf-8", errors="replace")
            index.update(_windows(language, text))
    write_text(cache, "\n".join(sorted(index)))
    return frozenset(index)


def holds_answer(index: frozenset[str], language: Language, removed: Sequence[str]) -> bool:
    """Whether a part of a removed text stands in an indexed file."""
    return any(window in index for text in removed for window in _windows(language, text))


class TwinIndex:
    """The three-line windows of a repository's code, by file."""

    def __init__(self, language: Language, folder: Path, files: Iterable[str]) -> None:
        self._language = language
        self._windows = {
            path: self._of((folder / path).read_text(encoding="utf-8", errors="replace"))
            for path in files
            if language.is_code(path)
        }

    def has_twin(self, removed: Sequence[str], *, path: str, changed: str) -> bool:
        """Whether a removed text of `path` stands elsewhere in the repository too; `changed` is
        the rest of its file."""
        others = {**self._windows, path: self._of(changed)}
        for text in removed:
            windows = self._of(text)
            if windows and any(len(windows & o) >= _TWIN * len(windows) for o in others.values()):
                return True
        return False

    def _of(self, text: str) -> frozenset[str]:
        return frozenset(_windows(self._language, text))


def _windows(language: Language, text: str) -> Iterator[str]:
    """A hash of each three lines of code in a row; lines that say little do not count alone."""
    lines = list(language.code_lines(text))
    for start in range(len(lines) - _WINDOW + 1):
        window = "\n".join(lines[start : start + _WINDOW])
        if len(window) >= _SHORTEST:
            yield blake2b(window.encode(), digest_size=_HASH).hexdigest()
