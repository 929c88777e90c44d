"""Ask the teachers: the steps of one session go to each teacher in order, sessions and teachers run at the same time.

    gathered = await gather(sessions, teachers, asker=asker, steps=lambda session: all_steps(session), settings=config.replay)
    gathered.answers             # one Answer per step and teacher that was asked, in the order of sessions, steps and teachers
    gathered.counts              # {"bought": 212, "kept": 40, "settled": 88, "failed": 3, "problem: cut_off": 2, ...}
    gathered.stopped             # the BudgetError that ended it early, or None

A teacher asked in order finds most of each prompt in its provider's cache. Between teachers a step is handed on: the second begins with a
step when the first has answered it, and is asked at all only where that is worth its price (gate.py). Secrets leave the messages here,
whatever `ingest` did: what is sent was redacted in this run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from composer_replication.core.config.rollouts import ReplaySettings
from composer_replication.core.errors import BudgetError, ComposerError, TeacherError
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer
from composer_replication.core.teacher import Bought, Request, Teacher
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.replay.actions import Scene, scene_of
from composer_replication.data.replay.families import family_of
from composer_replication.data.replay.gate import same_action, still_open, usable
from composer_replication.data.replay.prompt import Budget, Prompt, Prompts
from composer_replication.data.replay.steps import Step
from composer_replication.data.teachers.asking import Asker

Steps = Callable[[Session], Sequence[Step]]
_Answered = list[tuple[int, list[Answer]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What came of asking; see the head of this module. `asked` are the (session, turn) that somebody was asked about."""

    answers: tuple[Answer, ...]
    asked: frozenset[tuple[str, int]]
    counts: dict[str, int]
    stopped: ComposerError | None = None


