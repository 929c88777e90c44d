"""What asking would cost, before anything is sent.

    bill = estimate(sessions, teachers, steps=steps, settings=config.replay, redactor=redactor, bought=bought_keys(path))
    bill.teachers["kimi"].calls, bill.usd, bill.most_usd

`usd` takes every prompt at its estimated length and full price, and answers of USUAL_ANSWER_TOKENS;
caches make it less, the gate mostly less. `most_usd` is what would be booked if nothing were known:
a token a byte, and the longest answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Teacher, request_key, worst_usd
from composer_replication.core.trace import Session
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.gather import StepRequest, Steps, teacher_requests
from composer_replication.data.replay.judging import longest_request, most_questions
from composer_replication.data.replay.price_gate import why_no_pair

USUAL_ANSWER_TOKENS = 300
USUAL_QUESTION_TOKENS = 4_000
"""A question to the judge: mostly the end of the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherBill:
    """One teacher's part: calls to make, answers that are there already, input tokens and dollars
    of the calls to make."""

    calls: int = 0
    kept: int = 0
    input_tokens: int = 0
    usd: float = 0.0
    most_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The estimate: steps to ask about, and each teacher's part. With a gate, later teachers are
    asked about fewer of them.

    `no_pair` counts the steps that the gate keeps from every paid teacher, by reason. `judge` is
    the name of the part that is a judge's: at most so many questions, kept answers not taken off.
    """

    sessions: int
    steps: int
    sites: int
    prompts_too_long: int
    teachers: Mapping[str, TeacherBill]
    no_pair: Mapping[str, int] = field(default_factory=dict)
    judge: str = ""

    @property
    def usd(self) -> float:
        """All teachers together."""
        return sum(one.usd for one in self.teachers.values())

    @property
    def most_usd(self) -> float:
        """All teachers together, at worst."""
        return sum(one.most_usd for one in self.teachers.values())


def estimate(
    sessions: Iterable[Session],
    teachers: Sequence[Teacher],
    *,
    steps: Steps,
    settings: ReplaySettings,
    redactor: Redactor,
    bought: Collection[str] = (),
    judge: Teacher | None = None,
    gaps: bool = False,
) -> Bill:
    """The bill of a replay; `bought` are the requests that the ledger holds answers to, `gaps` as
    for `gather`. Nobody is asked."""
    bills = {
        teacher.name: TeacherBill() for teacher in (*teachers, *([] if judge is None else [judge]))
    }
    num_sessions = num_steps = num_sites = too_long = 0
    no_pair: Counter[str] = Counter()
    for session in sessions:
        num_sessions += 1
        errors = failed_turns(session)
        for asking in teacher_requests(
            session, steps(session), settings=settings, redactor=redactor
        ):
            if not asking.prompt.fits or not asking.prompt.turns:
                too_long += 1
                continue
            num_steps += 1
            num_sites += asking.step.why == "site"
            place = answered_turn(session, asking.step.turn, (), errors=errors)
            asked = [teacher for teacher in teachers if teacher.family != place.student_family]
            how = {
                "num_families": len({teacher.family for teacher in asked}),
                "min_families": settings.min_families,
            }
            reason = why_no_pair(place, **how, need_evidence=settings.need_evidence, gaps=gaps)
            no_pair[reason] += settings.gate == "value"
            for teacher in asked:
                if teacher.price.free or not reason or settings.gate == "none":
                    bills[teacher.name] = _with_call(bills[teacher.name], teacher, asking, bought)
            if judge is not None and not reason and judge.family != place.student_family:
                bills[judge.name] = _with_questions(bills[judge.name], judge, asked, settings)
    return Bill(
        sessions=num_sessions,
        steps=num_steps,
        sites=num_sites,
        prompts_too_long=too_long,
        teachers=bills,
        no_pair={reason: count for reason, count in no_pair.items() if reason and count},
        judge="" if judge is None else judge.name,
    )


def _with_call(
    bill: TeacherBill, teacher: Teacher, asking: StepRequest, bought: Collection[str]
) -> TeacherBill:
    if teacher.identity and request_key(teacher, asking.request) in bought:
        return replace(bill, kept=bill.kept + 1)
    return replace(
        bill,
        calls=bill.calls + 1,
        input_tokens=bill.input_tokens + asking.prompt.tokens,
        usd=bill.usd
        + teacher.price.usd(input_tokens=asking.prompt.tokens, output_tokens=USUAL_ANSWER_TOKENS),
        most_usd=bill.most_usd + worst_usd(teacher, asking.request),
    )


def _with_questions(
    bill: TeacherBill, judge: Teacher, asked: Sequence[Teacher], settings: ReplaySettings
) -> TeacherBill:
    """The judge's part of one step: every message against every other one."""
    calls = most_questions(len(asked))
    return replace(
        bill,
        calls=bill.calls + calls,
        input_tokens=bill.input_tokens + calls * USUAL_QUESTION_TOKENS,
        usd=bill.usd
        + calls
        * judge.price.usd(input_tokens=USUAL_QUESTION_TOKENS, output_tokens=USUAL_ANSWER_TOKENS),
        most_usd=bill.most_usd + calls * worst_usd(judge, longest_request(settings)),
    )
