"""Who owns a call in flight: a process, named so that another one can tell whether it still runs.

Names look like "host:4711:93218417:1f0c9a2e": host, process id, when the process began (ids are used again), and one ledger of it.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from pathlib import Path


def new_owner() -> str:
    """A name for one open ledger of this process."""
    pid = os.getpid()
    return f"{_host()}:{pid}:{_began(pid)}:{secrets.token_hex(4)}"


def owner_is_alive(owner: str) -> bool | None:
    """Whether the process of a name still runs; None where that cannot be known, as on another machine."""
    host, pid, began, _ = owner.rsplit(":", 3)
    if host != _host() or sys.platform == "win32":  # there, signal 0 would end the process
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return _began(int(pid)) == began


def _host() -> str:
    return socket.gethostname().replace(":", "_")


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine started; "" where the system does not tell, or the process is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
