"""What asking would cost, before anything is sent.

    bill = estimate(sessions, teachers, steps=steps, settings=config.replay, bought=bought_keys(path))
    bill.teachers["kimi"].calls, bill.usd, bill.most_usd

`usd` takes every prompt at its estimated length and full price, and answers of USUAL_ANSWER_TOKENS; caches make it less, the gate mostly
less. `most_usd` is what would be booked if nothing were known: a token a byte, and the longest answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from composer_replication.core.config.rollouts import ReplaySettings
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Teacher, request_key, worst_usd
from composer_replication.core.trace import Session
from composer_replication.data.replay.families import family_of
from composer_replication.data.replay.gather import Steps, requests_of

USUAL_ANSWER_TOKENS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherBill:
    """One teacher's part: calls to make, answers that are there already, input tokens and dollars of the calls to make."""

    calls: int = 0
    kept: int = 0
    input_tokens: int = 0
    usd: float = 0.0
    most_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The estimate: steps to ask about, and each teacher's part. With a gate, later teachers are asked about fewer of them."""

    sessions: int
    steps: int
    sites: int
    prompts_too_long: int
    teachers: Mapping[str, TeacherBill]

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
    bought: Collection[str] = (),
    redactor: Redactor | None = None,
) -> Bill:
    """The bill of a replay; `bought` are the requests that the ledger holds answers to. Nobody is asked."""
    redactor = redactor or Redactor()
    bills = {teacher.name: TeacherBill() for teacher in teachers}
    num_sessions = num_steps = num_sites = too_long = 0
    for session in sessions:
        num_sessions += 1
        for asking in requests_of(session, steps(session), settings=settings, redactor=redactor):
            if not asking.prompt.fits:
                too_long += 1
                continue
            num_steps += 1
            num_sites += asking.step.why == "site"
            whose = family_of(session.turns[asking.step.turn].author)
            for teacher in teachers:
                bill = bills[teacher.name]
                if teacher.family == whose:
                    continue
                if teacher.identity and request_key(teacher, asking.request) in bought:
                    bills[teacher.name] = replace(bill, kept=bill.kept + 1)
                    continue
                bills[teacher.name] = replace(
                    bill,
                    calls=bill.calls + 1,
                    input_tokens=bill.input_tokens + asking.prompt.tokens,
                    usd=bill.usd + teacher.price.usd(input_tokens=asking.prompt.tokens, output_tokens=USUAL_ANSWER_TOKENS),
                    most_usd=bill.most_usd + worst_usd(teacher, asking.request),
                )
    return Bill(sessions=num_sessions, steps=num_steps, sites=num_sites, prompts_too_long=too_long, teachers=bills)
