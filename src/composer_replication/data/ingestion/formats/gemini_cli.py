"""Read sessions of the Gemini CLI, `~/.gemini/tmp/*/chats/session-*.json` (newer: `.jsonl`).

A session is one JSON object with its messages, or JSON lines: a header, then messages, which are
written again when they grow (their "id" says which), {"$set": ...} for the header, and
{"$rewindTo": id} where the person went back. A message of type "gemini" holds its calls with their
results. Other types ("info", "error", "warning") were shown to the person only.
"""

from __future__ import annotations

import json
from typing import Any

from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Block,
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
    list_at,
    reported_usage,
    text_at,
)
from composer_replication.data.sites.agent_errors import failed_by_text

_HARNESS_OPENINGS = ("<session_context>", "<environment_context>", "<hook_context>")
_SHOWN_ONLY = frozenset(("info", "warning", "about", "help", "stats"))


def _fits_document(document: Any) -> bool:
    kinds = {text_at(message, "type") for message in list_at(document, "messages")}
    return bool(
        text_at(document, "sessionId")
        and ("projectHash" in document or "startTime" in document)
        and kinds & {"gemini", "user"}
    )


def _fits_line(record: Any) -> bool:
    return bool(
        text_at(record, "sessionId") and text_at(record, "projectHash") and "type" not in record
    )


def _read_document(content: LogContent) -> list[SessionDraft]:
    header = dict_at(content.document)
    return _session(header, list_at(header, "messages"), content)


def _read_lines(content: LogContent) -> list[SessionDraft]:
    header: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for _, record in content.records:
        if "sessionId" in record and "type" not in record:
            header.update(record)
        elif "$set" in record:
            values = dict_at(record, "$set")
            header.update(values)
            if "messages" in values:
                messages = {text_at(m, "id"): m for m in list_at(values, "messages")}
        elif text_at(record, "$rewindTo") in messages:
            order = list(messages)
            for name in order[order.index(record["$rewindTo"]) :]:
                del messages[name]
        elif text_at(record, "type"):
            messages[text_at(record, "id") or str(len(messages))] = record
        else:
            content.raw.unknown_types["?"] += 1
    return _session(header, list(messages.values()), content)


def _session(
    header: dict[str, Any], messages: list[Any], content: LogContent
) -> list[SessionDraft]:
    draft = SessionDraft(id=text_at(header, "sessionId"))
    folders = [folder for folder in list_at(header, "directories") if isinstance(folder, str)]
    draft.cwd = folders[0] if folders else ""
    draft.saw_time(text_at(header, "startTime"))
    for message in messages:
        draft.saw_time(text_at(message, "timestamp"))
        _add_message(draft, message, content)
    return [draft]


def _add_message(draft: SessionDraft, message: Any, content: LogContent) -> None:
    kind, text = text_at(message, "type"), content_text(dict_at(message).get("content"))
    if kind == "user":
        is_harness = text.lstrip().startswith(_HARNESS_OPENINGS)
        author, tag = (HARNESS, "reminder") if is_harness else (HUMAN, "")
        draft.add("user", author, [Text(text)], tag=tag)
    elif kind == "gemini":
        _add_answer(draft, message, text, content)
    elif kind == "error":
        draft.add_event("api_error", text=text)
    elif kind not in _SHOWN_ONLY:
        content.raw.unknown_types[kind or "?"] += 1


def _add_answer(draft: SessionDraft, message: Any, text: str, content: LogContent) -> None:
    model = text_at(message, "model") or None
    blocks: list[Block] = [
        Thinking(f"{text_at(t, 'subject')}\n{text_at(t, 'description')}".strip())
        for t in list_at(message, "thoughts")
    ]
    if text:
        blocks.append(Text(text))
    calls = list_at(message, "toolCalls")
    for call in calls:
        arguments = arguments_of(dict_at(call).get("args"))
        blocks.append(ToolCall(text_at(call, "id"), text_at(call, "name"), arguments))
    added = draft.add("assistant", model, blocks)
    tokens = dict_at(message, "tokens")
    added.context_tokens = int_at(tokens, "input")
    added.usage = reported_usage(
        output=int_at(tokens, "output") + int_at(tokens, "thoughts"),
        cached=int_at(tokens, "cached"),
    )
    content.raw.assistant_records += 1
    if model:
        content.raw.models[model] = content.raw.models.get(model, 0) + 1
    for call in calls:
        result = _result(call)
        if result is not None and not draft.add_result(result):
            content.raw.duplicates += 1


def _result(call: Any) -> ToolResult | None:
    """The result of a call; None for one that was never answered."""
    status, parts = text_at(call, "status"), dict_at(call).get("result")
    if parts is None and status not in ("error", "cancelled"):
        return None
    responses = [
        dict_at(part, "functionResponse", "response") if isinstance(part, dict) else {}
        for part in (parts if isinstance(parts, list) else [parts])
    ]
    text = "\n".join(filter(None, map(_response_text, responses))) or content_text(parts)
    failed = status in ("error", "cancelled") or any(r.get("error") for r in responses)
    # A command that ends with an exit code counts as a success there; its text has the code.
    return ToolResult(text_at(call, "id"), text, failed or bool(failed_by_text(text)))


def _response_text(response: dict[str, Any]) -> str:
    for key in ("output", "error", "content"):
        if isinstance(value := response.get(key), str):
            return value
    return json.dumps(response, ensure_ascii=False) if response else ""


GEMINI_CLI = LogFormat(
    name="gemini_cli",
    agent="Gemini CLI",
    layout="document",
    fits=_fits_document,
    read=_read_document,
)
GEMINI_CLI_LINES = LogFormat(
    name="gemini_cli_lines",
    agent="Gemini CLI",
    layout="lines",
    fits=_fits_line,
    read=_read_lines,
)
