"""The only way to ask a model: the money is booked first, limits are kept, what fails is tried
again, every answer is kept.

    asker = Asker(ledger, limits={"openrouter": RateLimits(at_once=8, per_minute=120)})
    bought = await asker.ask(teacher, Request(turns=session.context(7), tools=session.tools))
    bought.reply.turn, bought.usd, bought.now         # now = False: it was bought earlier, and nothing was sent

The first call of each teacher goes alone, until one of them is answered: a price that is set too
low shows before many are in flight. Each attempt is booked on its own: one that timed out may have
been billed, and stays booked when the next one is. Where the ceiling leaves no room, the asker
waits for its own calls in flight, which mostly cost less than was booked for them; BudgetError
comes where none is left. Raises TeacherError where the last attempt failed.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

from composer_replication.core.errors import BudgetError, NoSpaceError, TeacherError
from composer_replication.core.teacher import Bought, Request, Teacher, request_key
from composer_replication.data.teachers.ledger import BookedCost, Busy, Call, Ledger

IN_VAIN = 5
"""So many calls at the beginning that may be billed and bring no answer are enough: the next ones
would be lost, too."""
FAILED_IN_A_ROW = 12
"""So many requests one after the other that all their attempts brought no answer to end the asking:
refusals are believed to be free of charge, and nobody has to be believed for ever."""
_POLL_S = 0.05
_ROUNDING_USD = 1.5e-9
_BOOK_LONGER_S = 60.0
"""A call counts as asked by somebody for so much longer than its time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How fast one provider may be asked; per_minute 0 = no bound.

    Example: RateLimits(at_once=8, per_minute=120)
    """

    at_once: int = 8
    per_minute: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long an attempt may take, how many there are, and the pauses between them: doubling, with
    jitter.

    An endpoint that asks for a longer pause than `longest_wait_s`, or for more than `all_waits_s`
    in all, is not tried again.
    """

    timeout_s: float = 180.0
    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 120.0
    all_waits_s: float = 240.0

    def wait_s(
        self, attempt: int, error: TeacherError, rng: random.Random, *, waited_s: float = 0.0
    ) -> float | None:
        """Seconds until the next attempt; None = there is none. What the endpoint asked for is
        never cut short.

        >>> late = TeacherError("busy", again=True, billed=False, wait_s=7.0)
        >>> 7.0 <= Patience().wait_s(1, late, random.Random(0)) <= 8.0
        True
        """
        asked_s = error.wait_s or 0.0
        if (
            not error.again
            or attempt >= self.attempts
            or asked_s > self.longest_wait_s
            or waited_s + asked_s > self.all_waits_s
        ):
            return None
        if error.wait_s is not None:
            return error.wait_s + rng.uniform(0.0, self.first_wait_s)
        return min(self.longest_wait_s, self.first_wait_s * 2 ** (attempt - 1)) * rng.uniform(
            0.5, 1.0
        )


class RateLimiter:
    """Lets so many calls through at once, not more often than allowed, and none while the provider
    asks for quiet."""

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
        """No call begins for so long."""
        self._quiet_until = max(self._quiet_until, asyncio.get_running_loop().time() + seconds)


