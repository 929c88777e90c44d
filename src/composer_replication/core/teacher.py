"""Teacher: a model that can be asked, whoever runs it. What is asked, what comes back, and what it
may cost.

    request = Request(turns=session.context(7), tools=session.tools, max_tokens=1024, about="s1:7:-")
    reply = await teacher.ask(request)          # one attempt: TeacherReply(turn=Turn(...), usage=Usage(usd=0.0021, ...))

Implementations: data/teachers (an endpoint, a script, answers from a file) and
rollouts/local_teacher.py (a model on this machine). Nobody calls `ask` by himself:
data/teachers/asking.py books the money first, waits, tries again and remembers every answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from composer_replication.core.codec import turn_from_json, turn_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.trace import ToolSpec, Turn

JSON = Any
Whose = Literal["", "ours", "endpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The most that tokens may cost, in dollars per million; all zero = free of charge.

    >>> Price(input_usd_per_mtok=2.0, output_usd_per_mtok=10.0).usd(input_tokens=1000, output_tokens=100)
    0.003
    """

    input_usd_per_mtok: float = 0.0
    output_usd_per_mtok: float = 0.0
    request_usd: float = 0.0

    @property
    def free(self) -> bool:
        """Whether nothing is ever billed."""
        return not (self.input_usd_per_mtok or self.output_usd_per_mtok or self.request_usd)

    def usd(self, *, input_tokens: int, output_tokens: int) -> float:
        """The cost of one call at these prices, without any discount for cached tokens."""
        return (
            self.request_usd
            + (input_tokens * self.input_usd_per_mtok + output_tokens * self.output_usd_per_mtok)
            / 1e6
        )


FREE = Price()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked: the messages in view, the tools on offer, and the bounds of the answer.

    `schema`: the answer has to be JSON of this schema, where the endpoint can enforce it. `sample`
    tells several draws of one request apart (k votes). `about` is a label for people and for
    scripts, e.g. a site's id; it is not sent and not part of the request's identity.
    Example: Request(turns=session.context(7), tools=session.tools, about="s1:7:-")
    """

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    schema: Mapping[str, JSON] | None = None
    about: str = ""


MOST_TOKENS, MOST_USD = 10**9, 10_000.0
"""More than any one call takes: what reports more does not know what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call took; None = not reported. `usd` is what was billed; `cached_tokens` of the input
    came from the provider's cache."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None


REFUSED = "curate: "
"""How the problem of an answer begins that came whole, and that a curation recipe has something
against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherReply:
    """One answer: the message, what it took, and what is wrong with it.

    `problem` is "" for an answer that can be used, else why not: cut_off, empty, refused,
    bad_arguments, unknown_tool, no_name. `confidence` is the geometric mean of the probabilities of
    the answer's tokens, where the endpoint tells them. `raw` is the body as it came, without the
    key. `family` is that of its author where the teacher knows it to be another than its own; it is
    not kept. `sent_tokens` and `received_tokens` are our own count of what went over the wire,
    whatever `usage` says; 0 = nobody counted.
    Example: TeacherReply(turn=Turn(role="assistant", author="glm-5", blocks=(ToolCall(...),)),
    usage=Usage(usd=0.002))
    """

    turn: Turn
    usage: Usage = Usage()
    problem: str = ""
    provider: str = ""
    confidence: float | None = None
    raw: str = ""
    family: str = ""
    sent_tokens: int = 0
    received_tokens: int = 0


class Teacher(Protocol):
    """A model that can be asked. `name` is unique among the teachers of a run; teachers of one
    `family` share their mistakes.

    `identity` is what decides the answer beside the request (model, endpoint, provider
    preferences); empty = answers are not kept. `provider` names the limits that it shares with
    others.
    """

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def price(self) -> Price: ...
    @property
    def identity(self) -> Mapping[str, JSON]: ...

    def most_input_tokens(self, request: Request) -> int:
        """An upper bound of the prompt's tokens, with everything that a template may add."""
        ...

    async def ask(self, request: Request) -> TeacherReply:
        """One attempt; raises TeacherError, which says whether it may have been billed and whether
        to try again."""
        ...


