"""The records of a Claude Code log, decoded in one typed pass.

The format has no published schema and changes every few weeks. Only the fields that are used are
declared, and the decoder skips all others. A field of an unexpected type is left out and reported
if nothing depends on it; otherwise the line counts as damaged.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from composer_replication.core.trace import TurnUsage

RECORD_TYPES = frozenset(
    {
        "user",
        "assistant",
        "summary",
        "file-history-snapshot",
        "file-history-delta",
        "queue-operation",
        "progress",
        "pr-link",
        "system",
        "attachment",
        "last-prompt",
        "mode",
        "permission-mode",
        "ai-title",
        "custom-title",
        "agent-name",
        "bridge-session",
        "atis-latch",
        "tag",
        "tools-used",
        "cost-state",
        "api-request",
        "api-request-shape",
        "api-request-blob",
    }
)
BLOCK_TYPES = frozenset(("text", "thinking", "tool_use", "tool_result"))
MAX_DEPTH = 64
_CONTAINERS = frozenset((dict, list))
_NEEDED = ("type", "uuid", "message")


class Source(msgspec.Struct, gc=False):
    media_type: str = ""


class Part(msgspec.Struct, gc=False):
    """One part of a tool result."""

    type: str = ""
    text: str | None = None
    source: Source | None = None
    tool_name: str | None = None


class RawBlock(msgspec.Struct, gc=False):
    """One content block of a message; which fields are set depends on `type`."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: str | list[Part | str] | None = None
    source: Source | None = None


class CacheCreation(msgspec.Struct, gc=False):
    ephemeral_1h_input_tokens: int | None = None


class LogUsage(msgspec.Struct, gc=False):
    """The tokens of a request and its answer, as Anthropic's API reports them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None

    @property
    def context_tokens(self) -> int:
        """Prompt tokens of the request: new, read from the cache and written to it."""
        return (
            (self.input_tokens or 0)
            + (self.cache_read_input_tokens or 0)
            + (self.cache_creation_input_tokens or 0)
        )

    def turn_usage(self, usd: float | None) -> TurnUsage:
        """The usage without the size of the prompt, with the dollars of the record, if any."""
        kept = self.cache_creation.ephemeral_1h_input_tokens if self.cache_creation else None
        return TurnUsage(
            output_tokens=self.output_tokens or 0,
            cached_tokens=self.cache_read_input_tokens or 0,
            cache_write_tokens=self.cache_creation_input_tokens or 0,
            hour_write_tokens=kept or 0,
            usd=usd,
        )


class Message(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: str | list[RawBlock] | None = None
    usage: LogUsage | None = None


class ProgressData(msgspec.Struct, gc=False):
    """The head of a progress record; `decode_progress` decodes the message inside."""

    type: str | None = None
    agentId: str | None = None


class LogRecord(msgspec.Struct, gc=False):
    """The common fields of a record; `decode_all_fields` decodes the rarer ones from the same
    line."""

    type: str = ""
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | None = None
    sessionId: str | None = None
    isSidechain: bool | None = None
    isMeta: bool | None = None
    isCompactSummary: bool | None = None
    isApiErrorMessage: bool | None = None
    timestamp: str | None = None
    version: str | None = None
    cwd: str | None = None
    agentId: str | None = None
    costUSD: float | None = None
    message: Message | None = None
    data: ProgressData | None = None
    toolUseResult: msgspec.Raw = msgspec.Raw()


class _ProgressMessage(msgspec.Struct):
    message: LogRecord | None = None


class ProgressRecord(msgspec.Struct):
    """A progress record that carries a subagent's message."""

    data: _ProgressMessage
    parentToolUseID: str | None = None


class _AgentId(msgspec.Struct, gc=False):
    agentId: str | None = None


