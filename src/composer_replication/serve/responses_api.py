"""OpenAI's responses: requests read, replies written, whole and as a stream of events.

    read_responses(body, headers={"x-codex-turn-metadata": '{"request_kind": "compaction"}'})
    responses_body(reply, request)     # {"object": "response", "output": [...], ...}
    responses_events(reply, request)   # response.created, ... response.completed

One message of the student is several items here (reasoning, message, calls); they come back as
several items, too, and are joined.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from composer_replication.core.trace import Block, ToolCall, ToolSpec, Turn
from composer_replication.serve.chat_completions import thinking_of
from composer_replication.serve.client_messages import (
    ClientMessage,
    ClientRequest,
    Purpose,
    RefusedRequestError,
    StudentReply,
    arguments_text,
    read_arguments,
)
from composer_replication.serve.wire_turns import (
    OPENAI_LIMIT,
    message_turn,
    objects_of,
    result_turn,
    text_blocks,
    token_limit,
    tool_spec,
)

_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_TEXT_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def read_responses(body: Mapping[str, Any], headers: Mapping[str, str]) -> ClientRequest:
    """A request of responses; tools that a server would carry out are left out and counted."""
    tools: list[ToolSpec] = []
    namespaces: dict[str, str] = {}
    freeform: set[str] = set()
    left_out = 0
    for row in objects_of(body, "tools"):
        members = objects_of(row, "tools") if row.get("type") == "namespace" else (row,)
        for tool in members:
            if tool.get("type") == "function":
                tools.append(
                    tool_spec(tool.get("name"), tool.get("description"), tool.get("parameters"))
                )
            elif tool.get("type") == "custom":
                tools.append(tool_spec(tool.get("name"), tool.get("description"), _TEXT_INPUT))
                freeform.add(tools[-1].name)
            else:
                left_out += 1
                continue
            if row.get("type") == "namespace":
                namespaces[tools[-1].name] = str(row.get("name"))
    purpose, agent = _purpose(headers)
    return ClientRequest(
        wire="responses",
        messages=tuple(_messages(body)),
        tools=tuple(tools),
        model=str(body.get("model", "student")),
        stream=bool(body.get("stream")),
        max_tokens=token_limit(body, "max_output_tokens", refusal=OPENAI_LIMIT),
        purpose=purpose,
        agent=agent,
        namespaces=namespaces,
        freeform=frozenset(freeform),
        left_out={"tools": left_out} if left_out else {},
    )


def _purpose(headers: Mapping[str, str]) -> tuple[Purpose, str]:
    """What Codex says that a request is for, and the name of its subagent."""
    agent = headers.get("x-openai-subagent", "")
    try:
        metadata = json.loads(headers.get("x-codex-turn-metadata", "{}"))
    except (ValueError, RecursionError):
        metadata = {}
    kind = metadata.get("request_kind") if isinstance(metadata, dict) else None
    if kind == "compaction" or agent == "compact":
        return "compaction", agent
    return ("subagent" if agent else "main"), agent


def _messages(body: Mapping[str, Any]) -> list[ClientMessage]:
    """The messages of a request; the items of one message of the student are joined."""
    messages: list[ClientMessage] = []
    if body.get("instructions"):
        messages.append(ClientMessage.other(message_turn("system", body["instructions"])))
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    open_message = False
    for item in objects_of({"input": items}, "input"):
        if item.get("type") == "reasoning":
            continue
        blocks = _students(item)
        if blocks is None:
            messages.append(ClientMessage.other(_other(item)))
            open_message = False
        elif open_message and (item.get("type") in _CALLS or not messages[-1].call_ids):
            (turn,) = messages[-1].turns
            joined = Turn(role="assistant", author=None, blocks=(*turn.blocks, *blocks))
            messages[-1] = ClientMessage.other(joined)
        else:
            messages.append(ClientMessage.other(Turn(role="assistant", author=None, blocks=blocks)))
            open_message = True
    return messages


def _students(item: Mapping[str, Any]) -> tuple[Block, ...] | None:
    """The blocks of an item that the student wrote; None for another's."""
    if item.get("type") in _CALLS:
        value = item.get("input", item.get("arguments", item.get("action")))
        arguments = (
            {"input": value} if item["type"] == "custom_tool_call" else read_arguments(value)
        )
        return (ToolCall(str(item.get("call_id")), str(item.get("name")), arguments),)
    return text_blocks(item.get("content")) if item.get("role") == "assistant" else None


def _other(item: Mapping[str, Any]) -> Turn:
    kind, role = item.get("type", "message"), item.get("role")
    if kind.endswith("_output"):
        return result_turn(item.get("call_id"), item.get("output"), is_error=None)
    if kind == "message" and role in ("system", "developer"):
        return message_turn("system", item.get("content"))
    if kind == "message" and role == "user":
        return message_turn("user", item.get("content"))
    raise RefusedRequestError(f"an item of type {kind!r} with the role {role!r}")


def _items(reply: StudentReply, request: ClientRequest) -> Iterator[dict[str, Any]]:
    if thinking := thinking_of(reply):
        summary = [{"type": "summary_text", "text": thinking}]
        yield {"type": "reasoning", "id": f"rs_{reply.id}", "summary": summary}
    if reply.message.text:
        text = {"type": "output_text", "text": reply.message.text, "annotations": []}
        yield {
            "type": "message",
            "id": reply.id,
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    for call in reply.message.calls:
        row = {"call_id": call.id, "name": call.name, "status": "completed"}
        if call.name in request.freeform:
            text = str(call.arguments.get("input", arguments_text(call.arguments)))
            yield {"type": "custom_tool_call", "id": f"ctc_{call.id}", **row, "input": text}
            continue
        if call.name in request.namespaces:
            row["namespace"] = request.namespaces[call.name]
        arguments = arguments_text(call.arguments)
        yield {"type": "function_call", "id": f"fc_{call.id}", **row, "arguments": arguments}


def responses_body(reply: StudentReply, request: ClientRequest) -> dict[str, Any]:
    """A whole answer."""
    cut = reply.finish == "length"
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": list(_items(reply, request)),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "output_tokens": reply.sampled_tokens,
            "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def responses_events(reply: StudentReply, request: ClientRequest) -> Iterator[tuple[str, str]]:
    """The events of an answer, numbered."""
    body = responses_body(reply, request)
    started = {**body, "status": "in_progress", "output": [], "usage": None}
    numbered = enumerate(
        [
            ("response.created", {"response": started}),
            *(
                event
                for index, item in enumerate(body["output"])
                for event in _item_events(item, index)
            ),
            (f"response.{body['status']}", {"response": body}),
        ]
    )
    for number, (name, fields) in numbered:
        data = {"type": name, "sequence_number": number, **fields}
        yield name, json.dumps(data, ensure_ascii=False)


def _item_events(item: dict[str, Any], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = item["type"]
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(kind, {})
    begun = {**item, **empty, **({"status": "in_progress"} if "status" in item else {})}
    place = {"item_id": item["id"], "output_index": index}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if kind == "message":
        (part,) = item["content"]
        place = {**place, "content_index": 0}
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**place, "delta": part["text"]}
        yield "response.output_text.done", {**place, "text": part["text"]}
        yield "response.content_part.done", {**place, "part": part}
    elif kind == "function_call":
        text = item["arguments"]
        yield "response.function_call_arguments.delta", {**place, "delta": text}
        yield "response.function_call_arguments.done", {**place, "arguments": text}
    yield "response.output_item.done", {"output_index": index, "item": item}
