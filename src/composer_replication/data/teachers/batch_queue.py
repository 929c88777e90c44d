"""Asks one teacher in batches: what is pending at one time goes together, round after round.

    queue = BatchQueue(teacher, ledger=ledger, asker=asker)
    bought = await queue.ask(key, request)       # in the next batch, with what else is pending
    await queue.collect(open_batch)              # a batch that an earlier run sent

A round begins when nothing else can add a question: no plain call is in flight, and none was added
for a moment. Until a batch of this teacher has brought an answer, a batch holds one question: a
price that is set too low, or an address that takes batches and answers none, shows at one call.

The order is what money depends on. The calls are booked at their worst case, the file is uploaded,
its id is noted in the ledger, the batch is created, its id is noted, and only then somebody waits.
A kill before the first note means that nothing was sent; after it, the batch is looked for in the
provider's list by the id of its file. If it is not there its calls are lost, and stay booked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard, TypeVar

from composer_replication.core.errors import BudgetError, ComposerError, TeacherError
from composer_replication.core.teacher import Bought, Price, Request, Teacher, TeacherReply
from composer_replication.data.teachers.ledger import Call, Ledger, OpenBatch
from composer_replication.data.teachers.openai_batches import (
    MAX_BATCH_BYTES,
    MAX_BATCH_REQUESTS,
    BatchState,
    OpenAIBatches,
)
from composer_replication.data.teachers.openai_compatible import OpenAICompatible

_T = TypeVar("_T")
IDLE_S = 0.2
"""No question for this long: the round begins."""
_TRANSFER_S = 3600.0
_BATCH_S = 48 * 3600.0
"""The time for which a batch of a process on another machine is left to it."""
_REPORT_EVERY_S = 60.0
_BUSY_POLL_S = 5.0


class CallKeeper(Protocol):
    """What a queue needs of the asker (asking.py, which imports this file): it keeps the books."""

    num_batched: int
    report: Callable[[str], None]

    @property
    def timeout_s(self) -> float: ...
    @property
    def has_plain_calls(self) -> bool: ...
    async def next_end(self) -> None: ...
    def signal_end(self) -> None: ...
    def error_for_all(self, teacher: Teacher) -> TeacherError | None: ...
    def settle_call(
        self, teacher: Teacher, call: Call, reply: TeacherReply, *, price: Price, key: str
    ) -> Bought: ...
    def end_call(self, teacher: Teacher, call: Call, error: TeacherError) -> TeacherError: ...
    def final_error(self, teacher: Teacher, error: TeacherError) -> TeacherError: ...
    def wait_s(self, attempt: int, error: TeacherError) -> float | None: ...


@dataclass(frozen=True, slots=True)
class _Results:
    """What was read of a batch: the calls without a line, the outcomes, the lines that answer."""

    open_calls: dict[str, Call]
    outcomes: dict[str, Bought | TeacherError] = field(default_factory=dict)
    responses: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Question:
    request: Request
    line: bytes
    bought: asyncio.Future[Bought]


def asks_in_batches(teacher: Teacher) -> TypeGuard[OpenAICompatible]:
    """Whether a teacher's questions go to its provider's Batch API."""
    return isinstance(teacher, OpenAICompatible) and teacher.settings.batch


class BatchQueue:
    """The pending questions to one teacher; see the head of this module. One per event loop."""

    def __init__(self, teacher: OpenAICompatible, *, ledger: Ledger, asker: CallKeeper) -> None:
        self._teacher, self._ledger, self._asker = teacher, ledger, asker
        self._batches = OpenAIBatches(teacher)
        self._pending = dict[str, _Question]()  # not booked yet
        self._sent = dict[str, _Question]()
        self._num_asked, self._is_earlier = 0, False
        self._rounds: asyncio.Task[None] | None = None

    async def ask(self, key: str, request: Request) -> Bought:
        """Return the answer to one question, as soon as a batch has brought it."""
        if (earlier := self._pending.get(key) or self._sent.get(key)) is not None:
            return replace(await asyncio.shield(earlier.bought), now=False)
        line = self._batches.line(key, request)
        if len(line) > MAX_BATCH_BYTES:
            raise self._teacher.error("longer than the file of a batch", again=False, billed=False)
        future = asyncio.get_running_loop().create_future()
        self._pending[key] = _Question(request, line, future)
        self._num_asked += 1
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._ask_in_rounds())
            self._rounds.add_done_callback(self._end_rounds)
        return await future

    def drop_pending(self, error: ComposerError) -> None:
        """Ask nothing more of what is not booked yet: whoever waits for it gets the error."""
        for key in list(self._pending):
            self._resolve(key, error)

    async def _ask_in_rounds(self) -> None:
        while self._pending:
            await self._until_quiet()
            await self._round()

    def _end_rounds(self, rounds: asyncio.Task[None]) -> None:
        """Whoever still waits for an answer gets the error that ended the rounds, if one did."""
        if rounds.cancelled() or (error := rounds.exception()) is None:
            return
        for question in (*self._pending.values(), *self._sent.values()):
            if not question.bought.done():
                question.bought.set_exception(error)
        self._pending.clear()
        self._sent.clear()

    async def _until_quiet(self) -> None:
        num_asked = -1
        while num_asked != self._num_asked or self._asker.has_plain_calls:
            num_asked = self._num_asked
            await asyncio.sleep(IDLE_S)

    async def _round(self) -> None:
        """Ask what is pending and fits under the ceiling, in as many batches as it needs."""
        if (error := self._asker.error_for_all(self._teacher)) is not None:
            return self.drop_pending(error)
        base_url = self._teacher.settings.base_url
        alone = not self._ledger.has_answer_of_batch(self._teacher.name, base_url=base_url)
        sending = list[OpenBatch]()
        try:
            while self._pending:
                batch = self._book(1 if alone else MAX_BATCH_REQUESTS)
                if not batch.calls:
                    break
                sending.append(batch)
                if alone:
                    break
        except BudgetError as error:
            if not sending and not (self._asker.num_batched or self._asker.has_plain_calls):
                return self.drop_pending(error)
            if not sending:
                return await self._asker.next_end()
        if not sending:  # another process asks the same
            await asyncio.sleep(_BUSY_POLL_S)
        await asyncio.gather(*(self._send(batch) for batch in sending))

    def _book(self, most: int) -> OpenBatch:
        """Book the next batch; raises BudgetError if not even its first question has room."""
        teacher, calls, size = self._teacher, dict[str, Call](), 0
        base_url = teacher.settings.base_url
        row = self._ledger.begin_batch(teacher.name, base_url=base_url, price=teacher.price)
        for key, question in list(self._pending.items()):
            if len(calls) == most or size + len(question.line) > MAX_BATCH_BYTES:
                break
            try:
                booking = self._ledger.reserve(
                    key,
                    teacher=teacher,
                    request=question.request,
                    timeout_s=_BATCH_S,
                    batch=row,
                )
            except BudgetError:
                if not calls:
                    raise
                break
            if isinstance(booking, Bought):
                self._resolve(key, booking)
            elif isinstance(booking, Call):  # else another process asks it: in a later round
                calls[key] = booking
                self._sent[key] = self._pending.pop(key)
                size += len(question.line)
        return OpenBatch(
            row=row, teacher=teacher.name, base_url=base_url, price=teacher.price, calls=calls
        )

    async def _send(self, batch: OpenBatch) -> None:
        lines = b"".join(self._sent[key].line for key in batch.calls)
        self._asker.num_batched += len(batch.calls)
        try:
            file = await self._again(lambda: self._batches.upload(lines), limit_s=_TRANSFER_S)
            self._ledger.note_batch(batch.row, file=file)
            state = await self._create(file)
            self._ledger.note_batch(batch.row, file=file, batch=state.id)
        except TeacherError as error:
            self._end_all(batch.calls, error)
        else:
            await self._follow(replace(batch, file=file, batch=state.id))
        finally:
            self._asker.num_batched -= len(batch.calls)
            self._asker.signal_end()

    async def collect(self, batch: OpenBatch) -> None:
        """Wait for a batch that an earlier run sent, and settle its calls."""
        self._is_earlier = True
        if not batch.batch:
            if (state := await self._find(batch.file)) is None:
                lost = self._error("its batch is not in the provider's list")
                return self._end_all(batch.calls, lost)
            self._ledger.note_batch(batch.row, file=batch.file, batch=state.id)
            batch = replace(batch, batch=state.id)
        await self._follow(batch)

    async def _follow(self, batch: OpenBatch) -> None:
        """Wait for the end of a batch, and settle its calls."""
        batch_id = batch.batch
        self._report(batch_id, f"{len(batch.calls)} questions; it may take up to 24 hours")
        state = await self._wait(batch_id, num_calls=len(batch.calls))
        if state is None:
            lost = self._error(f"the provider does not know the batch {batch_id} any more")
            return self._end_all(batch.calls, lost)
        await self._settle(batch, state)

    async def _create(self, file: str) -> BatchState:
        """Create a batch once; after an error that leaves it open, look for it in the list."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._timed(self._batches.create(file))
            except TeacherError as error:
                if error.billed:
                    if (found := await self._find(file)) is None:
                        raise
                    return found
                if (wait_s := self._asker.wait_s(attempt, error)) is None:
                    raise
            await asyncio.sleep(wait_s)

    async def _find(self, file: str) -> BatchState | None:
        return await self._again(lambda: self._batches.find(file))

    async def _wait(self, batch_id: str, *, num_calls: int) -> BatchState | None:
        began = reported = time.monotonic()
        before = None
        while True:
            state = await self._look(batch_id)
            if state is None or state.has_ended:
                return state
            progress = f"{state.status}, {state.completed or 0} of {num_calls} answered"
            now = time.monotonic()
            if progress != before and (before is None or now - reported >= _REPORT_EVERY_S):
                self._report(batch_id, f"{progress} after {(now - began) / 60:.0f} min")
                before, reported = progress, now
            await asyncio.sleep(self._teacher.settings.batch_poll_s)

    async def _look(self, batch_id: str) -> BatchState | None:
        """Look at a batch for as long as it takes: a network that is away costs nothing."""
        while True:
            try:
                return await self._timed(self._batches.look(batch_id))
            except TeacherError as error:
                if not error.again:
                    raise
                pause_s = max(error.wait_s or 0.0, self._teacher.settings.batch_poll_s)
            await asyncio.sleep(pause_s)

    async def _settle(self, batch: OpenBatch, state: BatchState) -> None:
        """Settle each call by its line, and those without one by what the provider counted."""
        results = _Results(dict(batch.calls))
        outcomes = results.outcomes
        await self._again(lambda: self._read(batch, state, results), limit_s=_TRANSFER_S)
        num_answered = sum(isinstance(outcome, Bought) for outcome in outcomes.values())
        all_are_read = state.completed is not None and state.completed <= len(results.responses)
        message = f"its batch ended as {state.status!r} without a line for it"
        self._end_all(
            results.open_calls,
            self._error(
                f"{message}: {state.message}" if state.message else message,
                billed=state.status == "completed" or not all_are_read,
            ),
        )
        self._report(state.id, f"{state.status}, {num_answered} of {len(batch.calls)} answered")
        for key in batch.calls:  # in their order, so that later teachers get them in it
            if key in outcomes:
                self._resolve(key, outcomes[key])

    async def _read(self, batch: OpenBatch, state: BatchState, results: _Results) -> None:
        async for key, line in self._batches.lines(state):
            if isinstance(line.get("response"), dict):
                results.responses.add(key)
            request = self._ledger.prompt(key) if key in results.open_calls else None
            if request is None:  # a stranger's line, or one that was settled before a kill
                continue
            outcome, call = self._batches.outcome(line, request), results.open_calls[key]
            results.outcomes[key] = (
                self._settle_one(key, call, outcome, price=batch.price)
                if isinstance(outcome, TeacherReply)
                else self._end_one(call, outcome)
            )
            del results.open_calls[key]

    def _settle_one(
        self, key: str, call: Call, reply: TeacherReply, *, price: Price
    ) -> Bought | TeacherError:
        try:
            return self._asker.settle_call(self._teacher, call, reply, price=price, key=key)
        except TeacherError as error:  # billed above its booking
            return error

    def _end_one(self, call: Call, error: TeacherError) -> TeacherError:
        if self._is_earlier:  # no failure of this run: its questions may be asked again at once
            (self._ledger.lose if error.billed else self._ledger.free)(call, why=error.what)
            return error
        error = self._asker.end_call(self._teacher, call, error)
        return self._asker.final_error(self._teacher, error)

    def _end_all(self, calls: Mapping[str, Call], error: TeacherError) -> None:
        """End calls without an answer: released if nothing can have been billed, else lost."""
        for key, call in calls.items():
            self._resolve(key, self._end_one(call, error))

    def _resolve(self, key: str, outcome: Bought | ComposerError) -> None:
        question = self._pending.pop(key, None) or self._sent.pop(key, None)
        if question is None or question.bought.done():  # of an earlier run, or cancelled
            return
        if isinstance(outcome, Bought):
            question.bought.set_result(outcome)
        else:
            question.bought.set_exception(outcome)

    async def _again(self, step: Callable[[], Awaitable[_T]], *, limit_s: float = 0.0) -> _T:
        """Take a step that costs nothing, again and again as the retry policy allows."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._timed(step(), limit_s=limit_s)
            except TeacherError as error:
                if (wait_s := self._asker.wait_s(attempt, error)) is None:
                    raise
            await asyncio.sleep(wait_s)

    async def _timed(self, step: Awaitable[_T], *, limit_s: float = 0.0) -> _T:
        limit_s = limit_s or self._asker.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await step
        except TimeoutError as error:
            raise self._error(f"no response within {limit_s:g} s", again=True) from error

    def _error(self, what: str, *, again: bool = False, billed: bool = True) -> TeacherError:
        return self._teacher.error(what, again=again, billed=billed)

    def _report(self, batch_id: str, text: str) -> None:
        self._asker.report(f" {self._teacher.name}: batch {batch_id}: {text}")
