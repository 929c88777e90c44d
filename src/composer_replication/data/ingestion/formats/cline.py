"""Read tasks of Cline, Roo Code and Kilo Code: `tasks/ID/api_conversation_history.json`.

The messages are those of the API. With native tools they hold calls and results as blocks; else the
model writes a call as XML in its text, at most one per message, and the next user message begins
with "[tool for ...] Result:". Such calls are numbered here. What the program adds about the editor
(<environment_details>) is a message of its own.
"""

from __future__ import annotations

import re
from typing import Any

from composer_replication.core.trace import HARNESS, HUMAN, Block, Text, ToolCall, ToolResult
from composer_replication.data.ingestion.formats.chat_messages import add_messages, is_conversation
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    dict_at,
    list_at,
    text_at,
)
from composer_replication.data.sites.shell_rules import word_set

_TOOLS = word_set("""
    execute_command read_file write_to_file replace_in_file apply_diff insert_content edit_file
    search_and_replace search_files list_files list_code_definition_names codebase_search
    browser_action use_mcp_tool access_mcp_resource ask_followup_question attempt_completion
    new_task plan_mode_respond switch_mode fetch_instructions update_todo_list web_fetch
    load_mcp_documentation condense new_rule run_slash_command
""")
_CALL = re.compile(rf"<({'|'.join(sorted(_TOOLS))})>(.*?)</\1>", re.DOTALL)
_ARGUMENT = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)
_RESULT = re.compile(r"\A\[(\w+)[^\n]*?\] Result:\s*")
_DETAILS = re.compile(r"\s*<environment_details>.*?</environment_details>\s*", re.DOTALL)
_TASK = re.compile(r"</?(?:task|user_message|feedback|answer)>")
_FOLDER = re.compile(r"(?:Current Working Directory|Current Workspace Directory) \(([^)\n]+)\)")
_SIGNS = ("<environment_details>", "<task>", "<user_message>")


def _messages_of(document: Any) -> list[Any]:
    messages = document if isinstance(document, list) else list_at(document, "messages")
    return messages if is_conversation(messages) else []


def _texts(message: Any) -> list[str]:
    content = dict_at(message).get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [text for part in parts if (text := text_at(part, "text"))]


def _fits(document: Any) -> bool:
    messages = _messages_of(document)[:4]
    texts = [text for m in messages if text_at(m, "role") == "user" for text in _texts(m)]
    return any(sign in text for text in texts for sign in _SIGNS)


def _folder_of(document: Any) -> str:
    for message in _messages_of(document)[:4]:
        for text in _texts(message):
            if match := _FOLDER.search(text):
                return match[1]
    return ""


def _read(content: LogContent) -> list[SessionDraft]:
    messages = _messages_of(content.document)
    name = content.path.stem.removesuffix(".messages")
    generic = name in ("api_conversation_history", "messages")
    draft = SessionDraft(id=content.path.parent.name if generic else name)
    draft.cwd = _folder_of(content.document)
    model = text_at(content.document, "model") or None
    pending = ""
    for message in messages:
        if any(isinstance(part, dict) and _is_native(part) for part in _parts(message)):
            add_messages(draft, [_without_details(message)], model=model)
            pending = ""
        elif text_at(message, "role") == "assistant":
            pending = _add_answer(draft, message, model=model)
        else:
            _add_user(draft, message, pending)
            pending = ""
        content.raw.assistant_records += text_at(message, "role") == "assistant"
    return [draft]


def _parts(message: Any) -> list[Any]:
    return list_at(message, "content")


def _is_native(part: dict[str, Any]) -> bool:
    return text_at(part, "type") in ("tool_use", "tool_result")


def _without_details(message: Any) -> dict[str, Any]:
    kept = [
        part
        for part in _parts(message)
        if _is_native(dict_at(part)) or _DETAILS.sub("", text_at(part, "text"))
    ]
    return {**dict_at(message), "content": kept}


def _add_answer(draft: SessionDraft, message: Any, *, model: str | None) -> str:
    """Add a message of the model; returns the id of its call, or ""."""
    text = "\n".join(_texts(message))
    blocks: list[Block] = [Text(text)] if text else []
    match = _CALL.search(text)
    call_id = ""
    if match is not None:
        draft.makes_ids = True
        call_id = draft.unique_id(f"step-{len(draft.messages)}")
        arguments = {key: value.strip() for key, value in _ARGUMENT.findall(match[2])}
        blocks.append(ToolCall(call_id, match[1], arguments))
    draft.add("assistant", model, blocks)
    return call_id


def _add_user(draft: SessionDraft, message: Any, call_id: str) -> None:
    texts = _texts(message)
    details = [match[0].strip() for text in texts for match in _DETAILS.finditer(text)]
    texts = [kept for text in texts if (kept := _DETAILS.sub("", text).strip())]
    if call_id and texts and (match := _RESULT.match(texts[0])):
        result = "\n".join(filter(None, (texts[0][match.end() :], *texts[1:])))
        draft.add_result(ToolResult(call_id, result))
    elif texts:
        text = _TASK.sub("", "\n".join(texts)).strip()
        is_harness = text.startswith(("[ERROR]", "[TASK RESUMPTION]"))
        author, tag = (HARNESS, "meta") if is_harness else (HUMAN, "")
        draft.add("user", author, [Text(text)], tag=tag)
    if details:
        draft.add("user", HARNESS, [Text("\n".join(details))], tag="reminder")


CLINE = LogFormat(
    name="cline",
    agent="Cline",
    layout="document",
    fits=_fits,
    read=_read,
    folder_of=_folder_of,
)
