"""A simulated store, network and clock, in which the real exchange runs in threads.

    world = Simulation()
    world.start(lambda clock: replica(clock, SimulatedStore(world, clock, link=Link(), seed=1)))
    world.run()                        # simulated seconds pass as fast as the code runs

Exactly one thread runs at a time: whoever sleeps hands on to the one that wakes up next, so a run
is the same for the same seed. A request takes its latency, its bytes over the replica's own link,
and its retries after failures; a blob appears the moment its upload ends.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from composer_replication.training.diloco.blob_store import Traffic
from composer_replication.training.diloco.clock import Clock

_STACK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One replica's way to the store.

    `latency_s` is the median of a log-normal request time with `latency_spread` (sigma of its
    logarithm); `failure` the share of requests that fail and are sent again a second later.
    `work_bytes_s` is how fast the replica packs, hashes and unpacks what it sends or receives.
    """

    latency_s: float = 0.03
    latency_spread: float = 0.3
    up_bytes_s: float = 125e6
    down_bytes_s: float = 125e6
    failure: float = 0.0
    work_bytes_s: float = math.inf


class Simulation:
    """The simulated time, the threads that live in it, and the blobs of its store."""

    def __init__(self) -> None:
        self.now = 0.0
        self.blobs: dict[str, bytes] = {}
        self.errors: list[BaseException] = []
        self._folders: dict[str, list[str]] = {}
        self._listings: dict[str, tuple[str, ...]] = {}
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._count = 0
        self._done = _taken_lock()

    def start(self, body: Callable[[SimulatedClock], object], *, at: float = 0.0) -> None:
        """Let a thread run `body` from the simulated second `at` on; it begins in `run`."""
        turn = self._enter(at)

        def live() -> None:
            turn.acquire()
            try:
                body(SimulatedClock(self))
            except BaseException as error:  # noqa: BLE001 - raised by `run` in the caller's thread
                self.errors.append(error)
            self._hand_on()

        before = threading.stack_size(_STACK_BYTES)
        threading.Thread(target=live, daemon=True).start()
        threading.stack_size(before)

    def run(self) -> None:
        """Let time pass until every thread has ended; raises the first error of one."""
        self._hand_on()
        self._done.acquire()
        if self.errors:
            raise self.errors[0]

    def sleep(self, seconds: float) -> None:
        """Let the calling thread sleep in simulated time."""
        at = self.now + max(0.0, seconds)
        if not self._waiting or at < self._waiting[0][0]:
            self.now = at  # nobody wakes up before: no other thread has to run
            return
        turn = self._enter(at)
        self._hand_on()
        turn.acquire()

    def keep(self, key: str, data: bytes) -> bytes:
        """Let a blob stand under a key, unless one does; returns the one that does."""
        if key in self.blobs:
            return self.blobs[key]
        self.blobs[key] = data
        for folder in _folders_of(key):
            bisect.insort(self._folders.setdefault(folder, []), key)
            self._listings.pop(folder, None)
        return data

    def remove(self, key: str) -> None:
        """Take a blob away."""
        if self.blobs.pop(key, None) is None:
            return
        for folder in _folders_of(key):
            keys = self._folders[folder]
            del keys[bisect.bisect_left(keys, key)]
            self._listings.pop(folder, None)

    def below(self, folder: str) -> Sequence[str]:
        """The keys below a folder now, sorted."""
        if folder not in self._listings:
            self._listings[folder] = tuple(self._folders.get(folder, ()))
        return self._listings[folder]

    def _enter(self, at: float) -> threading.Lock:
        turn = _taken_lock()
        self._count += 1
        heapq.heappush(self._waiting, (at, self._count, turn))
        return turn

    def _hand_on(self) -> None:
        if not self._waiting:
            self._done.release()
            return
        self.now, _, turn = heapq.heappop(self._waiting)
        turn.release()


def _taken_lock() -> threading.Lock:
    """A lock that another thread will release."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _folders_of(key: str) -> list[str]:
    """The folders that a key is below.

    >>> _folders_of("rounds/000000/commit.json")
    ['rounds', 'rounds/000000']
    """
    parts = key.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


class SimulatedClock(Clock):
    """The clock of the exchange in a simulated world."""

    def __init__(self, world: Simulation) -> None:
        self.world = world

    def monotonic(self) -> float:
        """Simulated seconds."""
        return self.world.now

    def sleep(self, seconds: float) -> None:
        """Wait in simulated time."""
        self.world.sleep(seconds)


@dataclass(slots=True)
class SimulatedStore:
    """A BlobStore over one replica's link; pseudo-gradients count `scale` times their bytes, and
    whole float32 states and means `dense_scale` times."""

    world: Simulation
    link: Link
    seed: int
    scale: float = 1.0
    dense_scale: float = 1.0
    traffic: Traffic = field(default_factory=Traffic)
    retries: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def create(self, key: str, data: bytes) -> bool:
        """Upload a blob; whether the blob that stands there afterwards is this one."""
        size = self._size(key, data)
        self.traffic.puts += 1
        self.traffic.bytes_up += size
        self._wait(size, self.link.up_bytes_s)
        return self.world.keep(key, bytes(data)) == data

    def get(self, key: str) -> bytes | None:
        """Download a blob, or find that there is none."""
        data = self.world.blobs.get(key)
        size = 0 if data is None else self._size(key, data)
        self.traffic.gets += 1
        self.traffic.bytes_down += size
        self._wait(size, self.link.down_bytes_s)
        return data

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below a folder when the request arrives; a page has a thousand of them."""
        keys = self.world.below(prefix)
        pages = max(1, math.ceil(len(keys) / 1000))
        self.traffic.lists += pages
        for _ in range(pages):
            self._wait(0, math.inf)
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        """Remove blobs; nobody waits for it."""
        for key in keys:
            self.traffic.deletes += 1
            self.world.remove(key)

    def _size(self, key: str, data: bytes) -> int:
        if "/delta/" in key:
            return round(len(data) * self.scale)
        dense = "/merged." in key or "/sum/" in key or key.startswith("anchors/")
        return round(len(data) * self.dense_scale) if dense else len(data)

    def _wait(self, size: int, bytes_s: float) -> None:
        link = self.link
        seconds = link.latency_s * math.exp(self._random.gauss(0.0, link.latency_spread))
        while self._random.random() < link.failure:
            self.retries += 1
            seconds += 1.0 + link.latency_s
        self.world.sleep(seconds + size / bytes_s + size / link.work_bytes_s)