@dataclass(slots=True)
class _Open:
    """A step on its way from teacher to teacher."""

    step: Step
    request: Request
    scene: Scene
    answers: list[Answer] = field(default_factory=list)
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One step as it will be asked: what every teacher is shown."""

    session: Session
    step: Step
    request: Request
    prompt: Prompt


def place_name(session: Session, turn: int) -> str:
    """The name of a place as answers carry it: a site that means the whole message, e.g. "s1:7:-"."""
    return f"{session.id}:{turn}:-"


def requests_of(session: Session, steps: Sequence[Step], *, settings: ReplaySettings, redactor: Redactor) -> Iterator[Asking]:
    """What is sent about each step of one session, trimmed and without secrets."""
    if not steps:
        return
    clean = redact_session(session, redactor)
    budget = Budget(max_tokens=settings.max_prompt_tokens, head_tokens=settings.head_tokens, tail_tokens=settings.tail_tokens)
    prompts = Prompts(clean, budget=budget)
    for step in steps:
        prompt = prompts.at(step.turn)
        request = Request(
            turns=prompt.turns,
            tools=clean.tools,
            max_tokens=settings.max_answer_tokens,
            temperature=settings.temperature,
            about=place_name(session, step.turn),
        )
        yield Asking(session=session, step=step, request=request, prompt=prompt)


class _Run:
    """One call of `gather`: what is shared between its sessions."""

    def __init__(self, teachers: Sequence[Teacher], asker: Asker, steps: Steps, settings: ReplaySettings, redactor: Redactor) -> None:
        self.teachers, self.asker, self.steps, self.settings, self.redactor = teachers, asker, steps, settings, redactor
        self.counts: Counter[str] = Counter()
        self.stopped: ComposerError | None = None

    async def session(self, session: Session) -> _Answered:
        """All steps of one session; the teachers are stations, each with its own queue."""
        opened: list[_Open] = []
        for asking in requests_of(session, self.steps(session), settings=self.settings, redactor=self.redactor):
            if not asking.prompt.fits or not asking.prompt.turns:
                self.counts["prompt_too_long" if asking.prompt.turns else "no_context"] += 1
                continue
            opened.append(_Open(asking.step, asking.request, scene_of(session, asking.step.turn)))
        queues: list[asyncio.Queue[_Open | None]] = [asyncio.Queue() for _ in self.teachers]
        gated = self.settings.gate == "value"
        for one in (*opened, None):
            for queue in queues[:1] if gated else queues:
                queue.put_nowait(one)
        async with asyncio.TaskGroup() as group:
            for rank in range(len(self.teachers)):
                group.create_task(self._station(session, rank, queues, hand_on=gated))
        return [(one.step.turn, one.answers) for one in opened]

    async def _station(self, session: Session, rank: int, queues: list[asyncio.Queue[_Open | None]], *, hand_on: bool) -> None:
        agreed_in_a_row = 0
        while (one := await queues[rank].get()) is not None:
            first = not one.answers and not one.closed
            settled = self.settings.settled_after and agreed_in_a_row >= self.settings.settled_after
            if self.stopped is None and not one.closed:
                if hand_on and first and settled and one.step.why == "sampled" and not self.teachers[rank].price.free:
                    self.counts["trace_settled"] += 1
                    one.closed = True
                elif await self._one(session, one, rank) and first and one.step.why == "sampled" and one.answers:
                    own = session.turns[one.step.turn]
                    agreed_in_a_row = agreed_in_a_row + 1 if same_action(one.answers[0].turn, own, one.scene) else 0
            if hand_on and rank + 1 < len(queues):
                queues[rank + 1].put_nowait(one)
        if hand_on and rank + 1 < len(queues):
            queues[rank + 1].put_nowait(None)

    async def _one(self, session: Session, one: _Open, rank: int) -> bool:
        """Ask one teacher about one step, where it should be; whether it was asked."""
        teacher, own = self.teachers[rank], session.turns[one.step.turn]
        whose = family_of(own.author)
        if teacher.family == whose:
            self.counts["own_family"] += 1
            return False
        if self.settings.gate == "value" and not teacher.price.free and one.answers:
            left = len({t.family for t in self.teachers[rank:]} - {whose} - {answer.family for answer in one.answers})
            how = {"min_families": self.settings.min_families, "min_confidence": self.settings.min_confidence}
            if not still_open(own, one.answers, left=left, scene=one.scene, **how):
                self.counts["settled"] += 1
                one.closed = True
                return False
        try:
            bought = await self.asker.ask(teacher, one.request)
        except TeacherError as error:
            self.counts["failed"] += 1
            self.counts[f"failed: {error.what}"] += 1
            if error.for_all and self.stopped is None:
                self.stopped = error
            return False
        except BudgetError as error:
            self.stopped = self.stopped or error
            return False
        self._count(bought)
        one.answers.append(answer_of(teacher, one.request, bought))
        return True

    def _count(self, bought: Bought) -> None:
        self.counts["bought" if bought.now else "kept"] += 1
        if bought.reply.problem:
            self.counts[f"problem: {bought.reply.problem}"] += 1


def answer_of(teacher: Teacher, request: Request, bought: Bought) -> Answer:
    """A reply as it is written to answers.jsonl."""
    reply, usage = bought.reply, bought.reply.usage
    return Answer(
        site_id=request.about,
        teacher=teacher.name,
        family=teacher.family,
        turn=reply.turn,
        usd=bought.usd,
        problem=reply.problem,
        confidence=reply.confidence,
        provider=reply.provider,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        request=bought.key,
    )


async def gather(
    sessions: Iterable[Session],
    teachers: Sequence[Teacher],
    *,
    asker: Asker,
    steps: Steps,
    settings: ReplaySettings,
    redactor: Redactor | None = None,
) -> Gathered:
    """Ask every teacher about the chosen steps of every session; see the head of this module.

    What cannot be answered is counted, and the others go on. Where the ceiling leaves no room, or a teacher's key is not accepted, nothing
    more is sent; calls in flight are waited for, and `stopped` says why.
    """
    run = _Run(teachers, asker, steps, settings, redactor or Redactor())
    done: dict[int, tuple[str, _Answered]] = {}
    rest = iter(enumerate(sessions))

    async def work() -> None:
        for number, session in rest:  # each worker takes the next one
            if run.stopped is not None:
                break
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
    return Gathered(answers=tuple(answers), asked=frozenset(asked), counts=dict(sorted(run.counts.items())), stopped=run.stopped)


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group of groups: what a reader can do something about."""
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def lookup(answers: Iterable[Answer], *, min_confidence: float = 0.0) -> Callable[[Session, int], tuple[Answer, ...] | None]:
    """Answers as an asker for `replay`: those to a place that can be used, None where nobody was asked.

    Example: replay(sessions, lookup(gathered.answers), min_families=3)
    """
    by_place: dict[str, list[Answer]] = {}
    for answer in answers:
        kept = by_place.setdefault(answer.site_id, [])
        if usable(answer, min_confidence=min_confidence):
            kept.append(answer)

    def ask(session: Session, turn: int) -> tuple[Answer, ...] | None:
        found = by_place.get(place_name(session, turn))
        return None if found is None else tuple(found)

    return ask
