"""The file formats of sessions, sites, hints, answers, preferences and anchors.

`sessions.jsonl` holds each session as one header line followed by one line per turn, so it is
written and read in one pass, and a long session never needs a second copy of its text:

    {"session":{"schema":1,"id":"s1","num_turns":3,"authors":["human","claude-opus-4-5","environment"],...}}
    ["u",0,["x","Fix the test"]]
    ["a",1,["x","Let me look."],["c","toolu_1","Read",{"file_path":"a.py"}]]
    ["t",2,["r",0,"import foo"]]

A turn is [role, author, block...] with optional {"tag":...} at the end ("n" tokens of the prompt,
"u" the other tokens, "at" the time). Roles: s u a t. Blocks: x
text, h thinking, c call, r result (the call's ordinal in the session, or its id if the call is not
in the log), o opaque. The third field of "r" may be followed by true/false (is_error) and image
types. Short keys keep the file within 1.1 times the text it stores (benchmarks/ingest.py prints the
ratio).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from composer_replication.core.errors import DataError, SessionError
from composer_replication.core.fields import wrong_field
from composer_replication.core.files import atomic_writer
from composer_replication.core.jsonl import dumps, read_lines
from composer_replication.core.site import (
    ANCHOR_REASONS,
    Anchor,
    Answer,
    Decision,
    Hint,
    Preference,
    ReaderVerdict,
    Site,
)
from composer_replication.core.trace import (
    Block,
    Event,
    Opaque,
    Parent,
    Role,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    TurnUsage,
)

T = TypeVar("T")
SCHEMA = 1
_ALWAYS: dict[type, tuple[str, ...]] = {
    Site: ("category", "flagged"),
    Hint: ("knows", "num_words", "overlap"),
    Answer: ("usd",),
}
"""Fields that are written even if they hold their default, because readers filter by them."""
_ROLE_TO_LETTER: dict[Role, str] = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
_LETTER_TO_ROLE: dict[str, Role] = {letter: role for role, letter in _ROLE_TO_LETTER.items()}


def _encode_block(block: Block, ordinals: dict[str, int]) -> list[Any]:
    if isinstance(block, Text):
        return ["x", block.text]
    if isinstance(block, Thinking):
        return ["h", block.text]
    if isinstance(block, ToolCall):
        ordinals.setdefault(block.id, len(ordinals))
        return ["c", block.id, block.name, block.arguments]
    if isinstance(block, ToolResult):
        row: list[Any] = ["r", ordinals.get(block.call_id, block.call_id), block.text]
        if block.is_error is not None or block.images:
            row.append(block.is_error)
        return [*row, *block.images]
    return ["o", block.type, block.text]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return value


def _decode_block(row: list[Any], call_ids: dict[str, int], names: list[str]) -> Block:
    """Decode one block; each call adds to `call_ids` (id -> ordinal) and `names` (their order)."""
    kind = row[0]
    if kind == "x":
        return Text(_text(row[1]))
    if kind == "h":
        return Thinking(_text(row[1]))
    if kind == "c":
        if not isinstance(row[3], dict):
            raise TypeError(f"arguments are {type(row[3]).__name__}, not an object")
        if row[1] not in call_ids:
            call_ids[row[1]] = len(names)
            names.append(row[1])
        return ToolCall(_text(row[1]), _text(row[2]), row[3])
    if kind == "r":
        call_id = names[row[1]] if isinstance(row[1], int) else row[1]
        is_error = row[3] if len(row) > 3 else None
        if is_error is not None and not isinstance(is_error, bool):
            raise TypeError(f"the flag of a result is {type(is_error).__name__}, not true or false")
        return ToolResult(_text(call_id), _text(row[2]), is_error, tuple(map(_text, row[4:])))
    if kind == "o":
        return Opaque(_text(row[1]), _text(row[2]))
    raise SessionError(
        f"unknown block letter {kind!r}",
        fix="the file is of a newer schema: upgrade composer-replication",
    )


def _encode_turn(turn: Turn, authors: dict[str | None, int], ordinals: dict[str, int]) -> list[Any]:
    row: list[Any] = [
        _ROLE_TO_LETTER[turn.role],
        authors[turn.author],
        *(_encode_block(b, ordinals) for b in turn.blocks),
    ]
    extra: dict[str, Any] = {}
    if turn.tag:
        extra["tag"] = turn.tag
    if turn.context_tokens:
        extra["n"] = turn.context_tokens
    if turn.usage is not None:
        extra["u"] = dataclasses.astuple(turn.usage)
    if turn.written_at:
        extra["at"] = turn.written_at
    if turn.sampled is not None:
        extra["ids"], extra["logp"] = turn.sampled.ids, turn.sampled.logprobs
    return [*row, extra] if extra else row


def _decode_turn(
    row: list[Any], authors: list[str | None], call_ids: dict[str, int], names: list[str]
) -> Turn:
    extra: dict[str, Any] = row[-1] if isinstance(row[-1], dict) else {}
    blocks = row[2:-1] if extra else row[2:]
    author, tag, context_tokens = authors[row[1]], extra.get("tag", ""), extra.get("n", 0)
    written_at = extra.get("at", 0.0)
    if (
        not (author is None or isinstance(author, str))
        or not isinstance(tag, str)
        or not isinstance(context_tokens, int)
        or not isinstance(written_at, int | float)
    ):
        raise TypeError("an author, tag, number of tokens or time of another type")
    return Turn(
        role=_LETTER_TO_ROLE[row[0]],
        author=author,
        blocks=tuple(_decode_block(b, call_ids, names) for b in blocks),
        tag=tag,
        context_tokens=context_tokens,
        usage=_decode_usage(extra["u"]) if "u" in extra else None,
        written_at=float(written_at),
        sampled=Sampled(tuple(extra["ids"]), tuple(extra["logp"])) if "ids" in extra else None,
    )


def _decode_usage(row: Any) -> TurnUsage:
    *tokens, usd = row
    if not all(isinstance(count, int) for count in tokens):
        raise TypeError("a number of tokens of another type")
    output, cached, written, kept = tokens
    return TurnUsage(
        output_tokens=output,
        cached_tokens=cached,
        cache_write_tokens=written,
        hour_write_tokens=kept,
        usd=None if usd is None else float(usd),
    )


def encode_session(session: Session) -> Iterator[str]:
    """The lines of one session: a header, then one line per turn."""
    authors = {author: i for i, author in enumerate(dict.fromkeys(t.author for t in session.turns))}
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "id": session.id,
        "num_turns": len(session.turns),
        "authors": list(authors),
    }
    for field in dataclasses.fields(Session):
        value = getattr(session, field.name)
        if field.name in ("id", "turns") or value == field.default:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = _slim(value)
        elif isinstance(value, tuple):
            value = [_slim(item) for item in value]
        head[field.name] = value
    yield dumps({"session": head})
    ordinals: dict[str, int] = {}
    for turn in session.turns:
        yield dumps(_encode_turn(turn, authors, ordinals))


def _slim(value: Any) -> dict[str, Any]:
    """A flat dataclass as a dictionary without the fields that hold their default."""
    return {
        f.name: v for f in dataclasses.fields(value) if (v := getattr(value, f.name)) != f.default
    }


def decode_session(
    header: dict[str, Any], rows: Iterable[list[Any]], *, where: str = ""
) -> Session:
    """Decode a session from its parsed header and turn lines.

    Raises SessionError for another schema or a damaged line.
    """
    try:
        return _decode_session(header, rows, where)
    except SessionError as error:
        if error.where == where:
            raise
        raise SessionError(
            error.what, where=f"{where}, {error.where}" if error.where else where, fix=error.fix
        ) from error
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise SessionError(
            f"not a session: {error!r}", where=where, fix="the file is damaged: ingest again"
        ) from error


def _decode_session(header: dict[str, Any], rows: Iterable[list[Any]], where: str) -> Session:
    head = dict(header["session"])
    if head.pop("schema", None) != SCHEMA:
        raise SessionError(
            f"schema {header['session'].get('schema')!r}, this version reads {SCHEMA}",
            where=where,
            fix="ingest again",
        )
    authors, num_turns = head.pop("authors"), head.pop("num_turns")
    call_ids: dict[str, int] = {}
    names: list[str] = []
    turns = tuple(_decode_turn(row, authors, call_ids, names) for row in rows)
    if len(turns) != num_turns:
        raise SessionError(
            f"{len(turns)} turns, the header says {num_turns}",
            where=where,
            fix="the file is cut short: ingest again",
        )
    head["source"] = SourceRef(
        **{**head["source"], "versions": tuple(head["source"].get("versions", ()))}
    )
    head["segments"] = tuple(
        Segment(
            start=s["start"],
            end=s["end"],
            context=tuple((a, b) for a, b in s.get("context", ())),
            cleared=tuple(s.get("cleared", ())),
        )
        for s in head["segments"]
    )
    head["tools"] = tuple(_sound(ToolSpec, t) for t in head.get("tools", ()))
    head["events"] = tuple(_sound(Event, e) for e in head.get("events", ()))
    if head.get("parent"):
        head["parent"] = _sound(Parent, {"call_id": None, **head["parent"]})
    for segment in head["segments"]:
        _check(Segment, _slim(segment))
    _check(SourceRef, _slim(head["source"]))
    return _sound(Session, {"turns": turns, **head})


def _check(cls: type, row: Mapping[str, Any]) -> None:
    if wrong := wrong_field(cls, row):
        raise SessionError(
            f"not a session: the field {wrong}, in a {cls.__name__}",
            fix="the file is damaged: ingest again",
        )


def _sound(cls: type[T], row: Mapping[str, Any]) -> T:
    _check(cls, row)
    return cls(**row)


def write_sessions(path: Path, sessions: Iterable[Session]) -> int:
    """Write sessions atomically, holding one in memory at a time; returns how many."""
    count = 0
    with atomic_writer(path) as stream:
        for session in sessions:
            count += 1
            for line in encode_session(session):
                stream.write(line + "\n")
    return count


def read_sessions(path: Path) -> Iterator[Session]:
    """Read the sessions of a file, one at a time, in the order written."""
    header: dict[str, Any] | None = None
    rows: list[list[Any]] = []
    start = 0
    for number, value in read_lines(path):
        if isinstance(value, dict) and "session" in value:
            if header is not None:
                yield decode_session(header, rows, where=f"{path}:{start}")
            header, rows, start = value, [], number
        elif header is None or not isinstance(value, list):
            raise DataError(
                "not a sessions file",
                where=f"{path}:{number}",
                fix="give a file written by `recompose ingest`",
            )
        else:
            rows.append(value)
    if header is not None:
        yield decode_session(header, rows, where=f"{path}:{start}")


class RawSession(NamedTuple):
    """An undecoded session: its id, its parsed header, the bytes of its lines and their offset."""

    id: str
    header: dict[str, Any]
    data: bytes
    offset: int

    def decode(self, *, where: str = "") -> Session:
        """Decode the session."""
        try:
            rows = [json.loads(line) for line in self.data.splitlines()[1:]]
        except (ValueError, RecursionError) as error:
            raise SessionError(
                f"not a session: {error}", where=where, fix="the file is damaged: ingest again"
            ) from error
        return decode_session(self.header, rows, where=where)


_HEADER = b'{"session":'


def raw_sessions(path: Path) -> Iterator[RawSession]:
    """Read the sessions of a file without decoding their turns, one in memory at a time.

    Raises DataError if it is not a sessions file.

    Example: [(raw.id, len(raw.data)) for raw in raw_sessions(path)] -> [("s1", 48211)]
    """
    lines: list[bytes] = []
    start = place = 0
    with path.open("rb") as stream:
        for line in stream:
            if line.startswith(_HEADER) and lines:
                yield _raw_session(lines, start, path)
                lines, start = [], place
            lines.append(line if line.endswith(b"\n") else line + b"\n")
            place += len(line)
    if lines:
        yield _raw_session(lines, start, path)


def raw_session_at(path: Path, offset: int, length: int) -> RawSession:
    """Read one session by its offset and length, as `raw_sessions` gave them."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return _raw_session(stream.read(length).splitlines(keepends=True), offset, path)