class FreeTeacher:
    """What all teachers that cost nothing have in common, e.g. one that answers from a file: no price
    and no tokens to book. Unless it says what decides its answers, they are not kept."""

    __slots__ = ()

    @property
    def price(self) -> Price:
        """Free of charge."""
        return FREE

    @property
    def identity(self) -> Mapping[str, JSON]:
        """Empty: its answers are not kept."""
        return {}

    def most_input_tokens(self, request: Request) -> int:
        """Nothing is booked for it."""
        return 0


def worst_usd(teacher: Teacher, request: Request) -> float:
    """The most that one attempt can cost: every token of the prompt at full price, and the longest
    answer."""
    if teacher.price.free:
        return 0.0
    return teacher.price.usd(
        input_tokens=teacher.most_input_tokens(request), output_tokens=request.max_tokens
    )


def request_to_json(request: Request) -> dict[str, JSON]:
    """What decides the answer, as JSON: without `about`, and without who wrote a message."""
    turns = [
        {name: value for name, value in turn_to_json(turn).items() if name in ("role", "blocks")}
        for turn in request.turns
    ]
    row: dict[str, JSON] = {
        "turns": turns,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "sample": request.sample,
    }
    if request.tools:
        row["tools"] = [
            {"name": t.name, "description": t.description, "parameters": t.parameters}
            for t in request.tools
        ]
    if request.schema is not None:
        row["schema"] = request.schema
    return row


def request_from_json(row: Mapping[str, JSON]) -> Request:
    """The inverse of `request_to_json`; who wrote a message is not known any more."""
    return Request(
        turns=tuple(turn_from_json(turn) for turn in row["turns"]),
        tools=tuple(ToolSpec(**tool) for tool in row.get("tools", ())),
        max_tokens=row["max_tokens"],
        temperature=row["temperature"],
        sample=row["sample"],
        schema=row.get("schema"),
    )


def canonical_json(value: JSON) -> str:
    """JSON in which equal values are equal texts: sorted keys, no spaces, ASCII only.

    >>> canonical_json({"b": "é", "a": 1})
    '{"a":1,"b":"\\\\u00e9"}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def prompt_sha(request: Request) -> str:
    """Name of a request, the same for every teacher that is asked it."""
    return hashlib.sha256(canonical_json(request_to_json(request)).encode("ascii")).hexdigest()


def request_key(teacher: Teacher, request: Request) -> str:
    """Name of a request to one teacher: answers are kept under it."""
    return hashlib.sha256(
        canonical_json([dict(teacher.identity), prompt_sha(request)]).encode("ascii")
    ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """An answer that was paid for, now or earlier: `usd` is what was booked for it when it was
    bought, `now` whether that was in this run.

    `whose` number that is: "ours" (our own count, or the worst case), or "endpoint" (what it
    reported was more); "" = not known.
    """

    reply: TeacherReply
    usd: float = 0.0
    now: bool = field(default=True)
    key: str = ""
    whose: Whose = ""


def reply_to_json(reply: TeacherReply) -> dict[str, JSON]:
    """A reply as it is kept in the ledger."""
    usage = {name: getattr(reply.usage, name) for name in Usage.__dataclass_fields__}
    facts: dict[str, JSON] = {
        "problem": reply.problem,
        "provider": reply.provider,
        "confidence": reply.confidence,
        "raw": reply.raw,
    }
    facts |= {"sent_tokens": reply.sent_tokens, "received_tokens": reply.received_tokens}
    return {"turn": turn_to_json(reply.turn), "usage": usage, **facts}


def reply_from_json(row: Mapping[str, JSON]) -> TeacherReply:
    """The inverse of `reply_to_json`; raises DataError for anything else."""
    try:
        return TeacherReply(
            turn=turn_from_json(row["turn"]),
            usage=Usage(**row["usage"]),
            **{k: v for k, v in row.items() if k not in ("turn", "usage")},
        )
    except (KeyError, TypeError) as error:
        raise DataError(
            f"not a reply: {error!r}", fix="the ledger was written by another version"
        ) from error
