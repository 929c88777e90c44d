"""Read trajectories of SWE-agent, `*.traj`.

`history` is the conversation as the model saw it, each message marked with its agent and, if it is
a demonstration, with `is_demo`; `trajectory` is one entry per step. The history is read, and the
last step if the history ends before it. Where the model answers in text, its command is in the
field `action` and becomes a call of "bash" or of one of the program's own tools (numbered here);
with function calling the ids are those of the calls, numbered where a replayed demonstration
repeats them. An answer follows its message, and nothing else says what it answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.trace import HARNESS, HUMAN, Block, Text, ToolCall, ToolResult
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    list_at,
    text_at,
)
from composer_replication.data.sites.shell_rules import word_set

_OWN_TOOLS = word_set("""
    open goto scroll_up scroll_down create edit insert append search_dir search_file find_file
    str_replace_editor submit
""")


def _fits(document: Any) -> bool:
    steps = list_at(document, "trajectory")
    return bool(
        isinstance(document, dict)
        and isinstance(document.get("history"), list)
        and (not steps or "observation" in dict_at(steps[0]))
        and (steps or document["history"])
        and "trajectory" in document
    )


def _read(content: LogContent) -> list[SessionDraft]:
    document = content.document
    draft = SessionDraft(id=_session_id(document, content.path))
    draft.cwd = next(
        (
            folder
            for step in list_at(document, "trajectory")
            if (folder := text_at(step, "state", "working_dir"))
        ),
        "",
    )
    model = text_at(document, "replay_config", "agent", "model", "name") or None
    status = text_at(document, "info", "exit_status")
    pending: list[str] = []
    for message in list_at(document, "history"):
        if dict_at(message).get("is_demo") or text_at(message, "message_type") == "demonstration":
            draft.add("user", HARNESS, [Text(_text(message))], tag="demonstration")
            continue
        pending = _add_message(draft, message, model=model, pending=pending)
        content.raw.assistant_records += text_at(message, "role") == "assistant"
    content.raw.assistant_records += _add_last_step(draft, document, model=model)
    if status:
        draft.add_event("exit", text=status)
    return [draft]


def _add_last_step(draft: SessionDraft, document: Any, *, model: str | None) -> bool:
    """Add the last step if `history` ends before it: some versions keep it in `trajectory` only."""
    steps = list_at(document, "trajectory")
    last = dict_at(steps[-1] if steps else None)
    written = [message for message in draft.messages if message.role == "assistant"]
    response, action = text_at(last, "response"), text_at(last, "action").strip()
    if len(steps) != len(written) + 1 or not response or not action:
        return False
    draft.makes_ids = True
    call_id = draft.unique_id(f"step-{len(draft.messages)}")
    draft.add("assistant", model, [Text(response), _written_call(call_id, action)])
    draft.add_result(ToolResult(call_id, text_at(last, "observation")))
    return True


def _session_id(document: Any, path: Path) -> str:
    instance = text_at(document, "replay_config", "env", "problem_statement", "id")
    return instance or path.name.partition(".")[0]


def _text(message: Any) -> str:
    return content_text(dict_at(message).get("content"))


def _add_message(
    draft: SessionDraft, message: Any, *, model: str | None, pending: list[str]
) -> list[str]:
    """Add one message; returns the ids of the calls that the next message answers."""
    role, text = text_at(message, "role"), _text(message)
    if role == "assistant":
        calls = [_call(call, draft) for call in list_at(message, "tool_calls")]
        action = text_at(message, "action")
        if not calls and action.strip():
            draft.makes_ids = True
            calls = [_written_call(f"step-{len(draft.messages)}", action.strip())]
        blocks: list[Block] = [Text(text)] if text else []
        draft.add("assistant", model, [*blocks, *calls])
        return [call.id for call in calls]
    if role == "system":
        draft.add("system", HARNESS, [Text(text)])
        return pending
    if pending and (role == "tool" or draft.makes_ids):
        for call_id in pending:
            draft.add_result(ToolResult(call_id, text))
        return []
    # The task comes as an observation, too; it stands for what a person asked for.
    is_task = not any(m.role == "assistant" for m in draft.messages)
    author, tag = (HUMAN, "") if is_task else (HARNESS, "meta")
    draft.add("user", author, [Text(text)], tag=tag)
    return []


def _written_call(call_id: str, action: str) -> ToolCall:
    """The call of an action that was written in text: a tool of the program, or a shell command."""
    word, _, rest = action.partition(" ")
    if word in _OWN_TOOLS:
        return ToolCall(call_id, word, {"input": rest.strip()} if rest.strip() else {})
    return ToolCall(call_id, "bash", {"command": action})


def _call(call: Any, draft: SessionDraft) -> ToolCall:
    function = dict_at(call, "function")
    call_id = draft.unique_id(text_at(call, "id"))
    return ToolCall(call_id, text_at(function, "name"), arguments_of(function.get("arguments")))


SWE_AGENT = LogFormat(
    name="swe_agent", agent="SWE-agent", layout="document", fits=_fits, read=_read
)
