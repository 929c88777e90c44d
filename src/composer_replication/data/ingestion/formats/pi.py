"""Read sessions of pi and Oh My Pi, and of agents that keep the Hub's session traces: JSON lines
{"type": "session"}, then {"type": "message", "message": {"role", "content"}}.

Since version 2 a record names its parent. A record whose parent is not the one before it begins
where the person went back: its context is the path to that parent.
"""

from __future__ import annotations

import json
from typing import Any

from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Block,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    int_at,
    reported_usage,
    text_at,
    value_at,
)
from composer_replication.data.sites.shell_rules import word_set

_SILENT = word_set(
    "thinking_level_change model_change custom label title credential_pin session_info mode_change"
    " tool_state branch_summary"
)


def _fits(record: Any) -> bool:
    return text_at(record, "type") == "session" and bool(
        text_at(record, "id") and (text_at(record, "cwd") or text_at(record, "harness"))
    )


def _folder_of(record: Any) -> str:
    return text_at(record, "cwd")


def _read(content: LogContent) -> list[SessionDraft]:
    reader = _TreeReader(content)
    for _, record in content.records:
        reader.read(record)
    return [reader.draft]


class _TreeReader:
    """Builds one session; `end` is the last message, `before` the message in front of each."""

    def __init__(self, content: LogContent) -> None:
        self.raw = content.raw
        self.draft = SessionDraft()
        self.model: str | None = None
        self.end = -1
        self.before: list[int] = []
        self.message_at: dict[str, int] = {}  # record -> the message that it is or follows
        self.first_at: list[int] = []  # record, in order -> the number of messages before it

    def read(self, record: Any) -> None:
        kind = text_at(record, "type")
        self.draft.saw_time(text_at(record, "timestamp"))
        self._go_to_parent(record)
        self.first_at.append(len(self.draft.messages))
        if kind == "session":
            self.draft.id = self.draft.id or text_at(record, "id")
            self.draft.cwd = self.draft.cwd or text_at(record, "cwd")
            self.model = text_at(record, "modelId") or self.model
        elif kind == "message":
            self._message(dict_at(record, "message"))
        elif kind == "session_init":
            self._add("system", HARNESS, [Text(text_at(record, "systemPrompt"))])
        elif kind == "custom_message":
            self._add("user", HARNESS, [Text(content_text(record.get("content")))], tag="meta")
        elif kind == "compaction":
            self._compact(record)
        elif kind not in _SILENT:
            self.raw.unknown_types[kind or "?"] += 1
        if name := text_at(record, "id"):
            self.message_at[name] = self.end

    def _go_to_parent(self, record: Any) -> None:
        parent = self.message_at.get(text_at(record, "parentId"), self.end)
        if parent != self.end:
            self.end = parent
            self.draft.new_context(*_ranges(self._path()))

    def _path(self) -> list[int]:
        """The messages up to the last one, in order."""
        path: list[int] = []
        position = self.end
        while position >= 0:
            path.append(position)
            position = self.before[position]
        return path[::-1]

    def _add(self, role: Any, author: str | None, blocks: list[Block], *, tag: str = "") -> None:
        self.draft.add(role, author, blocks, tag=tag)
        self._follow()

    def _follow(self) -> None:
        self.before.append(self.end)
        self.end = len(self.draft.messages) - 1

    def _message(self, message: dict[str, Any]) -> None:
        role = text_at(message, "role")
        if role == "assistant":
            self._answer(message)
        elif role == "toolResult":
            flag = message.get("isError")
            text = content_text(message.get("content"))
            result = ToolResult(
                text_at(message, "toolCallId"), text, flag if isinstance(flag, bool) else None
            )
            if self.draft.add_result(result):
                self._follow()
            else:
                self.raw.duplicates += 1
        elif role in ("user", "system"):
            author, tag = (HUMAN, "") if role == "user" else (HARNESS, "")
            self._add(role, author, [Text(content_text(message.get("content")))], tag=tag)
        elif role == "bashExecution":
            text = f"$ {text_at(message, 'command')}\n{text_at(message, 'output')}"
            self._add("user", HARNESS, [Text(text)], tag="bash")
        else:
            self.raw.unknown_types[f"message/{role or '?'}"] += 1

    def _answer(self, message: dict[str, Any]) -> None:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = [block for part in parts or () if (block := _block(part))]
        if not blocks:  # cut off or failed before a word came
            kind = "interrupted" if text_at(message, "stopReason") == "aborted" else "api_error"
            self.draft.add_event(kind, text=text_at(message, "errorMessage"))
            return
        model = text_at(message, "model") or self.model
        self._add("assistant", model, blocks)
        self.raw.assistant_records += 1
        if model:
            self.raw.models[model] = self.raw.models.get(model, 0) + 1
        usage = dict_at(message, "usage")
        self.draft.messages[-1].context_tokens = sum(
            int_at(usage, key) for key in ("input", "cacheRead", "cacheWrite")
        )
        self.draft.messages[-1].usage = reported_usage(
            output=int_at(usage, "output"),
            cached=int_at(usage, "cacheRead"),
            cache_write=int_at(usage, "cacheWrite"),
            usd=value_at(usage, "cost", "total"),
        )

    def _compact(self, record: Any) -> None:
        draft, path = self.draft, self._path()
        draft.add_event("compaction")
        first = self.message_at.get(text_at(record, "firstKeptEntryId"), len(draft.messages))
        index = record.get("firstKeptEntryIndex")  # version 1
        if isinstance(index, int) and 0 <= index < len(self.first_at):
            first = self.first_at[index]
        kept = [i for i in path if i >= max(first, 0)]
        system = [i for i in path if draft.messages[i].role == "system"][:1]
        draft.new_context()
        self._add("user", HARNESS, [Text(text_at(record, "summary"))], tag="compact_summary")
        view = [*system, self.end, *(i for i in kept if i not in system)]
        draft.new_context(*_ranges(view))


def _block(part: Any) -> Block | None:
    kind = text_at(part, "type")
    if kind == "toolCall":
        arguments = arguments_of(dict_at(part).get("arguments"))
        return ToolCall(text_at(part, "id"), text_at(part, "name"), arguments)
    if kind == "thinking":
        return Thinking(text_at(part, "thinking"))
    if kind == "text":
        return Text(text_at(part, "text")) if text_at(part, "text") else None
    return Opaque(kind, json.dumps(part, ensure_ascii=False)) if kind else None


def _ranges(path: list[int]) -> list[tuple[int, int]]:
    """Positions as ranges, in order.

    >>> _ranges([0, 1, 2, 7, 8])
    [(0, 3), (7, 9)]
    """
    ranges: list[tuple[int, int]] = []
    for position in path:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return ranges


PI = LogFormat(name="pi", agent="pi", layout="lines", fits=_fits, read=_read, folder_of=_folder_of)
