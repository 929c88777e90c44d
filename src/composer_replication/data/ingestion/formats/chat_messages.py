"""Read conversations as OpenAI-style or Anthropic-style messages: what data sets and proxies keep.

A document, or JSON lines with one conversation each: {"messages": [...], "tools": [...]}, also as
"conversation", or as "prompt" with "completion" or "chosen" (TRL). A message has "role", "content",
with "tool_calls" and the role "tool" (OpenAI), or with blocks "tool_use" and "tool_result"
(Anthropic).
"""

from __future__ import annotations

import json
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import (
    HARNESS,
    Block,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from composer_replication.data.chat import tool_from_chat
from composer_replication.data.ingestion.authorship import authorship
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    list_at,
    text_at,
    value_at,
)

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_LISTS = ("messages", "conversation", "conversations", "trajectory", "trace")


def is_conversation(messages: Any) -> bool:
    """Whether a value is a list of messages in one of which the model writes."""
    if not isinstance(messages, list) or not messages:
        return False
    roles = [text_at(message, "role") for message in messages[:200]]
    return "assistant" in roles and all(role in _ROLES for role in roles)


def add_messages(draft: SessionDraft, messages: list[Any], *, model: str | None = None) -> None:
    """Add the messages of a conversation to a session."""
    pending: list[str] = []
    for message in messages:
        role = text_at(message, "role")
        if role == "assistant":
            blocks = _assistant_blocks(draft, message)
            draft.add("assistant", text_at(message, "model") or model, blocks)
            pending = [block.id for block in blocks if isinstance(block, ToolCall)]
        elif role in ("tool", "function"):
            known = text_at(message, "tool_call_id")
            call_id = known if known in pending else (pending[0] if pending else known)
            pending = [name for name in pending if name != call_id]
            flag = value_at(message, "is_error")
            text = content_text(dict_at(message).get("content"))
            draft.add_result(ToolResult(call_id, text, flag if isinstance(flag, bool) else None))
        else:
            _add_user(draft, message, role)


def tools_of(value: Any) -> tuple[ToolSpec, ...]:
    """The tools of a request in OpenAI's or Anthropic's form; what is no tool is left out."""
    value = arguments_of(f'{{"tools": {value}}}').get("tools") if isinstance(value, str) else value
    specs: list[ToolSpec] = []
    for tool in value if isinstance(value, list) else []:
        if text_at(tool, "name") and "function" not in tool:
            schema = dict_at(tool, "input_schema") or dict_at(tool, "parameters")
            tool = {"function": {**tool, "parameters": schema}}
        try:
            specs.append(tool_from_chat(tool))
        except DataError:
            continue
    return tuple(specs)


def _assistant_blocks(draft: SessionDraft, message: Any) -> list[Block]:
    blocks: list[Block] = []
    reasoning = text_at(message, "reasoning_content") or text_at(message, "reasoning")
    if reasoning:
        blocks.append(Thinking(reasoning))
    content = dict_at(message).get("content")
    for part in content if isinstance(content, list) else [content]:
        if block := _assistant_block(draft, part):
            blocks.append(block)
    for call in list_at(message, "tool_calls"):
        function = dict_at(call, "function") or dict_at(call)
        name = text_at(function, "name")
        if name:
            call_id = _call_id(draft, text_at(call, "id"))
            blocks.append(ToolCall(call_id, name, arguments_of(function.get("arguments"))))
    return blocks


def _assistant_block(draft: SessionDraft, part: Any) -> Block | None:
    if isinstance(part, str):
        return Text(part) if part else None
    kind = text_at(part, "type")
    if kind == "tool_use" and text_at(part, "name"):
        call_id = _call_id(draft, text_at(part, "id"))
        return ToolCall(call_id, text_at(part, "name"), arguments_of(part.get("input")))
    if kind in ("thinking", "reasoning"):
        return Thinking(text_at(part, "thinking") or text_at(part, "text"))
    if text_at(part, "text"):
        return Text(text_at(part, "text"))
    return Opaque(kind, json.dumps(part, ensure_ascii=False)) if kind else None


def _call_id(draft: SessionDraft, call_id: str) -> str:
    if not call_id:
        draft.makes_ids = True
    return draft.unique_id(call_id)


def _add_user(draft: SessionDraft, message: Any, role: str) -> None:
    content = dict_at(message).get("content")
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        if text_at(part, "type") == "tool_result":
            flag = dict_at(part).get("is_error")
            text = content_text(dict_at(part).get("content"))
            result = ToolResult(
                text_at(part, "tool_use_id"), text, flag if isinstance(flag, bool) else None
            )
            draft.add_result(result)
        else:
            texts.append(part if isinstance(part, str) else text_at(part, "text"))
    text = "\n".join(filter(None, texts))
    if role in ("system", "developer") and not draft.messages:
        draft.add("system", HARNESS, [Text(text)])
    elif role in ("system", "developer"):
        draft.add("user", HARNESS, [Text(text)], tag="reminder")
    elif text or not isinstance(content, list):
        author, tag = authorship(text)
        draft.add("user", author, [Text(text)], tag=tag)


def _messages_of(value: Any) -> list[Any]:
    if is_conversation(value):
        return value
    for key in _LISTS:
        if is_conversation(messages := value_at(value, key)):
            return messages
    for answer in ("completion", "chosen"):
        messages = [*list_at(value, "prompt"), *list_at(value, answer)]
        if is_conversation(messages):
            return messages
    return []


def _fits(value: Any) -> bool:
    return bool(_messages_of(value))


def _read(content: LogContent) -> list[SessionDraft]:
    drafts: list[SessionDraft] = []
    for number, value in content.records:
        messages = _messages_of(value)
        if not messages:
            content.raw.unknown_types["not a conversation"] += 1
            continue
        name = next(
            (text for key in ("id", "session_id", "uuid", "instance_id")
             if (text := text_at(value, key))), ""
        )  # fmt: skip
        stem = content.path.name.partition(".")[0]
        suffix = f"-{number}" if len(content.records) > 1 else ""
        draft = SessionDraft(id=name or f"{stem}{suffix}")
        draft.tools = tools_of(dict_at(value).get("tools"))
        add_messages(draft, messages, model=text_at(value, "model") or None)
        draft.lacks.append("who wrote a user message (told by its opening words)")
        drafts.append(draft)
    return drafts


MESSAGES = LogFormat(
    name="messages", agent="an OpenAI-style API", layout="document", fits=_fits, read=_read
)
MESSAGES_LINES = LogFormat(
    name="messages_lines", agent="an OpenAI-style API", layout="lines", fits=_fits, read=_read
)
