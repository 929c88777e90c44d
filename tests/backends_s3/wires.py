"""Hosts of their own on this machine: network namespaces, joined by wires with a delay, a loss and
a bandwidth, that can be cut and healed.

    with Hosts.make(2) as hosts:             # a server's namespace and two replicas'
        hosts.wires[1].is_cut = True         # the second replica's packets are lost from now on

A wire is a TUN device in each of two namespaces; a thread of this process reads the packets of
one, and drops them, or writes them to the other when it is time, as `tc netem` does (a kernel need
not have netem; TUN it has, or the tests are skipped). The namespaces have no other way out, so
nothing outside this machine can be addressed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SERVER = "192.0.2.1"  # a range that is reserved for documentation (RFC 5737)
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_QUEUED = 1000
STEP_S = 0.1  # a wire that is taken up is still this long


class NotPermittedError(Exception):
    """Namespaces or TUN devices cannot be made here."""


@dataclass(slots=True)
class Wire:
    """What lies between a replica and the server, the same in both directions."""

    delay_s: float
    loss: float
    bytes_s: float
    is_cut: bool = False
    passed: int = 0
    dropped: int = 0
    _ends: list[int] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _is_up: threading.Event = field(default_factory=threading.Event)

    def lay(self, ends: Sequence[int], seed: int) -> None:
        """Carry packets between two TUN devices, in threads, until `take_up`."""
        self._ends = list(ends)
        for number, (source, target) in enumerate((ends, ends[::-1])):
            waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(_QUEUED)
            rng = random.Random(2 * seed + number)
            self._threads += [
                threading.Thread(target=self._read, args=(source, waiting, rng), daemon=True),
                threading.Thread(target=self._write, args=(target, waiting), daemon=True),
            ]
        for thread in self._threads:
            thread.start()

    def take_up(self) -> None:
        """Remove both devices, once nothing reads or writes them any more: their numbers are given
        to the next files, a pipe of another test for one, whose bytes would be lost here."""
        self._is_up.set()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            os.close(end)

    def _read(
        self, source: int, waiting: queue.Queue[tuple[float, bytes]], rng: random.Random
    ) -> None:
        free_at = 0.0
        while not self._is_up.is_set():
            if not select.select([source], [], [], STEP_S)[0]:
                continue
            packet = os.read(source, 1 << 16)
            if self.is_cut or rng.random() < self.loss or waiting.full():
                self.dropped += 1
                continue
            free_at = max(free_at, time.monotonic()) + len(packet) / self.bytes_s
            waiting.put((free_at + self.delay_s, packet))
            self.passed += 1

    def _write(self, target: int, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        while not self._is_up.is_set():
            with contextlib.suppress(queue.Empty):
                at, packet = waiting.get(timeout=STEP_S)
                time.sleep(max(0.0, at - time.monotonic()))
                with contextlib.suppress(OSError):  # a device that is going down takes none
                    os.write(target, packet)


@dataclass(slots=True)
class Hosts:
    """A server's namespace, one for each replica, and their wires."""

    names: list[str]
    wires: list[Wire]

    @classmethod
    @contextlib.contextmanager
    def make(
        cls, replicas: int, *, delay_s: float = 0.0, loss: float = 0.0, bytes_s: float = 1e9
    ) -> Iterator[Hosts]:
        """Namespaces whose wires are in place; raises NotPermittedError."""
        prefix = f"recompose{os.getpid()}-"
        hosts = cls([f"{prefix}server"], [])
        try:
            _ip("netns", "add", hosts.names[0])
            _ip("-n", hosts.names[0], "link", "set", "lo", "up")
            for number in range(replicas):
                hosts.names.append(f"{prefix}{number}")
                _ip("netns", "add", hosts.names[-1])
                _ip("-n", hosts.names[-1], "link", "set", "lo", "up")
                wire = Wire(delay_s, loss, bytes_s)
                hosts.wires.append(wire)
                wire.lay(_two_ends(hosts.names[0], hosts.names[-1], number), number)
            yield hosts
        finally:
            for wire in hosts.wires:
                wire.take_up()
            for name in hosts.names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def command(self, host: int, *argv: str) -> list[str]:
        """A command line that runs on a host: 0 is the server, 1 the first replica."""
        return ["ip", "netns", "exec", self.names[host], *argv]

    def ways_out(self, host: int) -> list[str]:
        """The routes of a host, one line each."""
        return _ip("-n", self.names[host], "route").splitlines()


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise NotPermittedError("there is no `ip` (iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise NotPermittedError(f"ip {' '.join(words)}: {error.stderr.strip()}") from error
    return done.stdout


def _two_ends(server: str, replica: str, number: int) -> tuple[int, int]:
    """A TUN device in each namespace, with the addresses of both."""
    device, address = f"wire{number}", f"192.0.2.{10 + number}"
    ends: list[int] = []
    for name, mine, other in ((server, SERVER, address), (replica, address, SERVER)):
        ends.append(_tun(name, device))
        _ip("-n", name, "addr", "add", mine, "peer", other, "dev", device)
        _ip("-n", name, "link", "set", device, "up")
    return ends[0], ends[1]


def _tun(namespace: str, device: str) -> int:
    """The file of a new TUN device in a namespace; only a thread of ours goes there."""
    made: list[int | OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            with Path("/run/netns", namespace).open() as there:
                if libc.setns(there.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns")
            tun = os.open("/dev/net/tun", os.O_RDWR)
            request = struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI)
            fcntl.ioctl(tun, _TUNSETIFF, request.ljust(40, b"\0"))
            made.append(tun)
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise NotPermittedError(f"no TUN device in a namespace: {made[0]}")
    return made[0]
