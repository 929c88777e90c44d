"""Read conversations of OpenHands: the list of events that it exports.

Events up to 1.x are actions and observations ("action", "observation", "cause"); the call that a
model wrote stands in "tool_call_metadata", with the response that several calls share. Events of
the SDK have a "kind": "ActionEvent", "ObservationEvent", "MessageEvent"; it keeps each in a file of
its own, beside a base_state.json with the model and the tokens of each response. What the program
did for itself (states, recalls) is not part of the conversation.
"""

from __future__ import annotations

import json
from pathlib import Path
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
from composer_replication.data.ingestion.formats.chat_messages import tools_of
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
    reported_usage,
    text_at,
    value_at,
)
from composer_replication.data.sites.shell_rules import word_set

_STATE = "base_state.json"
_OWN_ACTIONS = word_set(
    "change_agent_state recall null pause resume stop start loading_microagents"
)
_OWN_OBSERVATIONS = word_set("agent_state_changed recall null loading_microagents")
_SDK_KINDS = word_set(
    "SystemPromptEvent MessageEvent ActionEvent ObservationEvent AgentErrorEvent"
    " UserRejectObservation Condensation"
)
_SDK_SILENT = word_set(
    "ConversationStateUpdateEvent PauseEvent CondensationRequest CondensationSummaryEvent"
    " LLMCompletionLogEvent TokenEvent InterruptEvent SystemPromptUpdateEvent"
)


def _events(value: Any) -> list[Any]:
    for key in ("", "history", "trajectory", "events"):
        events = value_at(value, key) if key else value
        if isinstance(events, list) and events:
            return events
    return []


def _fits(document: Any) -> bool:
    events = _events(document)[:20]
    return any(
        text_at(event, "source") and ("action" in event or "observation" in event)
        for event in events
        if isinstance(event, dict) and isinstance(event.get("id"), int)
    )


def _is_sdk_event(record: Any) -> bool:
    return bool(text_at(record, "kind") in _SDK_KINDS and text_at(record, "source"))


def _fits_sdk(document: Any) -> bool:
    return any(_is_sdk_event(event) for event in _events(document)[:20])


