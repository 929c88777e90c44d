"""A session as the reader model sees it: numbered messages as plain text, in overlapping windows
that fit a prompt.

    #12 assistant
    I will read it first.
    call c3 Read {"file_path": "src/a.py"}

    #13 result of c3 (error)
    File does not exist.

A block that is too long for its share of a window is cut in the middle, with a note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from composer_replication.core.trace import (
    Opaque,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)

BYTES_PER_TOKEN = 3.0
"""A cautious estimate, so that a window never exceeds its limit: code and English take 3.5 to 4.2
bytes per token."""
MAX_SHARE = 8
"""No block takes more than one part in so many of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWindow:
    """Messages [start, end) of a session as text; `tokens` is an estimate that errs upwards.

    Example: TextWindow(start=0, end=14, text="#0 user\\nfix the cart\\n\\n#1 assistant ...",
    tokens=812)
    """

    start: int
    end: int
    text: str
    tokens: int


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text, at least one, e.g. estimate_tokens("x" * 30) -> 11."""
    return 1 + int(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


def windows_of(session: Session, *, max_tokens: int, overlap_tokens: int) -> tuple[TextWindow, ...]:
    """Split a session into windows of at most `max_tokens`; every message is in at least one."""
    names = call_names(session)
    limit = max(200, int(max_tokens * BYTES_PER_TOKEN) // MAX_SHARE)
    shown = [
        shown_turn(number, turn, names, limit=limit) for number, turn in enumerate(session.turns)
    ]
    shown = [
        (
            text
            if estimate_tokens(text) <= max_tokens // 2
            else cut_middle(text, int(max_tokens * BYTES_PER_TOKEN) // 2)
        )
        for text in shown
    ]
    sizes = [estimate_tokens(text) + 1 for text in shown]
    windows: list[TextWindow] = []
    start = 0
    while start < len(shown):
        end, total = start, 0
        while end < len(shown) and (end == start or total + sizes[end] <= max_tokens):
            total += sizes[end]
            end += 1
        windows.append(
            TextWindow(start=start, end=end, text="\n\n".join(shown[start:end]), tokens=total)
        )
        if end == len(shown):
            break
        # The next window begins with the last messages of this one, as far as the overlap allows,
        # but always later than this one.
        overlap, next_start = 0, end
        while next_start > start + 1 and overlap + sizes[next_start - 1] <= overlap_tokens:
            next_start -= 1
            overlap += sizes[next_start]
        start = next_start
    return tuple(windows)


def call_names(session: Session) -> dict[str, str]:
    """Give calls short names in their order, {"toolu_01Ab": "c1", ...}: ids are long and cost
    tokens."""
    names: dict[str, str] = {}
    for turn in session.turns:
        for call in turn.calls:
            names.setdefault(call.id, f"c{len(names) + 1}")
    return names


def shown_turn(number: int, turn: Turn, names: Mapping[str, str], *, limit: int) -> str:
    """Format one message for the reader."""
    if turn.role == "tool":
        return (
            "\n".join(_shown_result(number, result, names, limit) for result in turn.results)
            or f"#{number} tool"
        )
    role = (
        turn.role
        if turn.role != "user" or turn.author in (None, "human")
        else f"{turn.role} ({turn.author})"
    )
    parts = [f"#{number} {role}"]
    for block in turn.blocks:
        if isinstance(block, ToolCall):
            arguments = json.dumps(block.arguments, ensure_ascii=False)
            parts.append(
                f"call {names.get(block.id, block.id)} {block.name} {cut_middle(arguments, limit)}"
            )
        elif isinstance(block, Thinking | Opaque):
            continue
        elif isinstance(block, ToolResult):
            parts.append(_shown_result(number, block, names, limit))
        elif isinstance(block, Text) and block.text:
            parts.append(cut_middle(block.text, limit))
    return "\n".join(parts)


def _shown_result(number: int, result: ToolResult, names: Mapping[str, str], limit: int) -> str:
    flag = " (error)" if result.is_error else ""
    return (
        f"#{number} result of"
        f" {names.get(result.call_id, 'an unknown call')}{flag}\n{cut_middle(result.text, limit)}"
    )


def cut_middle(text: str, limit: int) -> str:
    """Leave out the middle of a text of more than `limit` bytes.

    >>> cut_middle("abcdefghij" * 10, 20)
    'abcdefghij\\n[80 characters left out]\\nabcdefghij'
    """
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes <= limit:
        return text
    keep = limit // 2 * len(text) // num_bytes
    return (
        f"{text[:keep]}\n[{len(text) - 2 * keep} characters left out]\n{text[len(text) - keep :]}"
    )
