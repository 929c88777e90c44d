"""The teacher protocol: a model that can be asked, its requests and replies, and their cost.

    request = Request(turns=session.context(7), tools=session.tools, max_tokens=1024)
    reply = await teacher.ask(request)          # one attempt
    reply                                       # TeacherReply(turn=Turn(...), usage=Usage(...))

Implementations: data/teachers (an endpoint, a script, answers from a file) and
rollouts/local_teacher.py (a model on this machine). Do not call `ask` directly:
data/teachers/asking.py books the money first, waits, retries and stores every answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from composer_replication.core.codec import turn_from_json, turn_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.trace import JSON, ToolSpec, Turn

Whose = Literal["", "ours", "endpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The most that tokens may cost, in dollars per million; all zero = free of charge.

    >>> price = Price(input_usd_per_mtok=2.0, output_usd_per_mtok=10.0)
    >>> price.usd(input_tokens=1000, output_tokens=100)
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
    """A question to a teacher: the messages in context, the tools on offer, the answer's bounds.

    `schema`: the answer must be JSON of this schema, if the endpoint can enforce one. `sample`
    distinguishes several draws of the same request (k votes). `about` is a label for people and
    scripts, e.g. a site's id; it is neither sent nor part of the request's identity.
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
"""More than any one call can take: an endpoint that reports more is not believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The reported usage of a call; None = not reported.

    `usd` is what was billed; `cached_tokens` are the input tokens read from the provider's cache.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float | None = None


REFUSED = "curate: "
"""Prefix of the `problem` of a complete answer that a curation recipe rejects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherReply:
    """One answer: the message, its usage, and why it cannot be used, if so.

    `problem` is "" for a usable answer, else one of cut_off, empty, refused, bad_arguments,
    unknown_tool, no_name. `confidence` is the geometric mean of the probabilities of the answer's
    tokens, if the endpoint reports them. `raw` is the response body, without the key. `family` is
    set if the answer's author belongs to another family than the teacher; it is not stored.
    `sent_tokens` and `received_tokens` are our own count of what went over the wire, whatever
    `usage` says; 0 = not counted.
    Example: TeacherReply(turn=Turn(role="assistant", ...), usage=Usage(usd=0.002))
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
    """A model that can be asked.

    `name` is unique among the teachers of a run. Teachers of one `family` share their mistakes, so
    agreement counts families. `provider` identifies the rate limits that teachers share.
    `identity` is everything but the request that determines the answer (model, endpoint, provider
    preferences); if it is empty, answers are not stored.
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
        """Upper bound of the prompt's tokens, including everything that a template may add."""
        ...

    async def ask(self, request: Request) -> TeacherReply:
        """Make one attempt; TeacherError says whether it may be billed and whether to retry."""
        ...


class FreeTeacher:
    """Base of teachers that cost nothing, e.g. one that answers from a file: nothing is booked.

    Unless a subclass says what decides its answers, they are not kept.
    """

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
    """The most that one attempt can cost: the whole prompt uncached, and the longest answer."""
    if teacher.price.free:
        return 0.0
    return teacher.price.usd(
        input_tokens=teacher.most_input_tokens(request), output_tokens=request.max_tokens
    )


def request_to_json(request: Request) -> dict[str, JSON]:
    """Encode what determines the answer: neither `about` nor the authors of messages."""
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
    """The inverse of `request_to_json`; the authors of messages are lost."""
    return Request(
        turns=tuple(turn_from_json(turn) for turn in row["turns"]),
        tools=tuple(ToolSpec(**tool) for tool in row.get("tools", ())),
        max_tokens=row["max_tokens"],
        temperature=row["temperature"],
        sample=row["sample"],
        schema=row.get("schema"),
    )


def canonical_json(value: JSON) -> str:
    """Dump JSON so that equal values are equal texts: sorted keys, no spaces, ASCII only.

    >>> canonical_json({"b": "é", "a": 1})
    '{"a":1,"b":"\\\\u00e9"}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def prompt_sha(request: Request) -> str:
    """Hash of a request, the same for every teacher."""
    return hashlib.sha256(canonical_json(request_to_json(request)).encode("ascii")).hexdigest()


def request_key(teacher: Teacher, request: Request) -> str:
    """Hash of a request to one teacher: the key under which its answer is stored."""
    return hashlib.sha256(
        canonical_json([dict(teacher.identity), prompt_sha(request)]).encode("ascii")
    ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A paid answer: `usd` was booked for it, in this run if `now`, else in an earlier one.

    `whose` number `usd` is: "ours" (our own count, or the worst case) or "endpoint" (its report,
    because it was higher); "" = not known.
    """

    reply: TeacherReply
    usd: float = 0.0
    now: bool = field(default=True)
    key: str = ""
    whose: Whose = ""


def reply_to_json(reply: TeacherReply) -> dict[str, JSON]:
    """Encode a reply as the ledger stores it."""
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
    """The inverse of `reply_to_json`; raises DataError for a row of another version."""
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
