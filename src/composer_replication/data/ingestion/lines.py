"""Lines of a log, read in bounded pieces: a line that is too long is counted, never held."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

BUFFER_BYTES = 2**17


@dataclass(slots=True)
class LineReader:
    """The non-blank lines of a file with their numbers; a line that is too long is None.

    After the iteration, `sha256` is the hash of the file ("" unless asked for), `unfinished` the
    number of a last line without a newline (0 = none), and `binary` whether a NUL byte was found
    near the beginning. A line is too long if it has more than `max_line_bytes`; no more than that
    many bytes of it are ever in memory.

    Example: b'{"a":1}\\n\\n{"b"' -> (1, b'{"a":1}\\n'), (3, b'{"b"'); unfinished = 3
    """

    path: Path
    max_line_bytes: int
    hashed: bool = True
    sha256: str = ""
    unfinished: int = 0
    binary: bool = False

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        digest = hashlib.sha256()
        with self.path.open("rb", buffering=0) as file:
            source: io.RawIOBase = _Hashing(file, digest) if self.hashed else file
            stream = io.BufferedReader(source, BUFFER_BYTES)
            self.binary = b"\0" in stream.peek(1)
            limit, readline = self.max_line_bytes, stream.readline
            for number, line in enumerate(iter(partial(readline, limit), b""), 1):
                if line[-1] == 10:
                    if not line.isspace():
                        yield number, line
                elif len(line) == limit:
                    if not _skip_line(readline):
                        self.unfinished = number
                    yield number, None
                elif not line.isspace():  # the last line, without a newline
                    self.unfinished = number
                    yield number, line
        self.sha256 = digest.hexdigest() if self.hashed else ""


def _skip_line(readline: Callable[[int], bytes]) -> bool:
    """Skip to the end of the line; returns False if the file ends first."""
    while piece := readline(BUFFER_BYTES):
        if piece[-1] == 10:
            return True
    return False


class _Hashing(io.RawIOBase):
    """A file that adds every byte read to a digest."""

    def __init__(self, raw: io.RawIOBase, digest: Any) -> None:
        self._raw, self._update = raw, digest.update

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        if count:
            self._update(memoryview(buffer)[:count])
        return count
