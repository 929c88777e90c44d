"""Ask the teachers about the steps of sessions.

    gathered = await gather(sessions, teachers, asker=asker, steps=all_steps, ...)
    gathered.answers             # one Answer per step and teacher asked, by session, step, teacher
    gathered.counts              # {"bought": 212, "kept": 40, "settled": 88, "failed": 3, ...}
    gathered.stopped             # the BudgetError that ended it early, or None

Each teacher gets the steps of one session in order, because then its provider's cache holds most of
each prompt already; sessions and teachers run concurrently. A teacher that is asked in batches gets
all steps of all sessions that wait for it at the same time. With a gate, a step passes from teacher
to teacher: the second one gets it after the first has answered, and is asked only if that is worth
its price (price_gate.py). An answer that `refuse` objects to is marked at once: it stays, because
it was paid for, and the next teacher is asked as if it had not come.

Secrets are removed from the messages here, whatever `ingest` did: everything that is sent was
redacted in this run. The placeholders of secrets are part of a request: a redactor with the work
folder's key finds earlier answers in the ledger, one with another key would buy them again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.errors import BudgetError, ComposerError, TeacherError
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer, turn_site_id
from composer_replication.core.teacher import REFUSED, Bought, Request, Teacher, TeacherReply
from composer_replication.core.trace import Session, Turn
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.replay.agree import AnsweredTurn, Tier
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.model_families import answering_family
from composer_replication.data.replay.price_gate import (
    is_usable,
    matches_student,
    still_open,
    why_no_pair,
)
from composer_replication.data.replay.prompt import PromptBudget, Prompts, TrimmedPrompt
from composer_replication.data.replay.steps import ReplayStep
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.batch_queue import asks_in_batches

Steps = Callable[[Session], Sequence[ReplayStep]]
Refuse = Callable[[Session, Turn], str]
"""Returns what is wrong with an answer by itself, e.g. by a curation recipe; "" = nothing."""
_Answered = list[tuple[int, tuple[Answer, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The result of asking; see the head of this module.

    `asked` are the (session, turn) that some teacher answered.
    """

    answers: tuple[Answer, ...]
    asked: frozenset[tuple[str, int]]
    counts: dict[str, int]
    stopped: ComposerError | None = None


