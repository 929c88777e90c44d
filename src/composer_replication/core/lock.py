"""A folder that one process at a time may change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_work


@contextmanager
def only_one(folder: Path, *, what: str) -> Iterator[None]:
    """While the block runs no other process changes this folder under the same lock; raises DataError where one does.

    The lock is the folder itself: it ends with the process, however that ends, and leaves no file.
    Example: with only_one(Path("recompose"), what="ingest"): ...
    """
    try:
        import fcntl
    except ImportError:  # Windows: nothing to lock a folder with
        yield
        return
    make_work(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"another {what} is at work on this folder", where=str(folder), fix="wait until it is done") from error
        yield
    finally:
        os.close(descriptor)