def _raw_session(lines: list[bytes], offset: int, path: Path) -> RawSession:
    try:
        header = json.loads(lines[0])
        return RawSession(_text(header["session"]["id"]), header, b"".join(lines), offset)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            "not a sessions file",
            where=f"{path}, byte {offset}",
            fix="give a file written by `recompose ingest`",
        ) from error


def session_bytes(session: Session) -> bytes:
    """The lines of one session as `write_sessions` writes them."""
    return "".join(line + "\n" for line in encode_session(session)).encode("utf-8")


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """Encode a single turn, as the files of answers and preferences hold it.

    >>> turn_to_json(Turn(role="assistant", author="m", blocks=(Text("hi"),)))
    {'role': 'assistant', 'author': 'm', 'blocks': [['x', 'hi']]}
    """
    row: dict[str, Any] = {
        "role": turn.role,
        "author": turn.author,
        "blocks": [_encode_block(b, {}) for b in turn.blocks],
    }
    return row | ({"tag": turn.tag} if turn.tag else {})


def turn_from_json(value: dict[str, Any]) -> Turn:
    """The inverse of `turn_to_json`; results name their call by id."""
    try:
        blocks = tuple(_decode_block(b, {}, []) for b in value["blocks"])
        return _sound(
            Turn,
            {
                "role": value["role"],
                "author": value.get("author"),
                "blocks": blocks,
                "tag": value.get("tag", ""),
            },
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(
            f"not a turn: {error!r}",
            fix='a turn is {"role", "author", "blocks": [["x", text], ["c", id, name, arguments]]}',
        ) from error


def record_to_json(
    value: Site | ReaderVerdict | Hint | Answer | Preference | Anchor,
) -> dict[str, Any]:
    """Encode a record as a flat JSON object without default values; a site carries its id."""
    row = _slim(value) | {name: getattr(value, name) for name in _ALWAYS.get(type(value), ())}
    if isinstance(value, Answer):
        row["turn"] = turn_to_json(value.turn)
    if isinstance(value, Hint) and value.decision is not None:
        row["decision"] = _slim(value.decision)
    if isinstance(value, Preference):
        row["chosen"] = turn_to_json(value.chosen)
        if value.rejected is not None:
            row["rejected"] = turn_to_json(value.rejected)
    return {"id": value.id, **row} if isinstance(value, Site) else row


def _typed(cls: type, value: Any, where: str) -> dict[str, Any]:
    """Check the fields of a record and their types; lists become tuples."""
    if not isinstance(value, dict):
        raise DataError(
            f"a {cls.__name__} is an object, this is a {type(value).__name__}", where=where
        )
    known = {f.name for f in dataclasses.fields(cls)}
    row = {
        k: tuple(v) if isinstance(v, list) else v
        for k, v in value.items()
        if k != "id" or "id" in known
    }
    unknown = set(row) - known
    if unknown:
        raise DataError(
            f"unknown field {sorted(unknown)[0]!r} in a {cls.__name__}",
            where=where,
            fix=f"fields: {', '.join(sorted(known))}",
        )
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in row
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise DataError(f"a {cls.__name__} needs the field {missing[0]!r}", where=where)
    if wrong := wrong_field(cls, row):
        raise DataError(f"the field {wrong}, in a {cls.__name__}", where=where)
    return row


@contextmanager
def _in_file(where: str) -> Iterator[None]:
    """Add the file and line to errors that a record's constructor raises."""
    try:
        yield
    except DataError as error:
        if where in error.where:
            raise
        raise type(error)(
            error.what, where=f"{where}, {error.where}" if error.where else where, fix=error.fix
        ) from error


def read_sites(path: Path) -> Iterator[Site]:
    """Sites of a file; an unknown or missing field raises DataError with file and line."""
    for number, value in read_lines(path):
        with _in_file(f"{path}:{number}"):
            site = Site(**_typed(Site, value, f"{path}:{number}"))
        yield site


def read_verdicts(path: Path) -> Iterator[ReaderVerdict]:
    """A reader's verdicts of a file; an unknown or missing field raises DataError with file and
    line."""
    for number, value in read_lines(path):
        yield ReaderVerdict(**_typed(ReaderVerdict, value, f"{path}:{number}"))


def read_hints(path: Path) -> Iterator[Hint]:
    """Hints of a file; an unknown or missing field raises DataError with file and line."""
    for number, value in read_lines(path):
        row = _typed(Hint, value, where := f"{path}:{number}")
        if row.get("decision") is not None:
            row["decision"] = Decision(**_typed(Decision, row["decision"], where))
        yield Hint(**row)


def read_preferences(path: Path) -> Iterator[Preference]:
    """Preferences of a file; an unknown or missing field raises DataError with file and line."""
    for number, value in read_lines(path):
        yield preference_from_json(value, where=f"{path}:{number}")


def preference_from_json(value: dict[str, Any], *, where: str = "") -> Preference:
    """Decode a preference; an unknown or missing field raises DataError."""
    row = _typed(Preference, value, where)
    with _in_file(where):
        row["chosen"] = turn_from_json(row["chosen"])
        if row.get("rejected") is not None:
            row["rejected"] = turn_from_json(row["rejected"])
    return Preference(**row)


def read_answers(path: Path) -> Iterator[Answer]:
    """Answers of a file; an unknown or missing field raises DataError with file and line."""
    for number, value in read_lines(path):
        row = _typed(Answer, value, f"{path}:{number}")
        with _in_file(f"{path}:{number}"):
            turn = turn_from_json(row["turn"])
        yield Answer(**{**row, "turn": turn})


def read_anchors(path: Path) -> Iterator[Anchor]:
    """Anchors of a file; an unknown field or reason raises DataError with file and line."""
    for number, value in read_lines(path):
        reason = value.get("reason") if isinstance(value, dict) else None
        if isinstance(reason, str) and reason not in ANCHOR_REASONS:
            raise DataError(
                f"unknown reason {reason!r} of an anchor",
                where=f"{path}:{number}",
                fix=f"use one of {ANCHOR_REASONS}",
            )
        yield Anchor(**_typed(Anchor, value, f"{path}:{number}"))
