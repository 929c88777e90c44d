"""Anthropic's messages: requests read, replies written, whole and as a stream of events.

read_messages(body, headers={"x-claude-code-agent-id": "a1"})
messages_body(reply, request)      # {"type": "message", "content": [...], "stop_reason": ...}
messages_events(reply, request)    # message_start, content_block_delta, ... message_stop
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from composer_replication.core.trace import Block, Text, Thinking, ToolCall, Turn
from composer_replication.serve.chat_completions import halves
from composer_replication.serve.client_messages import (
    ClientMessage,
    ClientRequest,
    RefusedRequestError,
    StudentReply,
    arguments_text,
    read_arguments,
)
from composer_replication.serve.wire_turns import (
    message_turn,
    objects_of,
    result_turn,
    text_blocks,
    token_limit,
    tool_spec,
)

_LIMIT = "{name}: must be greater than or equal to 1"
_FINISH = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens"}
_SIGNATURE = "cmVjb21wb3Nl"  # programs send thinking back only if it is signed
_AGENT = "x-claude-code-agent-id"


def read_messages(body: Mapping[str, Any], headers: Mapping[str, str]) -> ClientRequest:
    """A request of messages; tools that a server would carry out are left out and counted."""
    messages = [ClientMessage.other(*_turns(row)) for row in objects_of(body, "messages")]
    if body.get("system"):
        messages.insert(0, ClientMessage.other(message_turn("system", body["system"])))
    rows = objects_of(body, "tools")
    functions = [row for row in rows if "input_schema" in row]
    left_out = {"tools": len(rows) - len(functions)} if len(rows) > len(functions) else {}
    agent = headers.get(_AGENT, "")
    return ClientRequest(
        wire="messages",
        messages=tuple(messages),
        tools=tuple(
            tool_spec(row.get("name"), row.get("description"), row.get("input_schema"))
            for row in functions
        ),
        model=str(body.get("model", "student")),
        stream=bool(body.get("stream")),
        max_tokens=token_limit(body, "max_tokens", refusal=_LIMIT),
        purpose="subagent" if agent else "main",
        agent=agent,
        left_out=left_out,
    )


def _turns(row: Mapping[str, Any]) -> list[Turn]:
    """A message as turns: each result is one, what else a user's message holds is another."""
    role, content = row.get("role"), row.get("content")
    if role == "assistant":
        return [_students(content)]
    if role not in ("user", "system"):
        raise RefusedRequestError(f"a message has the role {role!r}")
    if not isinstance(content, list):
        return [message_turn(role, content)]
    turns: list[Turn] = []
    others: list[Any] = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if others:
                turns.append(message_turn(role, others))
                others = []
            is_error = bool(block.get("is_error", False))
            turns.append(
                result_turn(block.get("tool_use_id"), block.get("content"), is_error=is_error)
            )
        else:
            others.append(block)
    if others or not turns:
        turns.append(message_turn(role, others))
    return turns


def _students(content: Any) -> Turn:
    blocks: list[Block] = []
    for item in content if isinstance(content, list) else [content]:
        kind = item.get("type") if isinstance(item, dict) else "text"
        if kind == "tool_use":
            arguments = read_arguments(item.get("input"))
            blocks.append(ToolCall(str(item.get("id")), str(item.get("name")), arguments))
        elif kind == "thinking":
            blocks.append(Thinking(str(item.get("thinking", ""))))
        elif kind != "redacted_thinking":
            blocks += text_blocks([item])
    return Turn(role="assistant", author=None, blocks=tuple(blocks))


def _blocks(reply: StudentReply) -> Iterator[dict[str, Any]]:
    for block in reply.message.blocks:
        if isinstance(block, Thinking):
            yield {"type": "thinking", "thinking": block.text, "signature": _SIGNATURE}
        elif isinstance(block, Text):
            yield {"type": "text", "text": block.text}
        elif isinstance(block, ToolCall):
            arguments = dict(block.arguments)
            yield {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}


def _usage(reply: StudentReply) -> dict[str, int]:
    return {
        "input_tokens": reply.prompt_tokens,
        "output_tokens": reply.sampled_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def messages_body(reply: StudentReply, request: ClientRequest) -> dict[str, Any]:
    """A whole answer."""
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": list(_blocks(reply)),
        "stop_reason": _FINISH[reply.finish],
        "stop_sequence": None,
        "usage": _usage(reply),
    }


def messages_events(reply: StudentReply, request: ClientRequest) -> Iterator[tuple[str, str]]:
    """The events of an answer; a call's input comes as JSON in two pieces."""

    def event(name: str, **fields: Any) -> tuple[str, str]:
        return name, json.dumps({"type": name, **fields}, ensure_ascii=False)

    body = messages_body(reply, request)
    started = {**body, "content": [], "stop_reason": None}
    yield event("message_start", message=started)
    for index, block in enumerate(body["content"]):
        begin, deltas = _streamed(block)
        yield event("content_block_start", index=index, content_block=begin)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage=body["usage"])
    yield event("message_stop")


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The block as it begins, and the pieces that fill it."""
    if block["type"] == "tool_use":
        parts = halves(arguments_text(block["input"]))
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        return {**block, "input": {}}, deltas
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
