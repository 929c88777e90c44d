"""Turns as chat messages in the shape of an OpenAI request, and back.

    to_chat(turn)            -> [{"role": "assistant", "content": "I look.", "tool_calls": [...]}]
    from_chat(message)       -> Turn(role="assistant", ...)

A turn of results becomes one message per result. A chat message carries neither thinking nor the
author of the turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Text, ToolCall, ToolResult, ToolSpec, Turn


def to_chat(turn: Turn) -> list[dict[str, Any]]:
    """Convert one turn to chat messages.

    >>> to_chat(Turn(role="user", author="human", blocks=(Text("fix it"),)))
    [{'role': 'user', 'content': 'fix it'}]
    """
    if turn.role == "assistant":
        calls = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
            }
            for c in turn.calls
        ]
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        return [message | ({"tool_calls": calls} if calls else {})]
    results = [
        {"role": "tool", "tool_call_id": r.call_id, "content": r.text, "is_error": r.is_error}
        for r in turn.results
    ]
    return results + ([{"role": turn.role, "content": turn.text}] if turn.text else [])


def from_chat(message: Mapping[str, Any]) -> Turn:
    """Convert one message to a turn; raises DataError if it is not a message, or if the arguments
    of a call are not a JSON object."""
    try:
        text = (Text(message["content"]),) if message.get("content") else ()
        if message["role"] == "tool":
            result = ToolResult(
                message["tool_call_id"], message["content"], message.get("is_error")
            )
            return Turn(role="tool", author="environment", blocks=(result,))
        calls = tuple(_call(c) for c in message.get("tool_calls") or ())
        return Turn(role=message["role"], author=None, blocks=text + calls)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a chat message: {error!r}",
            fix='a message is {"role", "content"}, with "tool_calls" if it calls tools',
        ) from error


def _call(value: Mapping[str, Any]) -> ToolCall:
    function = value["function"]
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError as error:
        raise DataError(f"the arguments of {function['name']} are not JSON: {error}") from error
    if not isinstance(parsed, Mapping):
        raise DataError(f"the arguments of {function['name']} are not a JSON object")
    return ToolCall(value["id"], function["name"], parsed)


def tool_to_chat(tool: ToolSpec) -> dict[str, Any]:
    """Convert a tool to the form in which a request offers it: {"type": "function", ...}."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


def tool_from_chat(value: Mapping[str, Any]) -> ToolSpec:
    """The inverse of `tool_to_chat`; raises DataError if the value is not a tool."""
    try:
        function = value["function"]
        return ToolSpec(
            name=function["name"],
            description=function.get("description", ""),
            parameters=function.get("parameters", {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a tool: {error!r}",
            fix='a tool is {"type": "function", "function": {"name", "parameters"}}',
        ) from error
