"""Read sessions of the GitHub Copilot CLI, `~/.copilot/session-state/*/events.jsonl`: JSON lines
{"type", "data", "id", "parentId"}. An "assistant.message" names its calls, and
"tool.execution_complete" says of each whether it succeeded."""

from __future__ import annotations

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
    list_at,
    text_at,
    value_at,
)
from composer_replication.data.sites.agent_errors import failed_by_text

_SILENT = ("hook.", "permission.", "assistant.", "session.", "tool.", "subagent.", "skill.")


def _fits(record: Any) -> bool:
    return text_at(record, "type") == "session.start" and bool(text_at(record, "data", "sessionId"))


def _folder_of(record: Any) -> str:
    return text_at(record, "data", "context", "cwd")


def _read(content: LogContent) -> list[SessionDraft]:
    draft = SessionDraft()
    model: str | None = None
    for _, record in content.records:
        kind, data = text_at(record, "type"), dict_at(record, "data")
        draft.saw_time(text_at(record, "timestamp"))
        if kind == "session.start":
            draft.id = draft.id or text_at(data, "sessionId")
            draft.cwd = draft.cwd or text_at(data, "context", "cwd")
            if version := text_at(data, "copilotVersion"):
                draft.versions.add(version)
                content.raw.versions.add(version)
        elif kind == "session.model_change":
            model = text_at(data, "newModel") or model
        elif not _add_record(draft, kind, data, model=model, content=content):
            content.raw.unknown_types[kind or "?"] += 1
    return [draft]


def _add_record(
    draft: SessionDraft, kind: str, data: dict[str, Any], *, model: str | None, content: LogContent
) -> bool:
    """Add what a record holds of the conversation; returns False for a record of unknown type."""
    text = text_at(data, "content")
    if kind == "system.message":
        if draft.messages:
            draft.add("user", HARNESS, [Text(text)], tag="reminder")
        else:
            draft.add("system", HARNESS, [Text(text)])
    elif kind == "system.notification":
        draft.add("user", HARNESS, [Text(text)], tag="reminder")
    elif kind == "user.message":
        draft.add("user", HUMAN, [Text(text)])
    elif kind == "assistant.message":
        _add_answer(draft, data, model=model, content=content)
    elif kind == "tool.execution_complete":
        success = data.get("success")
        answer = content_text(value_at(data, "result", "content")) or text_at(
            data, "error", "message"
        )
        failed = not success if isinstance(success, bool) else None
        result = ToolResult(text_at(data, "toolCallId"), answer, failed)
        if failed is False and failed_by_text(answer):
            result = ToolResult(result.call_id, answer, True)
        if not draft.add_result(result):
            content.raw.duplicates += 1
    elif kind == "abort":
        draft.add_event("interrupted", text=text_at(data, "reason"))
    elif kind == "session.error":
        draft.add_event("api_error", text=text_at(data, "message"))
    elif kind.startswith("session.compaction_complete"):
        draft.add_event("compaction")
    else:
        return kind.startswith(_SILENT)
    return True


def _add_answer(
    draft: SessionDraft, data: dict[str, Any], *, model: str | None, content: LogContent
) -> None:
    author = text_at(data, "model") or model
    blocks: list[Block] = []
    if reasoning := text_at(data, "reasoningText"):
        blocks.append(Thinking(reasoning))
    if text := text_at(data, "content"):
        blocks.append(Text(text))
    for request in list_at(data, "toolRequests"):
        arguments = arguments_of(dict_at(request).get("arguments"))
        blocks.append(ToolCall(text_at(request, "toolCallId"), text_at(request, "name"), arguments))
    draft.add("assistant", author, blocks)
    content.raw.assistant_records += 1
    if author:
        content.raw.models[author] = content.raw.models.get(author, 0) + 1


COPILOT_CLI = LogFormat(
    name="copilot_cli",
    agent="GitHub Copilot CLI",
    layout="lines",
    fits=_fits,
    read=_read,
    folder_of=_folder_of,
)
