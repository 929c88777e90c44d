"""Lock a folder, so that only one process at a time changes it, and name the process that does.

    with lock_folder(run.path, task="launch of this run") as before:  # `before` died there, or None
        ...
    owner_of(run.path)               # the process at work there, as far as this machine can tell

The lock is on the folder itself: the system releases it when the process ends, however it ends. The
owner is named in .owner.json: its process id, its start time (ids are reused), its host, and since
when it holds the folder. The folder of a dead owner is taken over.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from composer_replication.core.errors import BusyError
from composer_replication.core.files import is_alive, make_folder, write_text

try:
    import fcntl
except ImportError:  # Windows: the owner's name alone tells
    fcntl = None

OWNER = ".owner.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that works on a folder; `began` is its start in clock ticks since boot, or ""."""

    pid: int
    began: str
    host: str
    since: str

    def text(self) -> str:
        """The owner in words, for an error.

        >>> Owner(pid=4711, began="93218417", host="box", since="2026-11-20T14:02:11+00:00").text()
        'process 4711 on box, since 2026-11-20T14:02:11+00:00'
        """
        return f"process {self.pid} on {self.host}, since {self.since}"

    def is_at_work(self) -> bool:
        """Whether it runs on this machine; False for a process of another machine."""
        return self.host == platform.node() and is_running(self.pid, self.began)


def is_running(pid: int, started: str) -> bool:
    """Whether the process with this id and start time still runs. Ids are reused, so the id alone
    does not identify a process."""
    return is_alive(pid) and process_start(pid) == started


def process_start(pid: int) -> str:
    """When a process started; "" if the system does not say, or the process is a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text("ascii", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@contextmanager
def lock_folder(folder: Path, *, task: str) -> Iterator[Owner | None]:
    """Hold the lock of a folder while the block runs; raises BusyError, which names its holder.

    Yields the previous owner if it died while it held the lock, else None.
    Example: with lock_folder(Path("recompose"), task="ingest"): ...
    """
    make_folder(folder)
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if not _taken(folder, descriptor):
            raise _busy(folder, task=task)
        before, now = _read(folder), datetime.now(UTC).isoformat(timespec="seconds")
        owner = Owner(
            pid=os.getpid(), began=process_start(os.getpid()), host=platform.node(), since=now
        )
        write_text(folder / OWNER, json.dumps(asdict(owner)) + "\n")
        try:
            yield before
        finally:
            (folder / OWNER).unlink(missing_ok=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def owner_of(folder: Path) -> Owner | None:
    """The process at work on a folder, as far as this machine can tell; None if there is none."""
    owner = _read(folder)
    return owner if owner is not None and owner.is_at_work() else None


def check_free(folder: Path, *, task: str) -> None:
    """Raise BusyError if a process of this machine is at work on a folder."""
    if owner_of(folder) is not None:
        raise _busy(folder, task=task)


def _busy(folder: Path, *, task: str) -> BusyError:
    """The error for the process that comes second."""
    owner = _read(folder)
    who = f": {owner.text()}" if owner is not None else ""
    return BusyError(
        f"another {task} is at work on this folder{who}",
        where=str(folder),
        fix="wait until it is done, or end it",
    )


def _taken(folder: Path, descriptor: int | None) -> bool:
    """Take the lock; False if another process holds it."""
    locked = None if descriptor is None else try_lock(descriptor)
    return owner_of(folder) is None if locked is None else locked


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder until its process ends, however it ends; False if another process
    holds it, None if the system or its file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _read(folder: Path) -> Owner | None:
    """The owner in .owner.json; None if there is no such file, or it is damaged."""
    try:
        return Owner(**json.loads((folder / OWNER).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
