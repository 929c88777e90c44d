"""The only way to ask a model: book the cost first, respect limits, retry, keep every answer.

    asker = Asker(ledger, limits={"openrouter": RateLimits(at_once=8, per_minute=120)})
    bought = await asker.ask(teacher, Request(turns=session.context(7), tools=session.tools))
    bought.reply.turn, bought.usd, bought.now   # now = False: bought earlier, nothing was sent

The calls of a teacher run one at a time until the first is answered, so that a price that is set
too low shows before many are in flight. Each attempt is booked separately: one that timed out may
have been billed, and stays booked when the next one is. If the ceiling leaves no room, the asker
waits for its calls in flight, which mostly cost less than their bookings; it raises BudgetError if
there are none. Raises TeacherError if the last attempt failed.

A teacher with `batch = true` is asked in batches (batch_queue.py): the questions that are pending
at one time go together, each is tried once, and its answer may take a day.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

from composer_replication.core.errors import BudgetError, ComposerError, NoSpaceError, TeacherError
from composer_replication.core.teacher import (
    Bought,
    Price,
    Request,
    Teacher,
    TeacherReply,
    request_key,
)
from composer_replication.data.teachers.batch_queue import BatchQueue, asks_in_batches
from composer_replication.data.teachers.booked_cost import BookedCost, to_nano
from composer_replication.data.teachers.ledger import Busy, Call, Ledger
from composer_replication.data.teachers.openai_compatible import OpenAICompatible

MAX_UNANSWERED_AT_START = 5
"""Stop after this many possibly billed calls without a single answer: the next ones would be lost
too."""
MAX_FAILED_IN_A_ROW = 12
"""Stop after this many failed requests in a row: refusals are assumed to be free of charge, but not
for ever."""
_POLL_S = 0.05
_BOOK_LONGER_S = 60.0
"""The time after its time-out for which a call still counts as in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """The rate limits of one provider; per_minute 0 = no limit.

    Example: RateLimits(at_once=8, per_minute=120)
    """

    at_once: int = 8
    per_minute: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The time-out and number of attempts, with exponential backoff and jitter between them.

    There is no further attempt if the endpoint asks for a longer pause than `longest_wait_s`, or
    for more than `all_waits_s` in total.
    """

    timeout_s: float = 180.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 120.0
    all_waits_s: float = 240.0

    def wait_s(
        self, attempt: int, error: TeacherError, rng: random.Random, *, waited_s: float = 0.0
    ) -> float | None:
        """Return the seconds until the next attempt, or None if there is none.

        The pause that the endpoint asked for is never shortened.

        >>> late = TeacherError("busy", again=True, billed=False, wait_s=7.0)
        >>> 7.0 <= RetryPolicy().wait_s(1, late, random.Random(0)) <= 8.0
        True
        """
        requested_s = error.wait_s or 0.0
        if (
            not error.again
            or attempt >= self.attempts
            or requested_s > self.longest_wait_s
            or waited_s + requested_s > self.all_waits_s
        ):
            return None
        if error.wait_s is not None:
            return error.wait_s + rng.uniform(0.0, self.first_wait_s)
        return min(self.longest_wait_s, self.first_wait_s * 2 ** (attempt - 1)) * rng.uniform(
            0.5, 1.0
        )


class RateLimiter:
    """Limits concurrency and rate of the calls to one provider, and pauses on request."""

    def __init__(self, limits: RateLimits) -> None:
        self._room = asyncio.Semaphore(limits.at_once)
        self._gap_s = 60.0 / limits.per_minute if limits.per_minute else 0.0
        self._next = 0.0
        self._quiet_until = 0.0

    async def __aenter__(self) -> None:
        await self._room.acquire()
        try:
            loop = asyncio.get_running_loop()
            start = max(loop.time(), self._next)
            self._next = start + self._gap_s
            while (wait := max(start, self._quiet_until) - loop.time()) > 0:
                await asyncio.sleep(wait)
        except BaseException:
            self._room.release()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._room.release()

    def pause(self, seconds: float) -> None:
        """Start no call for that many seconds."""
        self._quiet_until = max(self._quiet_until, asyncio.get_running_loop().time() + seconds)


class Asker:
    """Asks teachers through one ledger; create one per event loop.

    Without a ledger it can only ask teachers whose answers are not kept.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        *,
        limits: Mapping[str, RateLimits] | None = None,
        retry_policy: RetryPolicy | None = None,
        seed: int = 0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ledger, self.retry_policy = ledger, retry_policy or RetryPolicy()
        self.report = report
        self.num_batched = 0
        self._queues = dict[str, BatchQueue]()
        self._limits, self._gates = dict(limits or {}), dict[str, RateLimiter]()
        self._rng = random.Random(seed)
        self._in_flight = 0
        self._answered, self._unanswered = set[str](), defaultdict[str, list[TeacherError]](list)
        self._given_up: dict[str, TeacherError] = {}
        self._start_locks, self._failures_in_a_row = (
            dict[str, asyncio.Lock](),
            defaultdict[str, int](int),
        )
        self._call_ended = asyncio.Event()

    def find(self, teacher: Teacher, request: Request) -> Bought | None:
        """Return the answer that was bought earlier, or None; nothing is sent."""
        return (
            self._ledger.find(request_key(teacher, request))
            if self._ledger is not None and teacher.identity
            else None
        )

    async def ask(self, teacher: Teacher, request: Request) -> Bought:
        """Return the answer of one teacher to one request, from the ledger if it is there."""
        if not teacher.identity:
            return Bought(reply=await teacher.ask(request))
        if self._ledger is None:
            raise ValueError(f"{teacher.name} needs a ledger")
        key = request_key(teacher, request)
        if (bought := self._ledger.find(key)) is not None:
            return bought
        if asks_in_batches(teacher):
            if (queue := self._queues.get(teacher.name)) is None:
                queue = BatchQueue(teacher, ledger=self._ledger, asker=self)
                self._queues[teacher.name] = queue
            return await queue.ask(key, request)
        gate = self._gates.setdefault(
            teacher.provider, RateLimiter(self._limits.get(teacher.provider, RateLimits()))
        )
        attempt, waited_s = 0, 0.0
        while True:
            attempt += 1
            try:
                async with self._one_at_a_time_at_first(teacher), gate:
                    return await self._attempt(self._ledger, teacher, request, key)
            except TeacherError as error:
                wait_s = self.retry_policy.wait_s(attempt, error, self._rng, waited_s=waited_s)
                if wait_s is None:
                    raise self.final_error(teacher, error) from None
                if error.wait_s is not None:
                    gate.pause(error.wait_s)
            waited_s += wait_s
            await asyncio.sleep(wait_s)

    async def collect_batches(self, teachers: Sequence[Teacher]) -> None:
        """Collect the batches that earlier runs sent to these teachers' addresses."""
        if self._ledger is None:
            return
        at = {t.settings.base_url: t for t in teachers if isinstance(t, OpenAICompatible)}
        collecting: list[Awaitable[None]] = []
        for batch in self._ledger.open_batches():
            if (teacher := at.get(batch.base_url)) is None:
                self.report(
                    f" {len(batch.calls)} questions to {batch.teacher} are in a batch at"
                    f" {batch.base_url}, and no teacher of this replay can collect it: they stay"
                    " booked"
                )
                continue
            queue = BatchQueue(teacher, ledger=self._ledger, asker=self)
            collecting.append(queue.collect(batch))
        await asyncio.gather(*collecting)

    def drop_pending(self, error: ComposerError) -> None:
        """Send no question that waits for the next batch: the asking has ended with this error."""
        dropped = BudgetError("not asked: the asking has ended", where=error.where, fix=error.fix)
        for queue in self._queues.values():
            queue.drop_pending(dropped)

    @asynccontextmanager
    async def _one_at_a_time_at_first(self, teacher: Teacher) -> AsyncIterator[None]:
        """Hold a teacher's lock during the call, as long as the teacher has not answered yet."""
        lock = self._start_locks.setdefault(teacher.name, asyncio.Lock())
        async with lock:
            if teacher.name not in self._answered:
                yield
                return
        yield

    async def _attempt(
        self, ledger: Ledger, teacher: Teacher, request: Request, key: str
    ) -> Bought:
        booking = await self._reserve(ledger, teacher, request, key)
        if isinstance(booking, Bought):
            return booking
        self._in_flight += 1
        try:
            async with asyncio.timeout(self.retry_policy.timeout_s):
                reply = await teacher.ask(request)
            cost = ledger.settle(booking, reply, price=teacher.price)
        except TimeoutError as error:
            message = f"no answer within {self.retry_policy.timeout_s:g} s"
            ledger.lose(booking, why=message)
            timeout_error = TeacherError(
                message, where=_where(teacher), fix="raise its timeout_s", again=True, billed=True
            )
            raise self._count_unanswered(teacher, timeout_error) from error
        except TeacherError as error:
            raise self.end_call(teacher, booking, error) from None
        # Cancelled, interrupted, or a bug in the teacher's code: it may have been billed.
        except BaseException as error:
            ledger.lose(booking, why=type(error).__name__)
            raise
        finally:
            self._in_flight -= 1
            self.signal_end()
        return self._keep(teacher, booking, reply, cost, key)

    def settle_call(
        self, teacher: Teacher, call: Call, reply: TeacherReply, *, price: Price, key: str
    ) -> Bought:
        """Store and book the answer of a call in a batch; raises as an attempt does."""
        return self._keep(teacher, call, reply, self._book.settle(call, reply, price=price), key)

    def end_call(self, teacher: Teacher, call: Call, error: TeacherError) -> TeacherError:
        """Release or lose a call that brought no answer; return the error to raise."""
        (self._book.lose if error.billed else self._book.free)(call, why=error.what)
        return self._count_unanswered(teacher, error) if error.billed else error

    def _keep(
        self, teacher: Teacher, call: Call, reply: TeacherReply, cost: BookedCost, key: str
    ) -> Bought:
        # The answer is in the ledger from here on, even if the next line ends the asking.
        self._answered.add(teacher.name)
        self._failures_in_a_row[teacher.name] = 0
        if to_nano(cost.usd) - to_nano(call.worst_usd) > 1:  # a billionth is rounding
            raise self._give_up(
                teacher, _above_booking_error(teacher, booked=call.worst_usd, cost=cost)
            )
        return Bought(reply=reply, usd=cost.usd, key=key, whose=cost.whose)

    @property
    def _book(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    @property
    def timeout_s(self) -> float:
        """The time that one request may take."""
        return self.retry_policy.timeout_s

    @property
    def has_plain_calls(self) -> bool:
        """Whether calls outside of batches are in flight: their answers may open questions."""
        return self._in_flight > 0

    async def next_end(self) -> None:
        """Wait until a call or a batch has ended, and may have made room under the ceiling."""
        await self._call_ended.wait()

    def signal_end(self) -> None:
        """Let whoever waits for room under the ceiling try again."""
        self._call_ended.set()
        self._call_ended = asyncio.Event()

    def error_for_all(self, teacher: Teacher) -> TeacherError | None:
        """Return the error for which a teacher is not asked any more, if any."""
        return self._given_up.get(teacher.name)

    def wait_s(self, attempt: int, error: TeacherError) -> float | None:
        """Return the pause before the next attempt at a step that costs nothing, or None."""
        return self.retry_policy.wait_s(attempt, error, self._rng)

    def final_error(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        """Return the error of a request without attempts left, or the one that ends the asking."""
        if error.for_all:  # requests that are waiting need not run into it again
            return self._give_up(teacher, error)
        self._failures_in_a_row[teacher.name] += 1
        if self._failures_in_a_row[teacher.name] < MAX_FAILED_IN_A_ROW:
            return error
        message = (
            f"{MAX_FAILED_IN_A_ROW} requests to {teacher.name} in a row brought no answer, the last"
            f" one: {error.what}"
        )
        fix = error.fix or "look whether the endpoint is up, and run it again"
        return self._give_up(
            teacher,
            TeacherError(
                message, where=error.where, fix=fix, again=False, billed=error.billed, for_all=True
            ),
        )

    def _count_unanswered(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        """Return the error of a possibly billed call, or the one that ends the asking.

        A teacher that has answered once is not ended by it.
        """
        if teacher.name in self._answered:
            return error
        errors = self._unanswered[teacher.name]
        errors.append(error)
        return (
            error
            if len(errors) < MAX_UNANSWERED_AT_START
            else self._give_up(teacher, _none_answered_error(teacher, errors))
        )

    def _give_up(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        return self._given_up.setdefault(teacher.name, error)

    async def _reserve(
        self, ledger: Ledger, teacher: Teacher, request: Request, key: str
    ) -> Call | Bought:
        while True:
            call_ended = self._call_ended
            if (error_for_all := self.error_for_all(teacher)) is not None:
                raise error_for_all
            try:
                booking = ledger.reserve(
                    key,
                    teacher=teacher,
                    request=request,
                    timeout_s=self.retry_policy.timeout_s + _BOOK_LONGER_S,
                )
            except BudgetError as error:
                if not (self._in_flight or self.num_batched):
                    if (
                        not isinstance(error, NoSpaceError)
                        and (unanswered := self._unanswered[teacher.name])
                        and not self._answered
                    ):
                        raise self._give_up(
                            teacher, _none_answered_error(teacher, unanswered)
                        ) from error
                    raise
                # `call_ended` was read before `reserve`, so that no end in between is missed.
                await call_ended.wait()
                continue
            if not isinstance(booking, Busy):
                return booking
            await asyncio.sleep(_POLL_S)


def _where(teacher: Teacher) -> str:
    return f"{teacher.name} at {teacher.provider}"


def _above_booking_error(teacher: Teacher, *, booked: float, cost: BookedCost) -> TeacherError:
    if cost.whose == "ours":
        message = f"{teacher.name} answered with more than was asked for (max_tokens, one choice): "
        message += f"${cost.usd:.6g} by our own count, and ${booked:.6g} was booked"
        fix = (
            "the answer is kept; an endpoint that does not keep max_tokens cannot be held to a"
            " ceiling (see output_field of this teacher)"
        )
    else:
        message = (
            f"{teacher.name} billed ${cost.usd:.6g} for a call that was booked at ${booked:.6g}"
        )
        message += ": its prices are set too low, and no ceiling holds"
        fix = (
            "the answer is kept; set max_input_usd_per_mtok, max_output_usd_per_mtok and"
            " max_request_usd to what it really costs"
        )
    return TeacherError(
        message, where=_where(teacher), fix=fix, again=False, billed=True, for_all=True
    )


def _none_answered_error(teacher: Teacher, errors: Sequence[TeacherError]) -> TeacherError:
    last = errors[-1]
    message = (
        f"the first calls of {teacher.name} ({len(errors)}) brought no answer and may have been"
        f" billed, the last one: {last.what}"
    )
    fix = (
        "look whether its base_url is the address of a chat-completions endpoint; a higher ceiling"
        " does not help"
    )
    return TeacherError(
        message,
        where=last.where or _where(teacher),
        fix=fix,
        again=False,
        billed=True,
        for_all=True,
    )
