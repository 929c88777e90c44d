"""Who owns a call in flight, or a folder's replay: a process, named so that another one can tell
whether it still runs.

Names look like "host:4711:93218417:1f0c9a2e": host, process id, when the process began (ids are
used again), and one ledger of it.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder
from composer_replication.core.lock import is_running, process_start, try_lock

_NAME = re.compile(r".+:\d+:\d*:[0-9a-f]+")


def new_owner() -> str:
    """A name for one open ledger of this process."""
    pid = os.getpid()
    return f"{_host()}:{pid}:{process_start(pid)}:{secrets.token_hex(4)}"


def owner_is_alive(owner: str) -> bool | None:
    """Whether the process of a name still runs; None where that cannot be known, as on another
    machine."""
    host, pid, since, _ = owner.rsplit(":", 3)
    if host != _host() or sys.platform == "win32":  # there, signal 0 would end the process
        return None
    return is_running(int(pid), since)


def _host() -> str:
    return socket.gethostname().replace(":", "_")


@contextmanager
def held_alone(path: Path, *, what: str) -> Iterator[None]:
    """While the block runs no other process holds this file; raises DataError, which names the
    process, if one does.

    The file is removed at the end. One that a dead process left is taken over. Money is at stake
    here, so an owner of whom nobody knows whether it lives (it is of another machine, and the file
    system has no locks) holds the file until somebody removes it: core.lock.only_one, which guards
    files of our own, takes such a folder over.
    Example: with held_alone(Path("recompose/.replay.lock"), what="replay"): ...
    """
    make_folder(path.parent)
    descriptor = _claimed(path, what)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, new_owner().encode("utf-8"), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _claimed(path: Path, what: str) -> int:
    """The open file, locked; the system lets go of the lock when its process ends, however it
    ends."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        owner = os.pread(descriptor, 4096, 0).decode("utf-8", "replace")
        if not _is_free(descriptor, owner):
            os.close(descriptor)
            pid = owner.rsplit(":", 3)[1] if _NAME.fullmatch(owner) else "?"
            fix = f"wait until process {pid} is done; where none runs, remove this file"
            raise DataError(
                f"another {what} is at work on this folder: process {pid}", where=str(path), fix=fix
            )
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # its holder ended and removed it in between


def _is_free(descriptor: int, owner: str) -> bool:
    """Whether nobody holds an open file; from then on we do."""
    locked = try_lock(descriptor)
    if locked is None:
        return not _NAME.fullmatch(owner) or owner_is_alive(owner) is False
    return locked
