"""Ask the teachers: the steps of one session go to each teacher in order, sessions and teachers run
at the same time.

    gathered = await gather(sessions, teachers, asker=asker, steps=all_steps, settings=config.replay, redactor=redactor)
    gathered.answers             # one Answer per step and teacher that was asked, in the order of sessions, steps and teachers
    gathered.counts              # {"bought": 212, "kept": 40, "settled": 88, "failed": 3, "problem: cut_off": 2, ...}
    gathered.stopped             # the BudgetError that ended it early, or None

A teacher asked in order finds most of each prompt in its provider's cache. Between teachers a step
is handed on: the second begins with a step when the first has answered it, and is asked at all only
where that is worth its price (gate.py). An answer that `refuse` has something against is marked at
once: it is kept, because it was paid for, and the next teacher is asked as if it had not come.

Secrets leave the messages here, whatever `ingest` did: what is sent was redacted in this run. Their
names are part of a request, so a redactor with the work folder's key finds again what was bought,
and one with another key would buy it once more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.errors import BudgetError, ComposerError, TeacherError
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer
from composer_replication.core.teacher import REFUSED, Bought, Request, Teacher, TeacherReply
from composer_replication.core.trace import Session, Turn
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.replay.agree import AnsweredTurn, Tier
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.model_families import answering_family
from composer_replication.data.replay.price_gate import agrees, still_open, usable, why_no_pair
from composer_replication.data.replay.prompt import PromptBudget, Prompts, TrimmedPrompt
from composer_replication.data.replay.steps import ReplayStep
from composer_replication.data.teachers.asking import Asker

Steps = Callable[[Session], Sequence[ReplayStep]]
Refuse = Callable[[Session, Turn], str]
"""What is wrong with an answer by itself, "" where nothing is, e.g. what a curation recipe has
against it."""
_Answered = list[tuple[int, tuple[Answer, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What came of asking; see the head of this module. `asked` are the (session, turn) that
    somebody was asked about."""

    answers: tuple[Answer, ...]
    asked: frozenset[tuple[str, int]]
    counts: dict[str, int]
    stopped: ComposerError | None = None