class _EventReader:
    """Builds the session of one conversation, event by event."""

    def __init__(self, content: LogContent) -> None:
        self.raw = content.raw
        self.draft = SessionDraft(id=content.path.name.partition(".")[0])
        self.message_of: dict[str, MessageDraft] = {}  # id of a response -> its message
        self.call_of: dict[int, str] = {}  # id of an action -> id of its call

    def read(self, event: Any) -> None:
        self.draft.saw_time(text_at(event, "timestamp"))
        if text_at(event, "action"):
            self._action(event)
        elif text_at(event, "observation"):
            self._observation(event)
        else:
            self.raw.unknown_types["?"] += 1

    def _action(self, event: dict[str, Any]) -> None:
        action, arguments = text_at(event, "action"), dict_at(event, "args")
        metadata = dict_at(event, "tool_call_metadata")
        text = text_at(arguments, "content") or text_at(event, "message")
        if action in _OWN_ACTIONS:
            return
        if action == "system":
            self.draft.add("system", HARNESS, [Text(text)])
            self.draft.tools = tools_of(arguments.get("tools"))
        elif metadata:
            self._called(event, metadata)
        elif action == "condensation":
            self.draft.add_event("compaction", text=text_at(arguments, "summary"))
        elif text_at(event, "source") == "user":
            self.draft.add("user", HUMAN, [Text(text)])
        elif action == "message":
            self._write(str(event.get("id")), None, [Text(text)])
        else:
            self._uncalled(event, action, arguments)

    def _called(self, event: dict[str, Any], metadata: dict[str, Any]) -> None:
        """An action that a function call asked for: the call as the model wrote it."""
        response = dict_at(metadata, "model_response")
        choices = list_at(response, "choices")
        answer = dict_at(choices[0] if choices else None, "message")
        call_id = text_at(metadata, "tool_call_id")
        name = text_at(metadata, "function_name")
        blocks: list[Block] = []
        if text := content_text(answer.get("content")):
            blocks.append(Text(text))
        for call in list_at(answer, "tool_calls"):
            value = value_at(call, "function", "arguments")
            called = text_at(call, "function", "name")
            blocks.append(ToolCall(text_at(call, "id"), called, arguments_of(value)))
        if all(not isinstance(b, ToolCall) or b.id != call_id for b in blocks):
            blocks.append(ToolCall(call_id, name, dict_at(event, "args")))
        key = text_at(response, "id") or call_id
        if key not in self.message_of:
            message = self._write(key, text_at(response, "model") or None, blocks)
            usage = dict_at(response, "usage")
            message.context_tokens = int_at(usage, "prompt_tokens")
            message.usage = reported_usage(
                output=int_at(usage, "completion_tokens"),
                cached=int_at(usage, "cache_read_input_tokens"),
                cache_write=int_at(usage, "cache_creation_input_tokens"),
            )
        if isinstance(number := event.get("id"), int):
            self.call_of[number] = call_id

    def _uncalled(self, event: dict[str, Any], action: str, arguments: dict[str, Any]) -> None:
        """An action that the model wrote in text: it becomes a call, numbered here."""
        self.draft.makes_ids = True
        thought = text_at(arguments, "thought")
        call_id = self.draft.unique_id(f"action-{event.get('id')}")
        shown = {k: v for k, v in arguments.items() if k != "thought" and v is not None}
        blocks: list[Block] = [Text(thought)] if thought else []
        self._write(call_id, None, [*blocks, ToolCall(call_id, _tool_of(action), shown)])
        if isinstance(number := event.get("id"), int):
            self.call_of[number] = call_id

    def _write(self, key: str, model: str | None, blocks: list[Block]) -> MessageDraft:
        self.raw.assistant_records += 1
        if model:
            self.raw.models[model] = self.raw.models.get(model, 0) + 1
        message = self.message_of[key] = self.draft.add("assistant", model, blocks)
        return message

    def _observation(self, event: dict[str, Any]) -> None:
        kind, text = text_at(event, "observation"), text_at(event, "content")
        if kind in _OWN_OBSERVATIONS:
            return
        cause = event.get("cause")
        call_id = text_at(event, "tool_call_metadata", "tool_call_id") or (
            self.call_of.get(cause, "") if isinstance(cause, int) else ""
        )
        if not call_id:
            self.draft.add("user", HARNESS, [Text(text)], tag="meta")
            return
        code = value_at(event, "extras", "metadata", "exit_code")
        code = value_at(event, "extras", "exit_code") if code is None else code
        failed = code > 0 if isinstance(code, int) and code >= 0 else None  # -1: still running
        self._result(call_id, text, True if kind in ("error", "user_rejected") else failed)

    def _result(self, call_id: str, text: str, is_error: bool | None) -> None:
        if not self.draft.add_result(ToolResult(call_id, text, is_error)):
            self.raw.duplicates += 1

    # ---- events of the SDK -----------------------------------------------------------------------

    def read_sdk(self, event: Any) -> None:
        kind = text_at(event, "kind")
        self.draft.saw_time(text_at(event, "timestamp"))
        call_id = text_at(event, "tool_call_id")
        if kind == "SystemPromptEvent":
            self.draft.add("system", HARNESS, [Text(text_at(event, "system_prompt", "text"))])
            self.draft.tools = tools_of(event.get("tools"))
        elif kind == "MessageEvent":
            self._sdk_message(event)
        elif kind == "ActionEvent":
            self._sdk_action(event, call_id)
        elif kind == "ObservationEvent":
            observation = dict_at(event, "observation")
            text = content_text(observation.get("content")) or text_at(observation, "output")
            code = value_at(observation, "exit_code")
            code = value_at(observation, "metadata", "exit_code") if code is None else code
            failed = code > 0 if isinstance(code, int) and code >= 0 else None
            flag = observation.get("is_error")
            is_error = failed or (flag if isinstance(flag, bool) else failed)
            self._result(call_id, text, is_error)
        elif kind in ("AgentErrorEvent", "UserRejectObservation"):
            text = text_at(event, "error") or f"rejected by user: {event.get('rejection_reason')}"
            self._result(call_id, text, True)
        elif kind == "Condensation":
            self.draft.add_event("compaction", text=text_at(event, "summary"))
        elif kind not in _SDK_SILENT:
            self.raw.unknown_types[kind or "?"] += 1

    def _sdk_message(self, event: dict[str, Any]) -> None:
        text = content_text(value_at(event, "llm_message", "content"))
        if text_at(event, "source") == "user":
            self.draft.add("user", HUMAN, [Text(text)])
        elif text_at(event, "source") == "agent":
            self._write(
                text_at(event, "llm_response_id") or text_at(event, "id"), None, [Text(text)]
            )
        else:
            self.draft.add("user", HARNESS, [Text(text)], tag="meta")

    def _sdk_action(self, event: dict[str, Any], call_id: str) -> None:
        call = dict_at(event, "tool_call")
        function = dict_at(call, "function") or call
        arguments = arguments_of(function.get("arguments"))
        if not arguments:
            arguments = {k: v for k, v in dict_at(event, "action").items() if k != "kind"}
        name = text_at(event, "tool_name") or text_at(function, "name")
        block = ToolCall(call_id, name, arguments)
        key = text_at(event, "llm_response_id") or call_id
        if key in self.message_of:
            self.message_of[key].blocks.append(block)
            return
        reasoning = text_at(event, "reasoning_content")
        thought = content_text(event.get("thought"))
        blocks: list[Block] = [Thinking(reasoning)] if reasoning else []
        blocks += [Text(thought)] if thought else []
        self._write(key, None, [*blocks, block])

    def add_metrics(self, metrics: Any) -> None:
        """The tokens and the price of each response, by its id; the model of all."""
        usages, costs = list_at(metrics, "token_usages"), list_at(metrics, "costs")
        for number, usage in enumerate(usages):
            message = self.message_of.get(text_at(usage, "response_id"))
            if message is None:
                continue
            message.author = text_at(usage, "model") or message.author
            message.context_tokens = int_at(usage, "prompt_tokens")
            message.usage = reported_usage(
                output=int_at(usage, "completion_tokens"),
                cached=int_at(usage, "cache_read_tokens"),
                cache_write=int_at(usage, "cache_write_tokens"),
                usd=value_at(costs[number], "cost") if len(costs) == len(usages) else None,
            )


