"""Attachment records (since 2.1.202): context that the agent program adds beside the messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from composer_replication.core.trace import HARNESS, HUMAN

# Every type met in a log so far; any other is counted as unknown and reported.
ATTACHMENT_TYPES = frozenset(
    {
        "hook_success",
        "hook_blocking_error",
        "hook_additional_context",
        "hook_system_message",
        "hook_non_blocking_error",
        "hook_cancelled",
        "total_tokens_reminder",
        "task_reminder",
        "todo_reminder",
        "deferred_tools_delta",
        "agent_listing_delta",
        "mcp_instructions_delta",
        "skill_listing",
        "queued_command",
        "structured_output",
        "nested_memory",
        "file",
        "directory",
        "compact_file_reference",
        "edited_text_file",
        "command_permissions",
        "read_truncation_notice",
        "plan_mode",
        "plan_mode_exit",
        "auto_mode",
        "invoked_skills",
        "date_change",
        "selected_lines_in_ide",
        "opened_file_in_ide",
        "prompt_snapshot",
        "environment",
        "model",
        "diagnostics",
        "session_context",
        "date",
        "remote_session_change",
        "deferred_tools_record",
    }
)
# The model saw these, but logs of 2.1.202-2.1.237 keep only the payload, not the text around it.
_PAYLOAD = {
    "hook_additional_context": ("content",),
    "nested_memory": ("content",),
    "file": ("content",),
    "edited_text_file": ("snippet", "content"),
    "invoked_skills": ("skills",),
    "selected_lines_in_ide": ("content",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The meaning of an attachment: a text in context, an event, or the system prompt with tools.

    `text` is empty if the log holds nothing that the model saw. `exact`: `text` is word for word
    what the context held.
    """

    kind: str
    text: str = ""
    author: str = HARNESS
    tag: str = "attachment"
    exact: bool = False
    call_id: str | None = None
    event: str = ""
    event_text: str = ""
    tools: Any = None


def read_attachment(value: Any) -> Attachment:
    """Interpret the `attachment` field of a record; an unknown type keeps its rendered text.

    >>> read_attachment({"type": "queued_command", "prompt": "also fix the docs"}).author
    'human'
    """
    if not isinstance(value, dict):
        return Attachment(kind="")
    kind = value["type"] if isinstance(value.get("type"), str) else ""
    rendered = _texts(value.get("rendered"))
    call_id = value["toolUseID"] if isinstance(value.get("toolUseID"), str) else None
    if kind == "prompt_snapshot":
        return Attachment(
            kind=kind,
            text="\n\n".join(_strings(value.get("systemPrompt"))),
            exact=True,
            tools=value.get("tools"),
        )
    if kind == "hook_blocking_error":
        error = value.get("blockingError")
        text = _texts(error.get("blockingError") if isinstance(error, dict) else error)
        return Attachment(
            kind=kind,
            text=rendered or text,
            tag="hook",
            exact=bool(rendered),
            call_id=call_id,
            event="hook_blocked",
            event_text=text or rendered,
        )
    if kind == "queued_command":
        text = _texts(value.get("prompt"))
        author = HARNESS if text.lstrip().startswith("<") else HUMAN
        return Attachment(kind=kind, text=text, author=author, tag="queued")
    if rendered:
        return Attachment(kind=kind, text=rendered, tag="reminder", exact=True)
    texts = [_texts(value.get(key)) for key in _PAYLOAD.get(kind, ())]
    return Attachment(kind=kind, text="\n".join(t for t in texts if t))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _texts(value: Any, depth: int = 0) -> str:
    """Extract the text of a payload: a string, a list, or an object with `content`, `text` or
    `file`."""
    if isinstance(value, str):
        return value
    if depth > 4:
        return ""
    if isinstance(value, list):
        return "\n".join(t for v in value if (t := _texts(v, depth + 1)))
    if isinstance(value, dict):
        for key in ("content", "text", "file"):
            if key in value:
                return _texts(value[key], depth + 1)
    return ""