class Asker:
    """Asks teachers through one ledger; make one per event loop. Without a ledger only teachers
    whose answers are not kept can be asked."""

    def __init__(
        self,
        ledger: Ledger | None,
        *,
        limits: Mapping[str, RateLimits] | None = None,
        retry_policy: RetryPolicy | None = None,
        seed: int = 0,
    ) -> None:
        self._ledger, self.patience = ledger, retry_policy or RetryPolicy()
        self._limits, self._gates = dict(limits or {}), dict[str, RateLimiter]()
        self._rng = random.Random(seed)
        self._in_flight = 0
        self._answered, self._in_vain = set[str](), defaultdict[str, list[TeacherError]](list)
        self._given_up: dict[str, TeacherError] = {}
        self._first, self._failed = dict[str, asyncio.Lock](), defaultdict[str, int](int)
        self._ended = asyncio.Event()

    def kept(self, teacher: Teacher, request: Request) -> Bought | None:
        """The answer that was bought earlier, or None; nothing is sent."""
        return (
            self._ledger.find(request_key(teacher, request))
            if self._ledger is not None and teacher.identity
            else None
        )

    async def ask(self, teacher: Teacher, request: Request) -> Bought:
        """The answer of one teacher to one request, from the ledger where it was bought before."""
        if not teacher.identity:
            return Bought(reply=await teacher.ask(request))
        if self._ledger is None:
            raise ValueError(f"{teacher.name} needs a ledger")
        key = request_key(teacher, request)
        if (bought := self._ledger.find(key)) is not None:
            return bought
        gate = self._gates.setdefault(
            teacher.provider, RateLimiter(self._limits.get(teacher.provider, RateLimits()))
        )
        attempt, waited_s = 0, 0.0
        while True:
            attempt += 1
            try:
                async with self._alone_at_first(teacher), gate:
                    return await self._attempt(self._ledger, teacher, request, key)
            except TeacherError as error:
                wait_s = self.patience.wait_s(attempt, error, self._rng, waited_s=waited_s)
                if wait_s is None:
                    raise self._failed_for_good(teacher, error) from None
                if error.wait_s is not None:
                    gate.pause(error.wait_s)
            waited_s += wait_s
            await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _alone_at_first(self, teacher: Teacher) -> AsyncIterator[None]:
        """One call at a time of a teacher that has not answered yet."""
        lock = self._first.setdefault(teacher.name, asyncio.Lock())
        async with lock:
            if teacher.name not in self._answered:
                yield
                return
        yield

    async def _attempt(
        self, ledger: Ledger, teacher: Teacher, request: Request, key: str
    ) -> Bought:
        held = await self._reserve(ledger, teacher, request, key)
        if isinstance(held, Bought):
            return held
        self._in_flight += 1
        try:
            async with asyncio.timeout(self.patience.timeout_s):
                reply = await teacher.ask(request)
            cost = ledger.settle(held, reply, price=teacher.price)
        except TimeoutError as error:
            what = f"no answer within {self.patience.timeout_s:g} s"
            ledger.lose(held, why=what)
            late = TeacherError(
                what, where=_where(teacher), fix="raise its timeout_s", again=True, billed=True
            )
            raise self._lost(teacher, late) from error
        except TeacherError as error:
            (ledger.lose if error.billed else ledger.free)(held, why=error.what)
            raise self._lost(teacher, error) if error.billed else error from None
        # cancelled, interrupted, or a fault of the teacher's code: it may have been billed
        except BaseException as error:
            ledger.lose(held, why=type(error).__name__)
            raise
        finally:
            self._in_flight -= 1
            self._ended.set()
            self._ended = asyncio.Event()
        self._answered.add(teacher.name)
        self._failed[teacher.name] = 0
        if cost.usd > held.worst_usd + _ROUNDING_USD:
            raise self._give_up(teacher, _above(teacher, booked=held.worst_usd, cost=cost))
        return Bought(reply=reply, usd=cost.usd, key=key, whose=cost.whose)

    def _failed_for_good(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        """The error of a request whose attempts are used up, or what ends the asking after many of
        them in a row."""
        if error.for_all:  # whoever waits for his turn does not have to find it out again
            return self._give_up(teacher, error)
        self._failed[teacher.name] += 1
        if self._failed[teacher.name] < FAILED_IN_A_ROW:
            return error
        what = (
            f"{FAILED_IN_A_ROW} requests to {teacher.name} in a row brought no answer, the last"
            f" one: {error.what}"
        )
        fix = error.fix or "look whether the endpoint is up, and run it again"
        return self._give_up(
            teacher,
            TeacherError(
                what, where=error.where, fix=fix, again=False, billed=error.billed, for_all=True
            ),
        )

    def _lost(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        """The error of a call that may be billed, or what ends the asking where there were only
        such calls."""
        if teacher.name in self._answered:
            return error
        lost = self._in_vain[teacher.name]
        lost.append(error)
        return (
            error if len(lost) < IN_VAIN else self._give_up(teacher, _only_in_vain(teacher, lost))
        )

    def _give_up(self, teacher: Teacher, error: TeacherError) -> TeacherError:
        return self._given_up.setdefault(teacher.name, error)

    async def _reserve(
        self, ledger: Ledger, teacher: Teacher, request: Request, key: str
    ) -> Call | Bought:
        while True:
            ended = self._ended
            if (reason := self._given_up.get(teacher.name)) is not None:
                raise reason
            try:
                held = ledger.reserve(
                    key,
                    teacher=teacher,
                    request=request,
                    timeout_s=self.patience.timeout_s + _BOOK_LONGER_S,
                )
            except BudgetError as error:
                if not self._in_flight:
                    if (
                        not isinstance(error, NoSpaceError)
                        and (lost := self._in_vain[teacher.name])
                        and not self._answered
                    ):
                        raise self._give_up(teacher, _only_in_vain(teacher, lost)) from error
                    raise
                await ended.wait()
                continue
            if not isinstance(held, Busy):
                return held
            await asyncio.sleep(_POLL_S)


def _where(teacher: Teacher) -> str:
    return f"{teacher.name} at {teacher.provider}"


def _above(teacher: Teacher, *, booked: float, cost: BookedCost) -> TeacherError:
    if cost.whose == "ours":
        what = f"{teacher.name} answered with more than was asked for (max_tokens, one choice): "
        what += f"${cost.usd:.6g} by our own count, and ${booked:.6g} was booked"
        fix = (
            "the answer is kept; an endpoint that does not keep max_tokens cannot be held to a"
            " ceiling (see output_field of this teacher)"
        )
    else:
        what = f"{teacher.name} billed ${cost.usd:.6g} for a call that was booked at ${booked:.6g}"
        what += ": its prices are set too low, and no ceiling holds"
        fix = (
            "the answer is kept; set max_input_usd_per_mtok, max_output_usd_per_mtok and"
            " max_request_usd to what it really costs"
        )
    return TeacherError(
        what, where=_where(teacher), fix=fix, again=False, billed=True, for_all=True
    )


def _only_in_vain(teacher: Teacher, lost: Sequence[TeacherError]) -> TeacherError:
    last = lost[-1]
    what = (
        f"the first calls of {teacher.name} ({len(lost)}) brought no answer and may have been"
        f" billed, the last one: {last.what}"
    )
    fix = (
        "look whether its base_url is the address of a chat-completions endpoint; a higher ceiling"
        " does not help"
    )
    return TeacherError(
        what, where=last.where or _where(teacher), fix=fix, again=False, billed=True, for_all=True
    )
