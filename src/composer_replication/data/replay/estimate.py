"""Estimate what asking would cost, before anything is sent.

    bill = estimate(sessions, teachers, steps=steps, settings=settings, redactor=redactor)
    bill.teachers["kimi"].calls, bill.usd, bill.most_usd

`usd` assumes every prompt at its estimated length and full price, and answers of
USUAL_ANSWER_TOKENS; caches lower it, and the gate mostly does. `most_usd` is the sum of the worst
cases that would be booked: one token per byte, and the longest answers.
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
"""The length of a question to the judge; most of it is the end of the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherBill:
    """One teacher's part: calls to make, answers bought earlier (`kept`), and the calls' cost."""

    calls: int = 0
    kept: int = 0
    input_tokens: int = 0
    usd: float = 0.0
    most_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The estimate: steps to ask about, and each teacher's part.

    With a gate, later teachers are asked about fewer of the steps. `no_pair` counts the steps about
    which the gate asks no paid teacher, by reason. `judge` names the entry of `teachers` that is
    the judge: its calls are an upper bound, from which answers bought earlier are not subtracted.
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
        """The expected cost of all teachers together."""
        return sum(bill.usd for bill in self.teachers.values())

    @property
    def most_usd(self) -> float:
        """The worst case of all teachers together."""
        return sum(bill.most_usd for bill in self.teachers.values())


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
    """Return the bill of a replay; nobody is asked.

    `bought` are the keys of requests that the ledger has answers to; `gaps` is as for `gather`.
    """
    bills = {
        teacher.name: TeacherBill() for teacher in (*teachers, *([] if judge is None else [judge]))
    }
    num_sessions = num_steps = num_sites = too_long = 0
    no_pair: Counter[str] = Counter()
    for session in sessions:
        num_sessions += 1
        errors = failed_turns(session)
        for step_request in teacher_requests(
            session, steps(session), settings=settings, redactor=redactor
        ):
            if not step_request.prompt.fits or not step_request.prompt.turns:
                too_long += 1
                continue
            num_steps += 1
            num_sites += step_request.step.why == "site"
            answered = answered_turn(session, step_request.step.turn, (), errors=errors)
            asked = [teacher for teacher in teachers if teacher.family != answered.student_family]
            families = {
                "num_families": len({teacher.family for teacher in asked}),
                "min_families": settings.min_families,
            }
            reason = why_no_pair(
                answered, **families, need_evidence=settings.need_evidence, gaps=gaps
            )
            no_pair[reason] += settings.gate == "value"
            for teacher in asked:
                if teacher.price.free or not reason or settings.gate == "none":
                    bills[teacher.name] = _with_call(
                        bills[teacher.name], teacher, step_request, bought
                    )
            if judge is not None and not reason and judge.family != answered.student_family:
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
    bill: TeacherBill, teacher: Teacher, step_request: StepRequest, bought: Collection[str]
) -> TeacherBill:
    if teacher.identity and request_key(teacher, step_request.request) in bought:
        return replace(bill, kept=bill.kept + 1)
    return replace(
        bill,
        calls=bill.calls + 1,
        input_tokens=bill.input_tokens + step_request.prompt.tokens,
        usd=bill.usd
        + teacher.price.usd(
            input_tokens=step_request.prompt.tokens, output_tokens=USUAL_ANSWER_TOKENS
        ),
        most_usd=bill.most_usd + worst_usd(teacher, step_request.request),
    )


def _with_questions(
    bill: TeacherBill, judge: Teacher, asked: Sequence[Teacher], settings: ReplaySettings
) -> TeacherBill:
    """Add the judge's part of one step: every message compared with every other one."""
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
