"""Read rollouts of the Codex CLI, `~/.codex/sessions/Y/M/D/rollout-*.jsonl`.

A line is {"timestamp", "type", "payload"}. Items of type `response_item` are what the model saw and
wrote, one item per block; `event_msg` is what the terminal showed. The two overlap: messages come
from the items, and only facts that no item holds from the events: which user texts a person typed,
exit codes, the size of a prompt. Logs of the first versions hold the items without an envelope.

A response has no id. Its items are joined until a `token_count`, which ends each response, or, in
a log without these, until a result arrives.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Block,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    TurnUsage,
)
from composer_replication.data.ingestion.authorship import Authorship
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    MessageDraft,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    int_at,
    list_at,
    text_at,
    value_at,
)
from composer_replication.data.ingestion.repository import remote_name

_RECORDS = frozenset(
    [
        "session_meta",
        "response_item",
        "event_msg",
        "turn_context",
        "compacted",
        "world_state",
        "ghost_snapshot",
        "token_usage_record",
    ]
)
_CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"))
_OUTPUTS = frozenset(("function_call_output", "custom_tool_call_output", "tool_search_output"))
_TOOL_SEARCH = frozenset(("tool_search_call", "tool_search_output"))
"""The search for tools that are offered later; without a call id the provider ran it."""
_FAILED = {"completed": False, "failed": True}
_ITEMS = _CALLS | _OUTPUTS | {"message", "reasoning"}
_HARNESS_OPENINGS: tuple[tuple[str, str], ...] = (
    ("<turn_aborted>", "interrupt"),
    ("<environment_context>", "reminder"),
    ("<user_instructions>", "reminder"),
    ("# AGENTS.md instructions", "reminder"),
    ("<permissions instructions>", "reminder"),
    ("<subagent_notification>", "task_notification"),
    ("<user_shell_command>", "command"),
    ("<skill>", "reminder"),
    ("<collaboration_mode>", "reminder"),
)
_CWD = re.compile(r"<environment_context>\s*<cwd>([^<\n]{1,1024})</cwd>")
_SILENT_ITEMS = frozenset(("ghost_snapshot", "other"))


class _Facts(NamedTuple):
    """What the events of a rollout add to its items."""

    typed: frozenset[str]
    exit_codes: dict[str, int]
    counts_tokens: bool


def _fits(record: Any) -> bool:
    if text_at(record, "type") == "session_meta":
        return bool(text_at(record, "payload", "id"))
    # The first versions: a header without a type, then bare items.
    return bool(
        isinstance(record, dict)
        and {"id", "timestamp", "instructions"} <= record.keys()
        and "type" not in record
    )


def _folder_of(record: Any) -> str:
    return text_at(record, "payload", "cwd")


def _read(content: LogContent) -> list[SessionDraft]:
    rows = [(number, *_unwrap(record)) for number, record in content.records]
    reader = _RolloutReader(content, _facts([(kind, payload) for _, kind, payload in rows]))
    for (_, record), (_, kind, payload) in zip(content.records, rows, strict=True):
        reader.draft.saw_time(text_at(record, "timestamp"))
        reader.read_record(kind, payload)
    return [reader.draft] if reader.draft.messages else []


def _unwrap(record: Any) -> tuple[str, dict[str, Any]]:
    """The type of a record and its payload; bare items of the first versions get the envelope."""
    kind = text_at(record, "type")
    if kind in _RECORDS:
        return kind, dict_at(record, "payload")
    if kind in _ITEMS:
        return "response_item", record
    if not kind and text_at(record, "id"):
        return "session_meta", record
    return kind or text_at(record, "record_type") or "?", dict_at(record, "payload")


def _facts(rows: list[tuple[str, dict[str, Any]]]) -> _Facts:
    events = [payload for kind, payload in rows if kind == "event_msg"]
    codes = {
        text_at(event, "call_id"): int_at(event, "exit_code")
        for event in events
        if text_at(event, "type") == "exec_command_end"
    }
    for event in events:
        if text_at(event, "type") == "patch_apply_end" and event.get("success") is False:
            codes[text_at(event, "call_id")] = 1
    typed = {text_at(e, "message").strip() for e in events if text_at(e, "type") == "user_message"}
    has_counts = any(text_at(e, "type") == "token_count" and e.get("info") for e in events)
    return _Facts(frozenset(typed), codes, has_counts)


class _RolloutReader:
    """Builds the session of one rollout, record by record."""

    def __init__(self, content: LogContent, facts: _Facts) -> None:
        self.raw = content.raw
        self.facts = facts
        self.draft = SessionDraft()
        self.model: str | None = None
        self.message: MessageDraft | None = None  # the response that still grows

    def read_record(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "session_meta":
            self._meta(payload)
        elif kind == "turn_context":
            self.model = text_at(payload, "model") or self.model
            self.draft.cwd = self.draft.cwd or text_at(payload, "cwd")
        elif kind == "response_item":
            self._item(payload)
        elif kind == "event_msg":
            self._event(payload)
        elif kind == "compacted":
            self._compact(payload)
        elif kind not in _RECORDS and kind != "state":
            self.raw.unknown_types[kind] += 1

    def _meta(self, payload: dict[str, Any]) -> None:
        draft = self.draft
        if version := text_at(payload, "cli_version"):
            draft.versions.add(version)
            self.raw.versions.add(version)
        if draft.id:
            return  # a resumed session repeats its header; a forked one goes on with its parent's
        draft.id = text_at(payload, "id")
        draft.cwd = text_at(payload, "cwd")
        if url := text_at(payload, "git", "repository_url"):
            draft.remote = remote_name(url)
        draft.parent = text_at(
            payload, "source", "subagent", "thread_spawn", "parent_thread_id"
        ) or text_at(payload, "parent_thread_id")
        instructions = text_at(payload, "base_instructions", "text") or text_at(
            payload, "instructions"
        )
        if instructions:
            draft.add("system", HARNESS, [Text(instructions)])

    def _item(self, item: dict[str, Any]) -> None:
        kind = text_at(item, "type")
        if kind == "message" and text_at(item, "role") != "assistant":
            self._user_message(item)
        elif kind == "agent_message":
            self._agent_message(item)
        elif kind in _TOOL_SEARCH and not text_at(item, "call_id"):
            self._opaque(item)
        elif kind in _OUTPUTS:
            self._output(item)
        elif kind == "message":
            self._write(Text(content_text(item.get("content"))))
        elif kind == "reasoning":
            self._write(Thinking(_reasoning_text(item)))
        elif kind in _CALLS:
            self._write(_call(item))
        elif kind.endswith("_call"):
            self._opaque(item)
        elif kind not in _SILENT_ITEMS:
            self.raw.unknown_types[f"response_item/{kind}"] += 1

    def _opaque(self, item: dict[str, Any]) -> None:
        """What the provider ran in the middle of its response: no call that the agent answers."""
        kind = text_at(item, "type")
        value = {key: item[key] for key in item.keys() - {"type", "id", "status"}}
        self._write(Opaque(kind, json.dumps(value, ensure_ascii=False)))
        self.raw.opaque_blocks[kind] += 1

    def _agent_message(self, item: dict[str, Any]) -> None:
        """A message of another agent of the same task, as far as it is not encrypted."""
        self.message = None
        text = content_text(item.get("content"))
        block = Text(text) if text else Opaque("agent_message", "")
        self.draft.add("user", HARNESS, [block], tag="task_notification")

    def _write(self, block: Block) -> None:
        if self.message is None:
            self.message = self.draft.add("assistant", self.model, [])
            self.raw.assistant_records += 1
            if self.model:
                self.raw.models[self.model] = self.raw.models.get(self.model, 0) + 1
        self.message.blocks.append(block)
        self.message.written_at = self.draft.time

    def _user_message(self, item: dict[str, Any]) -> None:
        self.message = None
        text = content_text(item.get("content"))
        if not self.draft.cwd and (
            folder := _CWD.match(text)
        ):  # the first versions' header lacks it
            self.draft.cwd = folder[1]
        author, tag = self._authorship(text, text_at(item, "role"))
        self.draft.add("user", author, [Text(text)], tag=tag)

    def _authorship(self, text: str, role: str) -> Authorship:
        if self.facts.typed and text.strip() in self.facts.typed:
            return Authorship(HUMAN, "")
        for opening, tag in _HARNESS_OPENINGS:
            if text.lstrip().startswith(opening):
                return Authorship(HARNESS, tag)
        if role != "user":
            return Authorship(HARNESS, "reminder")
        # A log without events cannot say who wrote it; a person is the usual case.
        return Authorship(HARNESS, "meta") if self.facts.typed else Authorship(HUMAN, "")

    def _output(self, item: dict[str, Any]) -> None:
        call_id, text = text_at(item, "call_id"), _output_text(item.get("output"))
        code = self.facts.exit_codes.get(call_id)
        is_error = None if code is None else code != 0
        if text_at(item, "type") == "tool_search_output":
            text = json.dumps(list_at(item, "tools"), ensure_ascii=False)
            is_error = _FAILED.get(text_at(item, "status"))
        if not self.draft.add_result(ToolResult(call_id, text, is_error)):
            self.raw.duplicates += 1
        if not self.facts.counts_tokens:
            self.message = None

    def _event(self, event: dict[str, Any]) -> None:
        kind = text_at(event, "type")
        if kind == "token_count" and isinstance(event.get("info"), dict):
            tokens = int_at(event, "info", "last_token_usage", "input_tokens")
            if self.message is not None and _is_complete(self.message):
                self.message.context_tokens = tokens
                self.message.usage = _usage(dict_at(event, "info", "last_token_usage"))
                self.message = None
        elif kind in ("error", "stream_error"):
            self.draft.add_event("api_error", text=text_at(event, "message"))

    def _compact(self, payload: dict[str, Any]) -> None:
        """Continue with what the record says that the model sees from now on."""
        self.message = None
        draft = self.draft
        draft.add_event("compaction")
        system = [(i, i + 1) for i, m in enumerate(draft.messages) if m.role == "system"][:1]
        history = list_at(payload, "replacement_history")
        if not history:
            kept = [(i, i + 1) for i, m in enumerate(draft.messages) if m.role == "user"]
            summary = len(draft.messages)
            draft.new_context()
            draft.add("user", HARNESS, [Text(text_at(payload, "message"))], tag="compact_summary")
            draft.new_context(*system, *kept, (summary, summary + 1))
            return
        places = {_plain_text(m): i for i, m in enumerate(draft.messages)}
        draft.new_context()
        view: list[tuple[int, int]] = [*system]
        for item in history:
            text = content_text(value_at(item, "content"))
            position = places.pop(text, None) if text else None
            if position is None:
                position = len(draft.messages)
                self._replacement(item, text)
            view.append((position, position + 1))
        draft.new_context(*view)

    def _replacement(self, item: Any, text: str) -> None:
        """Add a message that stands in the new context only."""
        if text_at(item, "type") != "message":
            block: Block = Opaque(text_at(item, "type") or "?", "")
            self.draft.add("user", HARNESS, [block], tag="compact_summary")
        elif text_at(item, "role") == "assistant":
            self.draft.add("assistant", self.model, [Text(text)])
        else:
            author, tag = self._authorship(text, text_at(item, "role"))
            tag = "compact_summary" if author == HARNESS and tag == "meta" else tag
            self.draft.add("user", author, [Text(text)], tag=tag)


def _usage(counts: dict[str, Any]) -> TurnUsage:
    """The usage of a request; its output includes the reasoning."""
    return TurnUsage(
        output_tokens=int_at(counts, "output_tokens"),
        cached_tokens=int_at(counts, "cached_input_tokens"),
    )


def _plain_text(message: MessageDraft) -> str:
    """The text of a message that holds nothing but text and reasoning; else ""."""
    if message.role not in ("user", "assistant"):
        return ""
    texts = [block.text for block in message.blocks if isinstance(block, Text)]
    silent = all(isinstance(block, Text | Thinking) for block in message.blocks)
    return "\n".join(texts) if silent else ""


def _is_complete(message: MessageDraft) -> bool:
    return any(not isinstance(block, Thinking) for block in message.blocks)


def _reasoning_text(item: dict[str, Any]) -> str:
    """The reasoning as far as the log holds it: its text, else the summary; the rest is
    encrypted."""
    return content_text(item.get("content")) or content_text(item.get("summary"))


def _call(item: dict[str, Any]) -> ToolCall:
    if text_at(item, "type") == "local_shell_call":
        arguments = {k: v for k, v in dict_at(item, "action").items() if k != "type"}
        return ToolCall(_call_id(item), "local_shell", arguments)
    if text_at(item, "type") == "tool_search_call":
        return ToolCall(_call_id(item), "tool_search", arguments_of(item.get("arguments")))
    name, space = text_at(item, "name"), text_at(item, "namespace")
    value = item.get("arguments") if "arguments" in item else {"input": text_at(item, "input")}
    return ToolCall(_call_id(item), f"{space}.{name}" if space else name, arguments_of(value))


def _call_id(item: dict[str, Any]) -> str:
    return text_at(item, "call_id") or text_at(item, "id")


def _output_text(output: Any) -> str:
    """The text of a result: a string, parts, or {"content": ...} of the first versions."""
    if isinstance(output, dict):
        return text_at(output, "content") or content_text(output.get("content_items"))
    if isinstance(output, list):
        return "".join(text_at(part, "text") for part in output)
    return output if isinstance(output, str) else ""


CODEX = LogFormat(
    name="codex",
    agent="Codex CLI",
    layout="lines",
    fits=_fits,
    read=_read,
    folder_of=_folder_of,
)