@dataclass(slots=True)
class _Open:
    """A step on its way from teacher to teacher."""

    step: ReplayStep
    request: Request
    place: AnsweredTurn
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step as it will be asked: what every teacher is shown."""

    session: Session
    step: ReplayStep
    request: Request
    prompt: TrimmedPrompt


def turn_site_id(session: Session, turn: int) -> str:
    """The name of a place as answers carry it: a site that means the whole message, e.g.
    "s1:7:-"."""
    return f"{session.id}:{turn}:-"


def teacher_requests(
    session: Session, steps: Sequence[ReplayStep], *, settings: ReplaySettings, redactor: Redactor
) -> Iterator[StepRequest]:
    """What is sent about each step of one session, trimmed and without secrets."""
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
            about=turn_site_id(session, step.turn),
        )
        yield StepRequest(session=session, step=step, request=request, prompt=prompt)


@dataclass(slots=True, kw_only=True)
class _GatherCall:
    """One call of `gather`: what is shared between its sessions."""

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

    async def session(self, session: Session) -> _Answered:
        """All steps of one session; the teachers are stations, each with its own queue."""
        opened: list[_Open] = []
        errors = failed_turns(session)
        for asking in teacher_requests(
            session, self.steps(session), settings=self.settings, redactor=self.redactor
        ):
            if not asking.prompt.fits or not asking.prompt.turns:
                self.counts["prompt_too_long" if asking.prompt.turns else "no_context"] += 1
                continue
            opened.append(
                _Open(
                    asking.step,
                    asking.request,
                    answered_turn(session, asking.step.turn, (), errors=errors),
                )
            )
        queues: list[asyncio.Queue[_Open | None]] = [asyncio.Queue() for _ in self.teachers]
        gated = self.settings.gate == "value"
        for one in (*opened, None):
            for queue in queues[:1] if gated else queues:
                queue.put_nowait(one)
        async with asyncio.TaskGroup() as group:
            for rank in range(len(self.teachers)):
                group.create_task(self._station(session, rank, queues, hand_on=gated))
        return [(one.step.turn, one.place.answers) for one in opened]

    async def _station(
        self,
        session: Session,
        rank: int,
        queues: list[asyncio.Queue[_Open | None]],
        *,
        hand_on: bool,
    ) -> None:
        agreed_in_a_row = 0
        paid = not self.teachers[rank].price.free
        while (one := await queues[rank].get()) is not None:
            counts = not one.place.answers and one.step.why == "sampled" and not one.place.evidence
            if (
                hand_on
                and paid
                and counts
                and self.settings.settled_after
                and agreed_in_a_row >= self.settings.settled_after
            ):
                self._close(one, "trace_settled")
            if await self._one(session, one, rank) and counts:
                agreed_in_a_row = agreed_in_a_row + 1 if self._agrees(one.place) else 0
            if hand_on and rank + 1 < len(queues):
                queues[rank + 1].put_nowait(one)
        if hand_on and rank + 1 < len(queues):
            queues[rank + 1].put_nowait(None)

    async def _one(self, session: Session, one: _Open, rank: int) -> bool:
        """Ask one teacher about one step, where it should be; whether it answered."""
        teacher = self.teachers[rank]
        if teacher.family == one.place.student_family:
            self.counts["own_family"] += 1
            return False
        if self.settings.gate == "value" and not teacher.price.free:
            if not one.closed and (reason := self._why_closed(one.place, rank)):
                self._close(one, reason)
            if one.closed:
                return False
        bought = await self._bought(teacher, one.request)
        if bought is None:
            return False
        answer = answer_of(teacher, one.request, bought)
        if not answer.problem and (detail := self.refuse(session, answer.turn)):
            answer = replace(answer, problem=f"{REFUSED}{detail}")
        self._count(bought, answer)
        if answer.family == one.place.student_family:
            self.counts["own_family answered"] += 1
        one.place = replace(one.place, answers=(*one.place.answers, answer))
        return True

    async def _bought(self, teacher: Teacher, request: Request) -> Bought | None:
        """The answer of one teacher, or None where there is none; after a stop only what was bought
        earlier."""
        if self.stopped is not None:
            return self.asker.kept(teacher, request)
        try:
            return await self.asker.ask(teacher, request)
        except TeacherError as error:
            if error.for_all:
                self.stopped = self.stopped or error
            # it was billed above its booking, and it is an answer
            if (came := self.asker.kept(teacher, request)) is not None:
                return replace(came, now=True)
            self.counts["failed"] += 1
            self.counts[f"failed: {error.what}"] += 1
        except BudgetError as error:
            self.stopped = self.stopped or error
        return None

    def _close(self, one: _Open, reason: str) -> None:
        """No paid teacher is asked about a step any more; what is free is asked all the same."""
        if not one.closed:
            self.counts[reason] += 1
            one.closed = True

    def _why_closed(self, place: AnsweredTurn, rank: int) -> str:
        """Why the teacher of this rank is not worth its price at a place; "" where it is."""
        settings, families = (
            self.settings,
            {teacher.family for teacher in self.teachers} - {place.student_family},
        )
        how = {
            "num_families": len(families),
            "min_families": settings.min_families,
            "need_evidence": settings.need_evidence,
        }
        if reason := why_no_pair(place, **how, gaps=self.gaps):
            return reason
        if not place.answers:
            return ""
        least = settings.min_confidence
        told = {answer.family for answer in place.answers if usable(answer, min_confidence=least)}
        left = len(
            {teacher.family for teacher in self.teachers[rank:]} - {place.student_family} - told
        )
        open_ = still_open(
            place,
            left=left,
            min_families=settings.min_families,
            min_confidence=least,
            tiers=self._tiers(place),
        )
        return "" if open_ else "settled"

    def _agrees(self, place: AnsweredTurn) -> bool:
        first = place.answers[0]
        return (
            first.family != place.student_family
            and usable(first, min_confidence=self.settings.min_confidence)
            and agrees(place, first, tiers=self._tiers(place))
        )

    def _tiers(self, place: AnsweredTurn) -> Sequence[Tier]:
        """The tiers that a place is weighed by: a judge has no say over its own family."""
        return [
            tier
            for tier in self.settings.tiers
            if tier != "judge" or self.judge_family != place.student_family
        ]

    def _count(self, bought: Bought, answer: Answer) -> None:
        self.counts["bought" if bought.now else "kept"] += 1
        if answer.problem:
            kind = answer.problem.removeprefix(REFUSED).partition(":")[0]
            self.counts[
                f"problem: {REFUSED if answer.problem.startswith(REFUSED) else ''}{kind}"
            ] += 1


def answer_of(teacher: Teacher, request: Request, bought: Bought) -> Answer:
    """A reply as it is written to answers.jsonl; its family is that of the model which the server
    says it was."""
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
    """The family whose vote a reply is; a teacher without a model in its identity, e.g. a script,
    answers itself."""
    asked = teacher.identity.get("model")
    if not isinstance(asked, str):
        return reply.family or teacher.family
    return answering_family(teacher.family, asked=asked, reported=reply.turn.author)


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
    which is evidence for a pair. `judge_family` is whose model judges, where one does. What cannot
    be answered is counted, and the others go on. Where the ceiling leaves no room, or a teacher's
    key is not accepted, nothing more is sent; calls in flight are waited for, what was bought
    earlier is looked up, and `stopped` says why.
    """
    how = {
        "teachers": teachers,
        "asker": asker,
        "steps": steps,
        "settings": settings,
        "redactor": redactor,
    }
    run = _GatherCall(**how, refuse=refuse, gaps=gaps, judge_family=judge_family)
    done: dict[int, tuple[str, _Answered]] = {}
    rest = iter(enumerate(sessions))

    async def work() -> None:
        # each worker takes the next one, after a stop as well: what was bought there is kept
        for number, session in rest:
            done[number] = session.id, await run.session(session)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(settings.sessions_at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise _first_of(errors) from errors
    ranks = {teacher.name: rank for rank, teacher in enumerate(teachers)}
    answers, asked = list[Answer](), set[tuple[str, int]]()
    for _, (session_id, opened) in sorted(done.items()):
        for turn, given in opened:
            answers += sorted(given, key=lambda answer: ranks[answer.teacher])
            if given:
                asked.add((session_id, turn))
    return Gathered(
        answers=tuple(answers),
        asked=frozenset(asked),
        counts=dict(sorted(run.counts.items())),
        stopped=run.stopped,
    )


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group of groups: what a reader can do something about."""
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def lookup(
    answers: Iterable[Answer], *, min_confidence: float = 0.0
) -> Callable[[Session, int], tuple[Answer, ...] | None]:
    """Answers as an asker for `replay`: those to a place that can be used, None where nobody was
    asked.

    Example: replay(sessions, lookup(gathered.answers), min_families=3)
    """
    by_place: dict[str, list[Answer]] = {}
    for answer in answers:
        kept = by_place.setdefault(answer.site_id, [])
        if usable(answer, min_confidence=min_confidence):
            kept.append(answer)

    def ask(session: Session, turn: int) -> tuple[Answer, ...] | None:
        found = by_place.get(turn_site_id(session, turn))
        return None if found is None else tuple(found)

    return ask
