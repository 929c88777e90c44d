"""Foreign code with a time-out, on threads that can be abandoned.

An environment that hangs or raises costs only its own call.

    with CallPool(num_threads=8) as pool:
        first, second = pool.run([
            PooledCall(env.open, runs_in="any_thread", timeout_s=5.0),
            PooledCall(other.open, timeout_s=5.0),
        ])
    first.value                     # what env.open returned, if first.failure is None
    second.failure                  # Failure(late=True, reason="no answer within 5 s")

A thread cannot be killed: a thread whose call is late is abandoned as a daemon, together with the
call, and replaced. Errors of this package pass through, since they are addressed to the user (a
sandbox that is not safe); any other exception, including sys.exit(), is a failure of its call. The
user's own Ctrl-C is raised in the main thread and nowhere else: there a KeyboardInterrupt
propagates at once.
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
MAX_ERROR_CHARS = 300
"""Characters of a foreign exception that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a call has no value, e.g. Failure(late=False, reason="KeyError: 'path'")."""

    late: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[T]):
    """The outcome of a call: a value, or a failure."""

    value: T | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class PooledCall(Generic[T]):
    """A call of foreign code and the thread it may run in.

    In the caller's own thread it has no time-out.
    """

    call: Callable[[], T]
    runs_in: RunsIn = "one_thread"
    timeout_s: float = 120.0
    started: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    started_s: float = 0.0
    value: T | None = None
    error: BaseException | None = None
    error_text: str = ""

    def run(self) -> None:
        """Run the call and keep its value or exception.

        The text of an exception comes from foreign code as well, so it is read here, within the
        time-out.
        """
        self.started_s = time.monotonic()
        self.started.set()
        with _CatchAll() as caught:
            self.value = self.call()
        self.error = caught.error
        if self.error is not None:
            self.error_text = _error_text(self.error)
        self.finished.set()

    def outcome(self) -> Outcome[T]:
        """The value or the failure; an error of this package is raised as it is."""
        if self.error is None:
            return Outcome(value=self.value)
        if isinstance(self.error, ComposerError):
            raise self.error
        return Outcome(failure=Failure(late=False, reason=self.error_text))


class _CatchAll:
    """Catches whatever its block raises: foreign code runs in it, and no exception may leave it.

    The only exception is a KeyboardInterrupt in the main thread: it is, or cannot be told from, the
    user's Ctrl-C.
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
    """Threads for foreign code; `num_left_behind` counts the abandoned ones."""

    def __init__(self, *, num_threads: int) -> None:
        self.num_threads, self.num_left_behind = num_threads, 0
        self._shared_thread: queue.SimpleQueue[PooledCall[Any] | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared_thread is not None:
            self._shared_thread.put(None)

    def run(self, calls: Sequence[PooledCall[T]]) -> list[Outcome[T]]:
        """The outcome of each call, in their order.

        Calls that may run in any thread run at the same time, the others one by one.
        """
        waiting: queue.SimpleQueue[PooledCall[T]] = queue.SimpleQueue()
        any_thread = [call for call in calls if call.runs_in == "any_thread"]
        for call in any_thread:
            waiting.put(call)
        for _ in range(min(self.num_threads, len(any_thread))):
            _start_thread(_run_until_empty, waiting)
        late: set[int] = set()
        for number, call in enumerate(calls):
            if call.runs_in == "caller":
                call.run()
            elif call.runs_in == "one_thread" and not self._in_own_thread(call):
                late.add(number)
        for number, call in enumerate(calls):
            if call.runs_in == "any_thread" and not _in_time(call):
                late.add(number)
                self.num_left_behind += 1
                _start_thread(_run_until_empty, waiting)  # replaces the abandoned thread
        return [
            (
                Outcome(failure=Failure(late=True, reason=f"no answer within {call.timeout_s:g} s"))
                if number in late
                else call.outcome()
            )
            for number, call in enumerate(calls)
        ]

    def _in_own_thread(self, call: PooledCall[Any]) -> bool:
        """Run a call in the one thread that all such calls share.

        False if it was late; the thread is then abandoned.
        """
        if self._shared_thread is None:
            self._shared_thread = queue.SimpleQueue()
            _start_thread(_run_until_stopped, self._shared_thread)
        self._shared_thread.put(call)
        if _in_time(call):
            return True
        self._shared_thread.put(None)  # ends the thread if it ever comes back
        self._shared_thread, self.num_left_behind = None, self.num_left_behind + 1
        return False


def _in_time(call: PooledCall[Any]) -> bool:
    """Wait for a call; False if it is late.

    It is sure to start: the calls before it finish or are abandoned, and each abandoned thread is
    replaced.
    """
    call.started.wait()
    return call.finished.wait(max(0.0, call.started_s + call.timeout_s - time.monotonic()))


def _start_thread(target: Callable[[Any], None], calls: Any) -> None:
    threading.Thread(target=target, args=(calls,), daemon=True, name="rollout-tools").start()


def _run_until_empty(calls: queue.SimpleQueue[PooledCall[Any]]) -> None:
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            return
        call.run()


def _run_until_stopped(calls: queue.SimpleQueue[PooledCall[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()


def _error_text(error: BaseException) -> str:
    """The name and the first words of an exception.

    Its text is foreign code, so reading it may itself fail.
    """
    prefix = text = ""
    with _CatchAll():
        prefix = f"{type(error).__name__}: "
        text = f"{error}"
    return f"{prefix}{text}"[:MAX_ERROR_CHARS]