def _tool_of(action: str) -> str:
    """The tool of an action that was written in text: "run" is a shell."""
    return {"run": "execute_bash", "run_ipython": "execute_ipython_cell"}.get(action, action)


def _read(content: LogContent) -> list[SessionDraft]:
    reader = _EventReader(content)
    for event in _events(content.document):
        reader.read(event)
    return [reader.draft]


def _read_sdk(content: LogContent) -> list[SessionDraft]:
    reader = _EventReader(content)
    records = [record for _, record in content.records]
    for event in records if _is_sdk_event(records[0]) else _events(content.document):
        reader.read_sdk(event)
    return [reader.draft]


# ---- conversations of the SDK: base_state.json and events/event-*.json --------------------------


def _fits_folder(document: Any) -> bool:
    return bool(
        text_at(document, "id")
        and dict_at(document, "agent", "llm")
        and text_at(document, "execution_status")
    )


def is_event_of_folder(path: Path) -> bool:
    """Whether a file is one event of a conversation that is read by its base_state.json."""
    return path.parent.name == "events" and (path.parent.parent / _STATE).is_file()


def _event_files(state: Path) -> list[Path]:
    return sorted((state.parent / "events").glob("event-*.json"))


def _read_folder(content: LogContent) -> list[SessionDraft]:
    reader = _EventReader(content)
    state = content.document
    reader.draft.id = text_at(state, "id")
    reader.draft.cwd = text_at(state, "workspace", "working_dir")
    for path in _event_files(content.path):
        try:
            event = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            content.raw.damaged_lines += 1
            continue
        reader.read_sdk(event)
    for metrics in dict_at(state, "stats", "usage_to_metrics").values():
        reader.add_metrics(metrics)
    return [reader.draft]


OPENHANDS = LogFormat(
    name="openhands", agent="OpenHands", layout="document", fits=_fits, read=_read
)
OPENHANDS_FOLDER = LogFormat(
    name="openhands_folder",
    agent="OpenHands",
    layout="document",
    fits=_fits_folder,
    read=_read_folder,
    folder_of=lambda state: text_at(state, "workspace", "working_dir"),
    beside=_event_files,
)
OPENHANDS_SDK = LogFormat(
    name="openhands_sdk", agent="OpenHands", layout="document", fits=_fits_sdk, read=_read_sdk
)
OPENHANDS_SDK_LINES = LogFormat(
    name="openhands_sdk_lines",
    agent="OpenHands",
    layout="lines",
    fits=_is_sdk_event,
    read=_read_sdk,
)
