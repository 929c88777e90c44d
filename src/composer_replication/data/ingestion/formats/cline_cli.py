"""Read sessions of Cline's CLI 3: `~/.cline/data/sessions/ID/ID.messages.json`.

{"sessionId", "origin", "messages", "system_prompt"}; messages are Anthropic-style, with the model
in "modelInfo" and the tokens in "metrics". A call may hold several commands or files: its result is
a list of items, or the JSON text of one, {"query", "result", "error", "success"}. A call failed if
one of its items did.
"""

from __future__ import annotations

import json
import re
from typing import Any

from composer_replication.core.trace import HARNESS, HUMAN, Text, ToolResult
from composer_replication.data.ingestion.formats.chat_messages import add_messages, is_conversation
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    MessageDraft,
    SessionDraft,
    dict_at,
    int_at,
    iso_time,
    list_at,
    reported_usage,
    text_at,
    value_at,
)

_TYPED = re.compile(r"\A\s*<user_input\b[^>]*>(.*)</user_input>\s*\Z", re.DOTALL)
_FOLDER = re.compile(r"^(?:\d+\. )?Working Directory: (.+)$", re.MULTILINE)


def _fits(document: Any) -> bool:
    return bool(
        text_at(document, "sessionId")
        and text_at(document, "origin", "version")
        and is_conversation(value_at(document, "messages"))
    )


def _folder_of(document: Any) -> str:
    match = _FOLDER.search(text_at(document, "system_prompt"))
    return match[1].strip() if match else ""


def _read(content: LogContent) -> list[SessionDraft]:
    document = content.document
    draft = SessionDraft(id=text_at(document, "sessionId"), cwd=_folder_of(document))
    version = text_at(document, "origin", "version")
    draft.versions.add(version)
    content.raw.versions.add(version)
    if prompt := text_at(document, "system_prompt"):
        draft.add("system", HARNESS, [Text(prompt)])
    for message in list_at(document, "messages"):
        milliseconds = value_at(message, "ts")
        draft.saw_time(
            iso_time(milliseconds / 1000) if isinstance(milliseconds, int | float) else ""
        )
        if text_at(message, "role") == "assistant":
            content.raw.assistant_records += 1
            add_messages(draft, [message], model=text_at(message, "modelInfo", "id") or None)
            _add_usage(draft.messages[-1], dict_at(message, "metrics"))
        else:
            _add_user(draft, message)
    return [draft]


def _add_usage(written: MessageDraft, metrics: dict[str, Any]) -> None:
    cached, cache_write = int_at(metrics, "cacheReadTokens"), int_at(metrics, "cacheWriteTokens")
    prompt = int_at(metrics, "inputTokens")
    # Some providers count the cached part in, some beside.
    written.context_tokens = prompt if prompt >= cached + cache_write else prompt + cached
    written.usage = reported_usage(
        output=int_at(metrics, "outputTokens"),
        cached=cached,
        cache_write=cache_write,
        usd=metrics.get("cost"),
    )


def _add_user(draft: SessionDraft, message: Any) -> None:
    typed: list[dict[str, Any]] = []
    for part in list_at(message, "content"):
        if text_at(part, "type") == "tool_result":
            draft.add_result(_result(dict_at(part)))
        elif match := _TYPED.match(text_at(part, "text")):
            draft.add("user", HUMAN, [Text(match[1].strip())])
        else:
            typed.append(dict_at(part))
    if typed:
        add_messages(draft, [{"role": "user", "content": typed}])


def _result(part: dict[str, Any]) -> ToolResult:
    items = _items(part.get("content"))
    good = [item for item in items if item.get("success") is True]
    bad = [item for item in items if item.get("success") is False or "success" not in item]
    is_error = True if part.get("is_error") is True or bad else False if good else None
    # What failed comes first: its words say what was wrong.
    text = "\n".join(_text(item, titled=len(items) > 1) for item in (*bad, *good))
    return ToolResult(text_at(part, "tool_use_id"), text, is_error)


def _items(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            return [{"result": content, "success": None}]
    values = content if isinstance(content, list) else [content]
    return [
        value
        if {"result", "error"} & value.keys()
        else {"result": _any_text(value), "success": None}
        for value in map(_as_dict, values)
    ]


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"text": value if isinstance(value, str) else ""}


def _any_text(value: dict[str, Any]) -> str:
    return text_at(value, "text") or json.dumps(value, ensure_ascii=False)


def _text(item: dict[str, Any], *, titled: bool) -> str:
    result = item.get("result")
    shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    body = (shown if result else "") or text_at(item, "error")
    is_good = item.get("success") is True
    return f"[{text_at(item, 'query')}]\n{body}" if titled and is_good else body


CLINE_CLI = LogFormat(
    name="cline_cli",
    agent="Cline CLI",
    layout="document",
    fits=_fits,
    read=_read,
    folder_of=_folder_of,
)
