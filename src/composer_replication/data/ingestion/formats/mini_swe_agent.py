"""Read trajectories of mini-swe-agent, `*.traj.json`.

{"messages", "info", "trajectory_format"}; the first versions are the bare list of messages. The
model writes one fenced command per message (numbered here as calls of "bash"), or calls the tool
"bash"; the answer is a user or tool message with the exit code. A message's "extra" holds its time,
its price and the provider's response.
"""

from __future__ import annotations

import re
from typing import Any

from composer_replication.core.trace import HARNESS, HUMAN, Block, Text, ToolCall, ToolResult
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    int_at,
    iso_time,
    list_at,
    reported_usage,
    text_at,
    value_at,
)

_COMMAND = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n?```", re.DOTALL)


def _fits(document: Any) -> bool:
    if text_at(document, "trajectory_format").startswith("mini-swe-agent"):
        return True
    messages = document if isinstance(document, list) else list_at(document, "messages")
    if not messages or text_at(messages[0], "role") != "system":
        return False
    return any(
        text_at(message, "role") == "user" and _text(message).lstrip().startswith("<returncode>")
        for message in messages[:8]
    )


def _read(content: LogContent) -> list[SessionDraft]:
    document = content.document
    messages = document if isinstance(document, list) else list_at(document, "messages")
    draft = SessionDraft(id=content.path.name.partition(".")[0])
    if version := text_at(document, "info", "mini_version"):
        draft.versions.add(version)
        content.raw.versions.add(version)
    model = text_at(document, "info", "config", "model", "model_name") or None
    draft.cwd = text_at(document, "info", "config", "environment", "cwd")
    pending: list[str] = []
    for message in messages:
        pending = _add_message(draft, message, model=model, pending=pending)
        content.raw.assistant_records += text_at(message, "role") == "assistant"
    if status := text_at(document, "info", "exit_status"):
        draft.add_event("exit", text=status)
    return [draft]


def _text(message: Any) -> str:
    return content_text(dict_at(message).get("content"))


def _add_message(
    draft: SessionDraft, message: Any, *, model: str | None, pending: list[str]
) -> list[str]:
    """Add one message; returns the ids of the calls that the next message answers."""
    role, text = text_at(message, "role"), _text(message)
    draft.saw_time(iso_time(value_at(message, "extra", "timestamp")))
    if role == "assistant":
        calls = _calls(draft, message, text)
        blocks: list[Block] = [Text(text)] if text else []
        author = text_at(message, "extra", "response", "model") or model
        written = draft.add("assistant", author, [*blocks, *calls])
        usage = dict_at(message, "extra", "response", "usage")
        written.context_tokens = int_at(usage, "prompt_tokens")
        written.usage = reported_usage(
            output=int_at(usage, "completion_tokens"),
            cached=int_at(usage, "prompt_tokens_details", "cached_tokens"),
            usd=value_at(message, "extra", "cost"),
        )
        return [call.id for call in calls]
    if role == "system":
        draft.add("system", HARNESS, [Text(text)])
        return pending
    call_id = text_at(message, "tool_call_id") or (pending[0] if pending else "")
    if call_id and role in ("user", "tool"):
        code = value_at(message, "extra", "returncode")
        failed = code != 0 if isinstance(code, int) else None
        draft.add_result(ToolResult(call_id, text, failed))
        return pending[1:]
    is_task = not any(m.role == "assistant" for m in draft.messages)
    author, tag = (HUMAN, "") if is_task else (HARNESS, "meta")
    if role in ("user", "tool"):  # "exit" is the program's last note
        draft.add("user", author, [Text(text)], tag=tag)
    return []


def _calls(draft: SessionDraft, message: Any, text: str) -> list[ToolCall]:
    calls = [
        ToolCall(
            text_at(call, "id"),
            text_at(call, "function", "name"),
            arguments_of(value_at(call, "function", "arguments")),
        )
        for call in list_at(message, "tool_calls")
    ]
    if calls:
        return calls
    commands = _COMMAND.findall(text)
    if len(commands) != 1:  # the program refuses none and several
        return []
    draft.makes_ids = True
    return [ToolCall(f"step-{len(draft.messages)}", "bash", {"command": commands[0].strip()})]


MINI_SWE_AGENT = LogFormat(
    name="mini_swe_agent",
    agent="mini-swe-agent",
    layout="document",
    fits=_fits,
    read=_read,
)