@dataclass(slots=True)
class _OpenStep:
    """A step on its way from teacher to teacher; once `closed`, no paid teacher is asked."""

    step: ReplayStep
    request: Request
    answered: AnsweredTurn
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step with the request that every teacher gets."""

    session: Session
    step: ReplayStep
    request: Request
    prompt: TrimmedPrompt


def teacher_requests(
    session: Session, steps: Sequence[ReplayStep], *, settings: ReplaySettings, redactor: Redactor
) -> Iterator[StepRequest]:
    """Yield the request for each step of one session, trimmed and redacted."""
    if not steps:
        return
    clean = redact_session(session, redactor)
    budget = PromptBudget(
        max_tokens=settings.max_prompt_tokens,
        head_tokens=settings.head_tokens,
        tail_tokens=settings.tail_tokens,
    )
    prompts = Prompts(clean, budget=budget)
    for step in steps:
        prompt = prompts.at(step.turn)
        request = Request(
            turns=prompt.turns,
            tools=clean.tools,
            max_tokens=settings.max_answer_tokens,
            temperature=settings.temperature,
            about=turn_site_id(session.id, step.turn),
        )
        yield StepRequest(session=session, step=step, request=request, prompt=prompt)


@dataclass(slots=True, kw_only=True)
class _GatherCall:
    """The state of one call of `gather`, shared by its sessions."""

    teachers: Sequence[Teacher]
    asker: Asker
    steps: Steps
    settings: ReplaySettings
    redactor: Redactor
    refuse: Refuse
    gaps: bool
    judge_family: str
    counts: Counter[str] = field(default_factory=Counter)
    stopped: ComposerError | None = None

    async def ask_session(self, session: Session) -> _Answered:
        """Ask about all steps of one session; each teacher is a task with its own queue."""
        # 1. Make the requests, and count the steps that cannot be asked about.
        opened: list[_OpenStep] = []
        errors = failed_turns(session)
        for step_request in teacher_requests(
            session, self.steps(session), settings=self.settings, redactor=self.redactor
        ):
            if not step_request.prompt.fits or not step_request.prompt.turns:
                self.counts["prompt_too_long" if step_request.prompt.turns else "no_context"] += 1
                continue
            opened.append(
                _OpenStep(
                    step_request.step,
                    step_request.request,
                    answered_turn(session, step_request.step.turn, (), errors=errors),
                )
            )
        # 2. Queue them: with a gate at the first teacher, who hands them on, else at every teacher.
        queues: list[asyncio.Queue[_OpenStep | None]] = [asyncio.Queue() for _ in self.teachers]
        gated = self.settings.gate == "value"
        for open_step in (*opened, None):
            for queue in queues[:1] if gated else queues:
                queue.put_nowait(open_step)
        # 3. Run the teachers concurrently; None ends a queue.
        async with asyncio.TaskGroup() as group:
            for rank in range(len(self.teachers)):
                group.create_task(self._run_teacher(session, rank, queues, hand_on=gated))
        return [(open_step.step.turn, open_step.answered.answers) for open_step in opened]

    async def _run_teacher(
        self,
        session: Session,
        rank: int,
        queues: list[asyncio.Queue[_OpenStep | None]],
        *,
        hand_on: bool,
    ) -> None:
        if asks_in_batches(self.teachers[rank]):
            return await self._run_in_batches(session, rank, queues, hand_on=hand_on)
        agreed_in_a_row = 0
        paid = not self.teachers[rank].price.free
        while (open_step := await queues[rank].get()) is not None:
            counts_as_sample = (
                not open_step.answered.answers
                and open_step.step.why == "sampled"
                and not open_step.answered.evidence
            )
            if (
                hand_on
                and paid
                and counts_as_sample
                and self.settings.settled_after
                and agreed_in_a_row >= self.settings.settled_after
            ):
                self._close(open_step, "trace_settled")
            if await self._ask_step(session, open_step, rank) and counts_as_sample:
                agreed_in_a_row = (
                    agreed_in_a_row + 1 if self._first_matches(open_step.answered) else 0
                )
            if hand_on and rank + 1 < len(queues):
                queues[rank + 1].put_nowait(open_step)
        if hand_on and rank + 1 < len(queues):
            queues[rank + 1].put_nowait(None)

    async def _run_in_batches(
        self,
        session: Session,
        rank: int,
        queues: list[asyncio.Queue[_OpenStep | None]],
        *,
        hand_on: bool,
    ) -> None:
        """Ask about every step at once, so that one batch holds them; no trace settles."""
        last = not hand_on or rank + 1 == len(queues)

        async def ask(open_step: _OpenStep) -> None:
            await self._ask_step(session, open_step, rank)
            if not last:
                queues[rank + 1].put_nowait(open_step)

        async with asyncio.TaskGroup() as group:
            while (open_step := await queues[rank].get()) is not None:
                group.create_task(ask(open_step))
        if not last:
            queues[rank + 1].put_nowait(None)

    async def _ask_step(self, session: Session, open_step: _OpenStep, rank: int) -> bool:
        """Ask one teacher about one step unless that is pointless; return whether it answered."""
        teacher = self.teachers[rank]
        if teacher.family == open_step.answered.student_family:
            self.counts["own_family"] += 1
            return False
        if self.settings.gate == "value" and not teacher.price.free:
            if not open_step.closed and (reason := self._why_closed(open_step.answered, rank)):
                self._close(open_step, reason)
            if open_step.closed:
                return False
        bought = await self._buy(teacher, open_step.request)
        if bought is None:
            return False
        answer = answer_of(teacher, open_step.request, bought)
        if not answer.problem and (detail := self.refuse(session, answer.turn)):
            answer = replace(answer, problem=f"{REFUSED}{detail}")
        self._count_answer(bought, answer)
        if answer.family == open_step.answered.student_family:
            self.counts["own_family answered"] += 1
        open_step.answered = replace(
            open_step.answered, answers=(*open_step.answered.answers, answer)
        )
        return True

    async def _buy(self, teacher: Teacher, request: Request) -> Bought | None:
        """Return the answer of one teacher, or None; after a stop only an earlier answer."""
        if self.stopped is not None:
            return self.asker.find(teacher, request)
        try:
            return await self.asker.ask(teacher, request)
        except TeacherError as error:
            if error.for_all:
                self._stop(error)
            # An answer that was billed above its booking raises, but it is in the ledger.
            if (late_answer := self.asker.find(teacher, request)) is not None:
                return replace(late_answer, now=True)
            self.counts["failed"] += 1
            self.counts[f"failed: {error.what}"] += 1
        except BudgetError as error:
            self._stop(error)
        return None

    def _stop(self, error: ComposerError) -> None:
        """Send nothing more, for this first reason."""
        if self.stopped is None:
            self.stopped = error
            self.asker.drop_pending(error)

    def _close(self, open_step: _OpenStep, reason: str) -> None:
        """Ask no paid teacher about a step any more; free ones are still asked."""
        if not open_step.closed:
            self.counts[reason] += 1
            open_step.closed = True

    def _why_closed(self, answered: AnsweredTurn, rank: int) -> str:
        """Return why the teacher of this rank is not worth its price at a turn; "" if it is."""
        settings, families = (
            self.settings,
            {teacher.family for teacher in self.teachers} - {answered.student_family},
        )
        requirements = {
            "num_families": len(families),
            "min_families": settings.min_families,
            "need_evidence": settings.need_evidence,
        }
        if reason := why_no_pair(answered, **requirements, gaps=self.gaps):
            return reason
        if not answered.answers:
            return ""
        min_confidence = settings.min_confidence
        answered_families = {
            answer.family
            for answer in answered.answers
            if is_usable(answer, min_confidence=min_confidence)
        }
        left = len(
            {teacher.family for teacher in self.teachers[rank:]}
            - {answered.student_family}
            - answered_families
        )
        is_open = still_open(
            answered,
            left=left,
            min_families=settings.min_families,
            min_confidence=min_confidence,
            tiers=self._tiers_for(answered),
        )
        return "" if is_open else "settled"

    def _first_matches(self, answered: AnsweredTurn) -> bool:
        first = answered.answers[0]
        return (
            first.family != answered.student_family
            and is_usable(first, min_confidence=self.settings.min_confidence)
            and matches_student(answered, first, tiers=self._tiers_for(answered))
        )

    def _tiers_for(self, answered: AnsweredTurn) -> Sequence[Tier]:
        """Return the tiers of a turn: a judge does not judge its own family."""
        return [
            tier
            for tier in self.settings.tiers
            if tier != "judge" or self.judge_family != answered.student_family
        ]

    def _count_answer(self, bought: Bought, answer: Answer) -> None:
        self.counts["bought" if bought.now else "kept"] += 1
        if answer.problem:
            kind = answer.problem.removeprefix(REFUSED).partition(":")[0]
            self.counts[
                f"problem: {REFUSED if answer.problem.startswith(REFUSED) else ''}{kind}"
            ] += 1


def answer_of(teacher: Teacher, request: Request, bought: Bought) -> Answer:
    """Return a reply as an Answer, under the family of the model that answered."""
    reply, usage = bought.reply, bought.reply.usage
    return Answer(
        site_id=request.about,
        teacher=teacher.name,
        family=family_that_answered(teacher, reply),
        turn=reply.turn,
        usd=bought.usd,
        usd_by=bought.whose,
        told_usd=usage.usd,
        problem=reply.problem,
        confidence=reply.confidence,
        provider=reply.provider,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        request=bought.key,
    )


def family_that_answered(teacher: Teacher, reply: TeacherReply) -> str:
    """Return the family that a reply votes for.

    That is the family of the model that the server reports; a teacher without a model in its
    identity, e.g. a script, votes for its own family.
    """
    asked_model = teacher.identity.get("model")
    if not isinstance(asked_model, str):
        return reply.family or teacher.family
    return answering_family(teacher.family, asked=asked_model, reported=reply.turn.author)


async def gather(
    sessions: Iterable[Session],
    teachers: Sequence[Teacher],
    *,
    asker: Asker,
    steps: Steps,
    settings: ReplaySettings,
    redactor: Redactor,
    refuse: Refuse = lambda session, turn: "",
    gaps: bool = False,
    judge_family: str = "",
) -> Gathered:
    """Ask every teacher about the chosen steps of every session; see the head of this module.

    `gaps`: an environment can measure whether an answer leads further than the student's message,
    which is evidence for a pair. `judge_family` is the family of the judge, if there is one. A
    request that fails is counted, and the others continue. If the ceiling leaves no room, or a
    teacher's key is rejected, nothing more is sent: calls in flight are awaited, earlier answers
    are looked up, and `stopped` holds the error.
    """
    run = _GatherCall(
        teachers=teachers,
        asker=asker,
        steps=steps,
        settings=settings,
        redactor=redactor,
        refuse=refuse,
        gaps=gaps,
        judge_family=judge_family,
    )
    results: dict[int, tuple[str, _Answered]] = {}
    at_once = settings.sessions_at_once
    if any(map(asks_in_batches, teachers)):
        sessions = list(sessions)
        at_once = max(1, len(sessions))
    remaining_sessions = iter(enumerate(sessions))

    async def work() -> None:
        # After a stop too: earlier answers about the remaining sessions are in the ledger.
        for number, session in remaining_sessions:
            results[number] = session.id, await run.ask_session(session)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise _first_leaf(errors) from errors
    ranks = {teacher.name: rank for rank, teacher in enumerate(teachers)}
    answers, asked_turns = list[Answer](), set[tuple[str, int]]()
    for _, (session_id, opened) in sorted(results.items()):
        for turn, turn_answers in opened:
            answers += sorted(turn_answers, key=lambda answer: ranks[answer.teacher])
            if turn_answers:
                asked_turns.add((session_id, turn))
    return Gathered(
        answers=tuple(answers),
        asked=frozenset(asked_turns),
        counts=dict(sorted(run.counts.items())),
        stopped=run.stopped,
    )


def _first_leaf(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first single error of nested groups, which is the one to act on."""
    first = errors.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first


def lookup(
    answers: Iterable[Answer], *, min_confidence: float = 0.0
) -> Callable[[Session, int], tuple[Answer, ...] | None]:
    """Return answers as the `ask` of `replay`: a turn's usable ones, None if nobody was asked.

    Example: replay(sessions, lookup(gathered.answers), min_families=3)
    """
    by_turn: dict[str, list[Answer]] = {}
    for answer in answers:
        turn_answers = by_turn.setdefault(answer.site_id, [])
        if is_usable(answer, min_confidence=min_confidence):
            turn_answers.append(answer)

    def ask(session: Session, turn: int) -> tuple[Answer, ...] | None:
        known_answers = by_turn.get(turn_site_id(session.id, turn))
        return None if known_answers is None else tuple(known_answers)

    return ask
