"""Turns as the chat messages that a template gets, and what of a turn has no place in one.

    Turn(role="assistant", blocks=(
        Thinking("Hm."), Text("Look:"), ToolCall("c1", "Read", {"file_path": "a.py"})))

becomes

    {"role": "assistant", "content": "Look:", "reasoning_content": "Hm.",
     "tool_calls": [{"type": "function",
                     "function": {"name": "Read", "arguments": {"file_path": "a.py"}}}]}

Several results in one turn become several messages of role "tool". Nothing is left out without
being counted in `notes`.
"""

from __future__ import annotations

import hashlib
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import RenderError
from composer_replication.core.trace import (
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

Message = dict[str, Any]
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMessages:
    """The messages of one turn, and counts of what they lack.

    Names in `notes`: "thinking_left_out" (the family has no place for it), "thinking_missing" (the
    log holds none), "opaque:<type>", "image", "lone_surrogate", "text_after_call" (moved before
    it), "result_without_call", "empty_turn", "parallel_calls" (the family writes each call of a
    message as a message), "leading_space" (the family strips it from a message's text).
    """

    messages: tuple[Message, ...]
    notes: Mapping[str, int]


def tool_messages(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """The tools as JSON schemas of functions, or None without tools.

    Templates distinguish [] and None.
    """
    functions = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in tools
    ]
    return [
        {"type": "function", "function": replace_surrogates(function, Counter())}
        for function in functions
    ] or None


def conversation(
    turns: Iterable[Turn],
    *,
    thinking: bool,
    short_ids: bool = False,
    call_each: bool = False,
    lstrip: str | None = "",
) -> list[TurnMessages]:
    """The messages of each turn of a conversation; results carry their tool's name.

    `thinking`, `short_ids`, `call_each` and `lstrip` are properties of the family, see `Family`.
    Raises RenderError if two calls of the conversation would share a short id.
    """
    names: dict[str, str] = {}
    short: dict[str, str] = {}
    result = []
    for turn in turns:
        names.update((call.id, call.name) for call in turn.calls)
        if short_ids:
            for call_id in (*(call.id for call in turn.calls), *(r.call_id for r in turn.results)):
                if short.setdefault(short_call_id(call_id), call_id) != call_id:
                    raise RenderError(
                        f"two calls would share the id {short_call_id(call_id)}",
                        fix="give the calls other ids",
                    )
        item = turn_messages(turn, names=names, thinking=thinking, short_ids=short_ids)
        if call_each and len(turn.calls) > 1:
            item = TurnMessages(messages=item.messages, notes={**item.notes, "parallel_calls": 1})
        if any(
            m["role"] == "assistant" and m["content"] != m["content"].lstrip(lstrip)
            for m in item.messages
        ):
            item = TurnMessages(messages=item.messages, notes={**item.notes, "leading_space": 1})
        result.append(item)
    return result


def short_call_id(call_id: str) -> str:
    """An id of nine letters and digits for a call; a call id that already has this form stays.

    The same call gets the same id. Hashed, not cut: the ids of one log often share their first or
    their last characters. 62^9 ids make chance collisions rare.

    >>> short_call_id("toolu_01A"), short_call_id("abcDEF123")
    ('7kqYnOZ3d', 'abcDEF123')
    """
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def turn_messages(
    turn: Turn, *, names: Mapping[str, str], thinking: bool, short_ids: bool = False
) -> TurnMessages:
    """One turn as messages; `names` maps call ids to tool names.

    `thinking` says whether the template keeps reasoning.
    """
    notes: Counter[str] = Counter()
    build = _assistant if turn.role == "assistant" else _other
    messages = [
        replace_surrogates(message, notes) for message in build(turn, names, thinking, notes)
    ]
    if short_ids:
        _set_short_ids(messages, turn)
    if not messages:
        notes["empty_turn"] += 1
    for block in turn.blocks:
        if isinstance(block, Opaque):
            notes[f"opaque:{block.type}"] += 1
    return TurnMessages(
        messages=tuple(messages), notes={name: count for name, count in notes.items() if count}
    )


def _set_short_ids(messages: Sequence[Message], turn: Turn) -> None:
    """Set the short ids of the calls and results of a turn's messages.

    Messages are in the order of the turn's blocks.
    """
    calls, results = iter(turn.calls), iter(turn.results)
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = short_call_id(next(calls).id)
        if message["role"] == "tool":
            message["tool_call_id"] = short_call_id(next(results).call_id)


def _assistant(
    turn: Turn, names: Mapping[str, str], thinking: bool, notes: Counter[str]
) -> Iterator[Message]:
    calls = [
        {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for c in turn.calls
    ]
    texts = [block.text for block in turn.blocks if isinstance(block, Text) and block.text]
    thoughts = "\n".join(
        block.text for block in turn.blocks if isinstance(block, Thinking) and block.text
    )
    kinds = [type(block) for block in turn.blocks if isinstance(block, (Text, ToolCall))]
    if ToolCall in kinds and Text in kinds[kinds.index(ToolCall) :]:
        notes["text_after_call"] += 1
    if not thinking:
        notes["thinking_left_out"] += bool(thoughts)
    # a sampled message may be an end token alone
    if texts or calls or (thinking and thoughts) or turn.sampled is not None:
        message: Message = {"role": "assistant", "content": "\n".join(texts)}
        if thinking:
            notes["thinking_missing"] += not thoughts
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        yield message
    yield from (_result(result, names, notes) for result in turn.results)


def _other(
    turn: Turn, names: Mapping[str, str], thinking: bool, notes: Counter[str]
) -> Iterator[Message]:
    role = "user" if turn.role == "tool" else turn.role
    texts: list[str] = []
    for block in turn.blocks:
        if isinstance(block, Text):
            texts.append(block.text)
        elif isinstance(block, ToolResult):
            if any(texts):
                yield {"role": role, "content": "\n".join(texts)}
            texts = []
            yield _result(block, names, notes)
    if any(texts):
        yield {"role": role, "content": "\n".join(texts)}


def _result(result: ToolResult, names: Mapping[str, str], notes: Counter[str]) -> Message:
    notes["image"] += len(result.images)
    message: Message = {"role": "tool", "content": result.text}
    if result.call_id in names:
        message["name"] = names[result.call_id]
    else:
        notes["result_without_call"] += 1
    return message


def replace_surrogates(value: Any, notes: Counter[str]) -> Any:
    """A copy of a JSON value whose strings can be encoded.

    A lone surrogate, which is no character, becomes U+FFFD and is counted.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        text = (
            value.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
            if _has_surrogate(value)
            else value
        )
        notes["lone_surrogate"] += text != value
        return text
    if isinstance(value, Mapping):
        return {
            replace_surrogates(str(k), notes): replace_surrogates(v, notes)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_surrogates(v, notes) for v in value]
    return value


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
