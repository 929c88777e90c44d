"""Foreign code with a time-out, on threads that can be given up: an environment that hangs or
raises costs its own job only.

    with CallPool(num_threads=8) as crew:
        first, second = crew.run([PooledCall(env.open, runs_in="any_thread", timeout_s=5.0), PooledCall(other.open, timeout_s=5.0)])
    first.value                     # what env.open returned, where first.failure is None
    second.failure                  # Failure(late=True, words="no answer within 5 s")

A thread cannot be killed: one whose job is late is left behind with it, as a daemon, and replaced.
Errors of this package pass through, since they are words to the user (a sandbox that is not safe);
whatever else is raised, sys.exit() and its like too, is a failure of its job. The user's own Ctrl-C
is raised in the main thread and nowhere else: there a KeyboardInterrupt goes on at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from composer_replication.core.errors import ComposerError
from composer_replication.rollouts.envs.env import RunsIn

T = TypeVar("T")
MAX_WORDS = 300
"""Characters of a foreign exception that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no value, e.g. Failure(late=False, words="KeyError: 'path'")."""

    late: bool
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T]):
    """What came of a job: a value, or a failure."""

    value: T | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class PooledCall(Generic[T]):
    """A call of foreign code and where it may run; one in the caller's own thread has no
    time-out."""

    call: Callable[[], T]
    runs_in: RunsIn = "one_thread"
    timeout_s: float = 120.0
    begun: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    begun_s: float = 0.0
    value: T | None = None
    error: BaseException | None = None
    words: str = ""

    def run(self) -> None:
        """Carry it out and keep what came of it; the words of an exception are foreign code as
        well, so they are had here, in time."""
        self.begun_s = time.monotonic()
        self.begun.set()
        with _Kept() as kept:
            self.value = self.call()
        self.error = kept.error
        if self.error is not None:
            self.words = _words(self.error)
        self.done.set()

    def outcome(self) -> Outcome[T]:
        """The value or the failure; raises an error of this package as it is."""
        if self.error is None:
            return Outcome(value=self.value)
        if isinstance(self.error, ComposerError):
            raise self.error
        return Outcome(failure=Failure(late=False, words=self.words))


class _Kept:
    """Keeps whatever its block raises: the border behind which code is not ours, so no exception of
    it may go on.

    Only a KeyboardInterrupt in the main thread does: it is the user's Ctrl-C, or cannot be told
    from it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if (
            isinstance(error, KeyboardInterrupt)
            and threading.current_thread() is threading.main_thread()
        ):
            return False
        self.error = error
        return error is not None


class CallPool:
    """Threads for foreign code; `num_left_behind` counts those that were given up."""

    def __init__(self, *, num_threads: int) -> None:
        self.num_threads, self.num_left_behind = num_threads, 0
        self._own: queue.SimpleQueue[PooledCall[Any] | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.put(None)

    def run(self, jobs: Sequence[PooledCall[T]]) -> list[Outcome[T]]:
        """The outcome of each job, in their order; jobs that may run in any thread run at the same
        time, the others one by one."""
        pool: queue.SimpleQueue[PooledCall[T]] = queue.SimpleQueue()
        together = [job for job in jobs if job.runs_in == "any_thread"]
        for job in together:
            pool.put(job)
        for _ in range(min(self.num_threads, len(together))):
            _start(_until_empty, pool)
        late: set[int] = set()
        for number, job in enumerate(jobs):
            if job.runs_in == "caller":
                job.run()
            elif job.runs_in == "one_thread" and not self._in_own_thread(job):
                late.add(number)
        for number, job in enumerate(jobs):
            if job.runs_in == "any_thread" and not _in_time(job):
                late.add(number)
                self.num_left_behind += 1
                _start(_until_empty, pool)  # in place of the thread that is lost
        return [
            (
                Outcome(failure=Failure(late=True, words=f"no answer within {job.timeout_s:g} s"))
                if number in late
                else job.outcome()
            )
            for number, job in enumerate(jobs)
        ]

    def _in_own_thread(self, job: PooledCall[Any]) -> bool:
        """Run a job in the one thread that all such jobs share; False where it was late and the
        thread is lost."""
        if self._own is None:
            self._own = queue.SimpleQueue()
            _start(_until_told, self._own)
        self._own.put(job)
        if _in_time(job):
            return True
        self._own.put(None)  # should it ever come back
        self._own, self.num_left_behind = None, self.num_left_behind + 1
        return False


def _in_time(job: PooledCall[Any]) -> bool:
    """Wait for a job. It begins in time: those before it are done or given up, and each lost thread
    was replaced."""
    job.begun.wait()
    return job.done.wait(max(0.0, job.begun_s + job.timeout_s - time.monotonic()))


def _start(target: Callable[[Any], None], jobs: Any) -> None:
    threading.Thread(target=target, args=(jobs,), daemon=True, name="rollout-tools").start()


def _until_empty(jobs: queue.SimpleQueue[PooledCall[Any]]) -> None:
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return
        job.run()


def _until_told(jobs: queue.SimpleQueue[PooledCall[Any] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()


def _words(error: BaseException) -> str:
    """The name and the first words of an exception; its text is foreign, so it may itself fail to
    be had."""
    words = text = ""
    with _Kept():
        words = f"{type(error).__name__}: "
        text = f"{error}"
    return f"{words}{text}"[:MAX_WORDS]
