"""OpenAI's chat completions: requests read, replies written, whole and as a stream of chunks.

read_chat({"messages": [{"role": "user", "content": "Fix it."}], "tools": [...]})
chat_body(reply, request)          # {"object": "chat.completion", "choices": [...], ...}
chat_events(reply, request)        # (name, data) of each server-sent event
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from composer_replication.core.trace import Block, Text, Thinking, ToolCall, ToolSpec, Turn
from composer_replication.serve.client_messages import (
    ClientMessage,
    ClientRequest,
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

_FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length"}


def read_chat(body: Mapping[str, Any]) -> ClientRequest:
    """A request of chat completions."""
    return ClientRequest(
        wire="chat",
        messages=tuple(ClientMessage.other(_turn(row)) for row in objects_of(body, "messages")),
        tools=tuple(_tool(row) for row in objects_of(body, "tools")),
        model=str(body.get("model", "student")),
        stream=bool(body.get("stream")),
        max_tokens=token_limit(body, "max_completion_tokens", "max_tokens", refusal=OPENAI_LIMIT),
        logprobs=bool(body.get("logprobs")),
    )


def _turn(row: Mapping[str, Any]) -> Turn:
    role, content = row.get("role"), row.get("content")
    if role in ("system", "developer"):
        return message_turn("system", content)
    if role == "user":
        return message_turn("user", content)
    if role == "tool":
        return result_turn(row.get("tool_call_id"), content, is_error=None)
    if role != "assistant":
        raise RefusedRequestError(f"a message has the role {role!r}")
    calls: list[Block] = []
    for call in objects_of(row, "tool_calls"):
        function = call.get("function") or {}
        arguments = read_arguments(function.get("arguments"))
        calls.append(ToolCall(str(call.get("id")), str(function.get("name")), arguments))
    return Turn(role="assistant", author=None, blocks=(*text_blocks(content), *calls))


def _tool(row: Mapping[str, Any]) -> ToolSpec:
    function = row.get("function")
    if row.get("type") != "function" or not isinstance(function, dict):
        raise RefusedRequestError(f"a tool of type {row.get('type')!r}, not a function")
    return tool_spec(function.get("name"), function.get("description"), function.get("parameters"))


def _frame(reply: StudentReply, request: ClientRequest, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _usage(reply: StudentReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(reply: StudentReply, request: ClientRequest) -> dict[str, Any]:
    """The log-prob of every sampled token, those of calls and the end token included."""
    if not request.logprobs:
        return {}
    rows = [
        {
            "token": text,
            "logprob": logprob,
            "bytes": None if "\ufffd" in text else list(text.encode()),  # part of a character
            "top_logprobs": [],
        }
        for text, logprob in reply.tokens
    ]
    return {"logprobs": {"content": rows, "refusal": None}}


def thinking_of(reply: StudentReply) -> str:
    """The thinking of a message, as one text."""
    return "\n".join(b.text for b in reply.message.blocks if isinstance(b, Thinking))


def chat_body(reply: StudentReply, request: ClientRequest) -> dict[str, Any]:
    """A whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.message.text or None}
    if thinking := thinking_of(reply):
        message["reasoning_content"] = thinking
    if reply.message.calls:
        message["tool_calls"] = [_call(call) for call in reply.message.calls]
    finish = _FINISH[reply.finish]
    choice = {
        "index": 0, "message": message, "finish_reason": finish, **_logprobs(reply, request),
    }  # fmt: skip
    frame = _frame(reply, request, "chat.completion")
    return {**frame, "choices": [choice], "usage": _usage(reply)}


def chat_events(reply: StudentReply, request: ClientRequest) -> Iterator[tuple[str, str]]:
    """The chunks of an answer; a call's arguments come in two, as from a real server."""
    frame = _frame(reply, request, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> tuple[str, str]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields}
        return "", json.dumps({**frame, "choices": [choice]}, ensure_ascii=False)

    yield chunk({"role": "assistant", "content": ""})
    if thinking := thinking_of(reply):
        yield chunk({"reasoning_content": thinking})
    for block in reply.message.blocks:
        if isinstance(block, Text):
            yield chunk({"content": block.text})
    for index, call in enumerate(reply.message.calls):
        row = _call(call)
        first, second = halves(row["function"]["arguments"])
        begin = {**row, "index": index, "function": {"name": call.name, "arguments": first}}
        yield chunk({"tool_calls": [begin]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": second}}]})
    yield chunk({}, _FINISH[reply.finish], **_logprobs(reply, request))
    yield "", json.dumps({**frame, "choices": [], "usage": _usage(reply)}, ensure_ascii=False)
    yield "", "[DONE]"


def halves(text: str) -> tuple[str, str]:
    """A text in two pieces.

    >>> halves('{"a": 1}')
    ('{"a"', ': 1}')
    """
    return text[: len(text) // 2], text[len(text) // 2 :]
