"""What a reader of another agent's logs is given, and what it returns.

    CODEX = LogFormat(name="codex", agent="Codex CLI", layout="lines", fits=_fits, read=_read)

`fits` sees one record of a file of JSON lines, or a whole JSON document; `read` returns drafts of
the sessions. A reader takes untrusted input: `text_at` and its like return a default for a value of
another type, and what still goes wrong is reported as damage of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.trace import (
    ENVIRONMENT,
    Block,
    Event,
    Role,
    Segment,
    ToolResult,
    ToolSpec,
    Turn,
    TurnUsage,
)
from composer_replication.data.ingestion.counts import RawCounts
from composer_replication.data.ingestion.log_records import time_of
from composer_replication.data.sites.agent_errors import failed_by_text

NO_CONTEXT: tuple[tuple[int, int], ...] = ()


class MessageDraft:
    """A message under construction: blocks may be added until the session is finished."""

    __slots__ = ("author", "blocks", "context_tokens", "role", "tag", "usage", "written_at")

    def __init__(
        self, role: Role, author: str | None, blocks: Sequence[Block] = (), *, tag: str = ""
    ) -> None:
        self.role: Role = role
        self.author = author
        self.blocks = list(blocks)
        self.tag = tag
        self.context_tokens = 0
        self.usage: TurnUsage | None = None
        self.written_at = 0.0


MOST_USD = 1e5
"""What one message may cost; more is no price."""


def reported_usage(
    *, output: int, cached: int = 0, cache_write: int = 0, hour_write: int = 0, usd: object = None
) -> TurnUsage | None:
    """The usage of a message whose log reports these; None if it reports nothing.

    A price of 0 is what agents write where they do not know the model's price.

    >>> reported_usage(output=28, cached=12_218, usd=0.0009).usd, reported_usage(output=0)
    (0.0009, None)
    """
    price = float(usd) if isinstance(usd, int | float) and 0 < usd < MOST_USD else None
    tokens = [max(0, count) for count in (output, cached, cache_write, hour_write)]
    if not any(tokens) and price is None:
        return None
    return TurnUsage(
        output_tokens=tokens[0],
        cached_tokens=tokens[1],
        cache_write_tokens=tokens[2],
        hour_write_tokens=tokens[3],
        usd=price,
    )


@dataclass(slots=True, kw_only=True)
class SessionDraft:
    """A session under construction.

    `makes_ids`: the log holds no ids of calls, so the reader numbers them. `lacks` are facts that
    this log does not hold, for the report. `parent` is the id of the session that started this one.
    """

    id: str = ""
    messages: list[MessageDraft] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = ()
    events: list[Event] = field(default_factory=list)
    parent: str = ""
    cwd: str = ""
    remote: str = ""
    started: str = ""
    ended: str = ""
    outcome: float | None = None
    versions: set[str] = field(default_factory=set)
    makes_ids: bool = False
    lacks: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    used_ids: set[str] = field(default_factory=set)
    context: tuple[tuple[int, int], ...] = NO_CONTEXT

    def add(
        self, role: Role, author: str | None, blocks: Sequence[Block], *, tag: str = ""
    ) -> MessageDraft:
        """Add a message of the time seen last, and return it."""
        self.messages.append(MessageDraft(role, author, blocks, tag=tag))
        self.messages[-1].written_at = self.time
        return self.messages[-1]

    def add_result(self, result: ToolResult) -> bool:
        """Add a tool result as a message; a second result of a call is left out (returns False).

        Without an error flag, its text says whether the call failed, as far as it does.
        """
        if result.call_id in self.answered:
            return False
        if result.is_error is None:
            result = replace(result, is_error=failed_by_text(result.text))
        self.answered.add(result.call_id)
        self.add("tool", ENVIRONMENT, [result])
        return True

    def unique_id(self, call_id: str) -> str:
        """An id that no other call of the session has: the given one, or numbered if it repeats."""
        unique, count = call_id or f"call-{len(self.used_ids)}", 1
        while unique in self.used_ids:
            count += 1
            unique = f"{call_id}~{count}"
        self.used_ids.add(unique)
        return unique

    def add_event(self, kind: str, *, text: str = "", call_id: str | None = None) -> None:
        """Add an event after the messages so far."""
        self.events.append(Event(kind=kind, turn=len(self.messages), call_id=call_id, text=text))

    def new_context(self, *ranges: tuple[int, int]) -> None:
        """From the next message on, only these ranges of earlier messages are in context."""
        self._close_segment()
        self.context = tuple(ranges)

    def finish(self) -> tuple[tuple[Turn, ...], tuple[Segment, ...]]:
        """Return the turns and segments."""
        self._close_segment()
        turns = tuple(
            Turn(
                role=draft.role,
                author=draft.author,
                blocks=tuple(draft.blocks),
                tag=draft.tag,
                context_tokens=draft.context_tokens,
                usage=draft.usage,
                written_at=draft.written_at,
            )
            for draft in self.messages
        )
        return turns, tuple(self.segments)

    @property
    def time(self) -> float:
        """The time seen last, in seconds since 1970; 0.0 before the first."""
        return time_of(self.ended)

    def saw_time(self, time: str) -> None:
        """Note the time of a record: the first is the start, the last the end."""
        if time:
            self.started = self.started or time
            self.ended = time

    def _close_segment(self) -> None:
        start, end = (self.segments[-1].end if self.segments else 0), len(self.messages)
        if end > start:
            self.segments.append(Segment(start=start, end=end, context=self.context))
            self.context = NO_CONTEXT


@dataclass(slots=True, kw_only=True)
class LogContent:
    """A file as its reader sees it: its records with their line numbers (a document is one record),
    and the counts to which the reader adds what it does not know."""

    path: Path
    records: list[tuple[int, Any]]
    raw: RawCounts

    @property
    def document(self) -> Any:
        """The JSON document of a file that holds one."""
        return self.records[0][1] if self.records else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """A log format: its name in the store, its agent, how it is recognised and read.

    `layout`: "lines" = one JSON record per line; "document" = one JSON value per file; "database" =
    SQLite, which the reader opens itself, recognised by the names of its tables. `folder_of`
    returns the folder in which a session ran, from the record that `fits`; "" if it is not there.
    `beside` returns the other files that the reader of a file looks into.
    """

    name: str
    agent: str
    layout: Literal["lines", "document", "database"]
    fits: Callable[[Any], bool]
    read: Callable[[LogContent], list[SessionDraft]]
    folder_of: Callable[[Any], str] = lambda _: ""
    beside: Callable[[Path], Iterable[Path]] = lambda _: ()


# ---- values of untrusted JSON --------------------------------------------------------------------


def text_at(value: Any, *keys: str) -> str:
    """The string under nested keys; "" if there is none.

    >>> text_at({"a": {"b": "x"}}, "a", "b"), text_at({"a": 3}, "a", "b")
    ('x', '')
    """
    value = value_at(value, *keys)
    return value if isinstance(value, str) else ""


def dict_at(value: Any, *keys: str) -> dict[str, Any]:
    """The object under nested keys, without keys the value itself; {} if there is none."""
    value = value_at(value, *keys)
    return value if isinstance(value, dict) else {}


def list_at(value: Any, *keys: str) -> list[Any]:
    """The list under nested keys; [] if there is none."""
    value = value_at(value, *keys)
    return value if isinstance(value, list) else []


def int_at(value: Any, *keys: str) -> int:
    """The whole number under nested keys; 0 if there is none."""
    value = value_at(value, *keys)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def value_at(value: Any, *keys: str) -> Any:
    """The value under nested keys; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def iso_time(seconds: Any) -> str:
    """A time in seconds since 1970 as logs write it; "" if it is none.

    >>> iso_time(1780680349.44), iso_time("now")
    ('2026-06-05T17:25:49.440Z', '')
    """
    if not isinstance(seconds, int | float) or not 0 < seconds < 1e11:
        return ""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def arguments_of(value: Any) -> dict[str, Any]:
    """The arguments of a call: an object, or the JSON text of one; other text becomes "input".

    >>> arguments_of('{"cmd": "ls"}'), arguments_of("ls -la")
    ({'cmd': 'ls'}, {'input': 'ls -la'})
    """
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        return {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"input": value} if value else {}


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or the text parts of a list.

    >>> content_text([{"type": "text", "text": "a"}, {"type": "image"}, "b"])
    'a\\nb'
    """
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else text_at(part, "text") for part in parts]
    return "\n".join(text for text in texts if text)
