"""Read sessions of OpenCode: `opencode export`, its database, and the folders of earlier versions.

All three hold the same: session, messages, and the parts of a message. One message of the assistant
spans several responses of the model; a part "step-start" begins each. The state of a part "tool"
holds the result; `metadata.exit` is the exit code of a command, whose state is "completed" also if
that is not 0. A compaction is a message of its own, and the summary after it is all that the model
sees from then on.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    MessageDraft,
    SessionDraft,
    arguments_of,
    dict_at,
    int_at,
    iso_time,
    list_at,
    reported_usage,
    text_at,
    value_at,
)
from composer_replication.data.sites.shell_rules import word_set

_SILENT_PARTS = word_set(
    "step-start step-finish snapshot patch file agent subtask retry compaction"
)
_INVALID = "invalid"
"""The tool to which OpenCode turns a call of a tool that it does not know, or of wrong arguments;
it says what was wrong, and ends "completed"."""
_TABLES = frozenset(("session", "message", "part"))


def _fits_export(document: Any) -> bool:
    messages = list_at(document, "messages")
    return text_at(document, "info", "id").startswith("ses") and all(
        isinstance(dict_at(message).get("parts"), list) for message in messages[:20]
    )


def _fits_storage(document: Any) -> bool:
    return bool(
        text_at(document, "id").startswith("ses_")
        and text_at(document, "directory")
        and "time" in document
        and "messages" not in document
    )


def _fits_database(tables: Any) -> bool:
    return isinstance(tables, frozenset) and tables >= _TABLES


def _folder_of(document: Any) -> str:
    return text_at(document, "info", "directory") or text_at(document, "directory")


def _read_export(content: LogContent) -> list[SessionDraft]:
    document = content.document
    return [_session(dict_at(document, "info"), list_at(document, "messages"), content)]


def _read_storage(content: LogContent) -> list[SessionDraft]:
    """A session of the folders: storage/session/PROJECT/ID.json, storage/message/ID/*.json and
    storage/part/MESSAGE/*.json."""
    messages: list[Any] = []
    for _, message, parts in _files_of_messages(content.path, content.document):
        values = [part for part in map(_json_of, parts) if part is not None]
        messages.append({"info": message, "parts": values})
    messages.sort(key=lambda m: (int_at(m, "info", "time", "created"), text_at(m, "info", "id")))
    return [_session(dict_at(content.document), messages, content)]


def _files_of_messages(session: Path, info: Any) -> Iterator[tuple[Path, Any, list[Path]]]:
    """The file of each message of a session in storage/, the message, and the files of its parts.

    Folders are named by ids, files need not be.
    """
    storage = session.parent.parent.parent
    for path in sorted((storage / "message" / Path(text_at(info, "id")).name).glob("*.json")):
        if (message := _json_of(path)) is not None:
            name = Path(text_at(message, "id")).name or "-"
            yield path, message, sorted((storage / "part" / name).glob("*.json"))


def _files_beside(session: Path) -> Iterator[Path]:
    for path, _, parts in _files_of_messages(session, _json_of(session)):
        yield path
        yield from parts


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _read_database(content: LogContent) -> list[SessionDraft]:
    drafts: list[SessionDraft] = []
    with sqlite3.connect(f"{content.path.absolute().as_uri()}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        sessions = database.execute("SELECT * FROM session ORDER BY time_created, id").fetchall()
        for row in sessions:
            info = {
                "id": row["id"],
                "directory": row["directory"],
                "version": _column(row, "version"),
                "parentID": _column(row, "parent_id"),
                "time": {"created": row["time_created"]},
            }
            drafts.append(_session(info, _messages_in(database, row["id"]), content))
    return drafts


def _messages_in(database: sqlite3.Connection, session_id: str) -> list[Any]:
    messages: dict[str, Any] = {}
    query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    for row in database.execute(query, (session_id,)):
        info = {"id": row["id"], **arguments_of(row["data"])}
        messages[row["id"]] = {"info": info, "parts": []}
    query = "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id"
    for row in database.execute(query, (session_id,)):
        if row["message_id"] in messages:
            messages[row["message_id"]]["parts"].append(arguments_of(row["data"]))
    return list(messages.values())


def _column(row: sqlite3.Row, name: str) -> Any:
    return row[name] if name in row.keys() else None  # noqa: SIM118 (a Row is no dict)


# ---- messages ------------------------------------------------------------------------------------


def _session(info: dict[str, Any], messages: list[Any], content: LogContent) -> SessionDraft:
    draft = SessionDraft(id=text_at(info, "id"), cwd=text_at(info, "directory"))
    draft.parent = text_at(info, "parentID")
    if version := text_at(info, "version"):
        draft.versions.add(version)
        content.raw.versions.add(version)
    draft.saw_time(_time(value_at(info, "time", "created")))
    draft.lacks.append("the system prompt")
    for message in messages:
        draft.saw_time(_time(value_at(message, "info", "time", "created")))
        if text_at(message, "info", "role") == "assistant":
            _add_answer(draft, message, content)
        else:
            _add_user(draft, message)
    return draft


def _time(milliseconds: Any) -> str:
    return iso_time(milliseconds / 1000) if isinstance(milliseconds, int | float) else ""


def _add_user(draft: SessionDraft, message: Any) -> None:
    for part in list_at(message, "parts"):
        if text_at(part, "type") == "compaction":
            draft.add_event("compaction")
            draft.add("user", HARNESS, [Text("What did we do so far?")], tag="meta")
        elif text_at(part, "type") == "text" and not dict_at(part).get("ignored"):
            is_harness = bool(dict_at(part).get("synthetic"))
            author, tag = (HARNESS, "reminder") if is_harness else (HUMAN, "")
            draft.add("user", author, [Text(text_at(part, "text"))], tag=tag)


def _add_answer(draft: SessionDraft, message: Any, content: LogContent) -> None:
    info = dict_at(message, "info")
    model = text_at(info, "modelID") or None
    written: MessageDraft | None = None
    results: list[ToolResult] = []
    for part in list_at(message, "parts"):
        kind = text_at(part, "type")
        if kind == "step-start":
            _add_results(draft, results, content)
            written = None
        elif kind == "step-finish" and written is not None:
            tokens = dict_at(part, "tokens")
            written.context_tokens = _prompt_tokens(tokens)
            written.usage = reported_usage(
                output=int_at(tokens, "output") + int_at(tokens, "reasoning"),
                cached=int_at(tokens, "cache", "read"),
                cache_write=int_at(tokens, "cache", "write"),
                usd=dict_at(part).get("cost"),
            )
        elif kind in ("text", "reasoning", "tool"):
            if written is None:
                written = draft.add("assistant", model, [])
                content.raw.assistant_records += 1
            _add_part(written, part, kind, results)
        elif kind not in _SILENT_PARTS:
            content.raw.unknown_types[f"part/{kind or '?'}"] += 1
    _add_results(draft, results, content)
    if error := text_at(info, "error", "name"):
        event = "interrupted" if "Abort" in error else "api_error"
        draft.add_event(event, text=text_at(info, "error", "data", "message") or error)
    if info.get("summary") is True and written is not None:
        # The model goes on with the request for the summary and the summary alone.
        last = len(draft.messages)
        draft.new_context((max(0, last - 2), last))


def _add_part(written: MessageDraft, part: Any, kind: str, results: list[ToolResult]) -> None:
    if kind == "text":
        written.blocks.append(Text(text_at(part, "text")))
    elif kind == "reasoning":
        written.blocks.append(Thinking(text_at(part, "text")))
    else:
        state, call_id = dict_at(part, "state"), text_at(part, "callID") or text_at(part, "id")
        call = ToolCall(call_id, text_at(part, "tool"), arguments_of(state.get("input")))
        written.blocks.append(call)
        status = text_at(state, "status")
        if status == "error":
            results.append(ToolResult(call_id, text_at(state, "error"), True))
        elif status == "completed":
            code = value_at(state, "metadata", "exit")
            failed = call.name == _INVALID or (isinstance(code, int) and code != 0)
            results.append(ToolResult(call_id, text_at(state, "output"), failed))


def _add_results(draft: SessionDraft, results: list[ToolResult], content: LogContent) -> None:
    for result in results:
        if not draft.add_result(result):
            content.raw.duplicates += 1
    results.clear()


def _prompt_tokens(tokens: dict[str, Any]) -> int:
    cache = int_at(tokens, "cache", "read") + int_at(tokens, "cache", "write")
    return int_at(tokens, "input") + cache


OPENCODE = LogFormat(
    name="opencode",
    agent="OpenCode",
    layout="document",
    fits=_fits_export,
    read=_read_export,
    folder_of=_folder_of,
)
OPENCODE_STORAGE = LogFormat(
    name="opencode_storage",
    agent="OpenCode",
    layout="document",
    fits=_fits_storage,
    read=_read_storage,
    folder_of=_folder_of,
    beside=_files_beside,
)
OPENCODE_DATABASE = LogFormat(
    name="opencode_database",
    agent="OpenCode",
    layout="database",
    fits=_fits_database,
    read=_read_database,
    # what SQLite has not yet moved into the database itself
    beside=lambda path: (path.with_name(f"{path.name}-wal"),),
)