def time_of(timestamp: str | None) -> float:
    """Seconds since 1970 of a record's timestamp; 0.0 if it is missing or unreadable.

    >>> time_of("2026-02-11T20:10:54.500Z"), time_of("yesterday")
    (1770840654.5, 0.0)
    """
    if not timestamp:
        return 0.0
    try:
        moment = datetime.fromisoformat(timestamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


class BadRecord(Exception):
    """A line that is not a usable record; the message gives the reason and never quotes the
    line."""


decode_typed = msgspec.json.Decoder(LogRecord).decode
_PROGRESS = msgspec.json.Decoder(ProgressRecord).decode
_AGENT_ID = msgspec.json.Decoder(_AgentId).decode


def decode(line: bytes) -> tuple[LogRecord, tuple[str, ...]]:
    """Decode a line to its record and the names of fields left out because of their type; raises
    BadRecord.

    >>> decode(b'{"type":"user","uuid":"u1","version":3}')[1]
    ('version',)
    """
    try:
        return decode_typed(line), ()
    except RecursionError:
        raise BadRecord("nested too deep") from None
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None
    except msgspec.DecodeError:
        return _decode_slowly(line)


def decode_progress(line: bytes) -> ProgressRecord | None:
    """Decode a progress record with the subagent's message; returns None if that is unusable."""
    try:
        return _PROGRESS(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def agent_of_result(data: bytes | msgspec.Raw) -> str:
    """Read the `agentId` in the result of a call that started a subagent; "" if there is none.

    >>> agent_of_result(b'{"status":"completed","agentId":"adfd7ee"}')
    'adfd7ee'
    """
    try:
        return _AGENT_ID(data).agentId or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def decode_all_fields(line: bytes) -> dict[str, Any]:
    """Decode a whole record to a dictionary, for the few types that need more than the common
    fields; {} if the line is unusable."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = _loads(line)
        except BadRecord:
            value = None
    return value if isinstance(value, dict) else {}


def is_deep(value: Any, *, limit: int = MAX_DEPTH) -> bool:
    """Whether a JSON value nests deeper than `limit`, so that recursion over it is not safe.

    >>> is_deep({"a": [1, [2]]}, limit=2), is_deep({"a": 1}, limit=2)
    (True, False)
    """
    if type(value) is dict and _CONTAINERS.isdisjoint(map(type, value.values())):
        return limit < 1
    level = [value]
    for _ in range(limit + 1):
        below: list[Any] = []
        for v in level:
            kind = type(v)
            if kind is dict:
                below += v.values()
            elif kind is list:
                below += v
        if not below:
            return False
        level = below
    return True


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _loads(line: bytes) -> Any:
    """Parse with the standard library: slower, but it accepts lone surrogates and long integers,
    which occur in real logs."""
    try:
        # On bytes, json would guess UTF-16 line by line and accept half of such a file.
        text = line.decode("utf-8-sig", "surrogatepass")
        return json.loads(text, parse_constant=_reject_constant, parse_float=_parse_finite)
    except RecursionError:
        raise BadRecord("nested too deep") from None
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadRecord(f"not JSON ({error.msg.lower()})") from None
    except ValueError as error:
        raise BadRecord(str(error)) from None


def _decode_slowly(line: bytes) -> tuple[LogRecord, tuple[str, ...]]:
    value = _loads(line)
    if not isinstance(value, dict):
        raise BadRecord("not a JSON object")
    message = value.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        blocks = [{"type": b["type"]} if _is_other_block(b) else b for b in message["content"]]
        value = {**value, "message": {**message, "content": blocks}}
    if "toolUseResult" in value:
        value["toolUseResult"] = msgspec.Raw(
            msgspec.json.encode(_encodable(value["toolUseResult"]))
        )
    dropped_fields: list[str] = []
    while True:
        try:
            return msgspec.convert(value, LogRecord), tuple(dropped_fields)
        except RecursionError:
            raise BadRecord("nested too deep") from None
        # A lone surrogate in a field that is not text; the error does not name the field.
        except UnicodeEncodeError:
            field_name = _unconvertible(value)
            if field_name is None:
                raise BadRecord("wrong type: half of a surrogate pair in the record") from None
            value = {k: v for k, v in value.items() if k != field_name}
            dropped_fields.append(field_name)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`")
            field_name = name.split(".")[0].split("[")[0]
            if name.startswith("message.usage") and isinstance(value.get("message"), dict):
                value = {
                    **value,
                    "message": {k: v for k, v in value["message"].items() if k != "usage"},
                }
                dropped_fields.append("message.usage")
            elif field_name in value and field_name not in _NEEDED:
                value = {k: v for k, v in value.items() if k != field_name}
                dropped_fields.append(field_name)
            else:
                raise BadRecord(
                    f"wrong type: {reason[0].lower()}{reason[1:]} in {name or 'the record'}"
                ) from None


def _is_other_block(block: Any) -> bool:
    """Whether no field of this type of block is used."""
    return (
        isinstance(block, dict)
        and isinstance(kind := block.get("type"), str)
        and kind not in BLOCK_TYPES
    )


def _unconvertible(value: dict[str, Any]) -> str | None:
    """The first dispensable field that cannot be converted; None if there is none."""
    for name, field_value in value.items():
        if name not in _NEEDED:
            try:
                msgspec.convert({name: field_value}, LogRecord)
            except UnicodeEncodeError:
                return name
            except msgspec.ValidationError:
                continue
    return None


def _encodable(value: Any) -> Any:
    """The value, or None if msgspec cannot encode it (it holds a lone surrogate): nothing depends
    on these fields."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return None
    return value
