"""Starts the processes of episode trees: one small process that forks a room for each.

    room = room_launcher().start(specification)
    room.send({"do": "read", "path": "/repo/a.py", "most": 1000})
    room.receive(wait_s=10)             # the answer, or None
    room.kill()

The launcher is shared by everything in this process, and ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.tree_sandbox import (
    BARE,
    NO_WALLS,
    as_descriptor,
    check_platform,
    start_code,
)

_MOST_ANSWER = 64 << 20
_MOST_ERROR = 4096


@dataclass(slots=True)
class RoomProcess:
    """A process behind walls and the conversation with it."""

    conversation: socket.socket
    errors: int
    process: int
    """A descriptor of the process outside of the walls; they fall with it, and all inside ends."""
    _buffer: bytes = field(default=b"", init=False, repr=False)

    def send(self, request: Mapping[str, Any]) -> bool:
        """Send a request; False if the process has ended."""
        try:
            self.conversation.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, *, wait_s: float) -> dict[str, Any] | None:
        """The next answer; None if there is none in time, or no process."""
        end = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            ready = _is_ready(self.conversation.fileno(), wait_s=end - time.monotonic())
            try:
                part = self.conversation.recv(1 << 20) if ready else b""
            except OSError:
                return None
            if not part or len(self._buffer) > _MOST_ANSWER:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def kill(self) -> str:
        """End the process and everything inside; what it said of an error."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        _is_ready(self.process, wait_s=10.0)
        self.conversation.close()
        os.set_blocking(self.errors, False)
        try:
            text = os.read(self.errors, _MOST_ERROR)
        except BlockingIOError:
            text = b""
        for descriptor in (self.process, self.errors):
            os.close(descriptor)
        return text.decode(errors="replace").strip()


def _is_ready(descriptor: int, *, wait_s: float) -> bool:
    """Whether a descriptor can be read within a time; its number may be above `select`'s 1024."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, round(1000 * wait_s))))


class RoomLauncher:
    """The process that forks rooms; `start` may be called from any thread."""

    def __init__(self) -> None:
        check_platform()
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            start = start_code("episode_room", "launch_rooms")
            self._process = subprocess.Popen(
                [sys.executable, *BARE, start, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Whether it can start rooms."""
        return self._process.poll() is None

    def start(self, specification: Mapping[str, Any]) -> RoomProcess:
        """Start a room; whether its walls stand is said by its first answer."""
        ours, theirs = socket.socketpair()
        errors, written = os.pipe()
        passed = (as_descriptor(specification), theirs.fileno(), written)
        try:
            with self._lock:
                socket.send_fds(self._socket, [b"room"], passed)
                _, process, _, _ = socket.recv_fds(self._socket, 16, 1)
        except OSError as error:
            raise SandboxError(str(error), where="the rooms' launcher", fix=NO_WALLS) from error
        finally:
            theirs.close()
            os.close(passed[0])
            os.close(written)
        if not process:
            raise SandboxError("it has ended", where="the rooms' launcher", fix=NO_WALLS)
        return RoomProcess(ours, errors, process[0])


def room_launcher() -> RoomLauncher:
    """This process's launcher; a new one if it was lost."""
    with _STARTING:
        launcher = _launcher(os.getpid())
        if not launcher.is_alive():
            _launcher.cache_clear()
            launcher = _launcher(os.getpid())
        return launcher


_STARTING = threading.Lock()


@functools.lru_cache(maxsize=1)
def _launcher(process: int) -> RoomLauncher:
    del process  # a fork of this process shares no launcher with it
    return RoomLauncher()
