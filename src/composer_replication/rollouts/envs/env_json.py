"""Messages, tools and answers of an environment as plain JSON, for environments that are played in
another process (rollouts/envs/openenv.py, rollouts/envs/verifiers_tasks.py).

    message_to_wire(turn)       {"role": "assistant", "author": None, "text": "", "calls": [{"id",
                                "name", "arguments"}], "results": []}
    turns_to_chat(turns)              the same as chat-completions messages
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import (
    Block,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.envs.env import Opening


def message_to_wire(turn: Turn) -> dict[str, Any]:
    """A message as JSON; thinking and opaque blocks stay behind.

    >>> message_to_wire(Turn(role="user", author="human", blocks=(Text("hi"),)))
    {'role': 'user', 'author': 'human', 'text': 'hi', 'calls': [], 'results': []}
    """
    return {
        "role": turn.role,
        "author": turn.author,
        "text": turn.text,
        "calls": [
            {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
            for call in turn.calls
        ],
        "results": [
            {"call_id": result.call_id, "text": result.text, "is_error": result.is_error}
            for result in turn.results
        ],
    }


def message_from_wire(value: Mapping[str, Any]) -> Turn:
    """The inverse of `message_to_wire`; raises DataError for anything else.

    >>> turn = Turn(role="user", author="human", blocks=(Text("hi"),))
    >>> message_from_wire(message_to_wire(turn)) == turn
    True
    """
    try:
        role = value["role"]
        blocks: list[Block] = [Text(value["text"])] if value["text"] else []
        blocks += [
            ToolCall(call["id"], call["name"], dict(call["arguments"])) for call in value["calls"]
        ]
        blocks += [
            ToolResult(result["call_id"], result["text"], result["is_error"])
            for result in value["results"]
        ]
        return Turn(role=role, author=value["author"], blocks=tuple(blocks))
    except (KeyError, TypeError) as error:
        raise DataError(f"not a message of an environment: {error!r}") from error


def opening_to_wire(opening: Opening) -> dict[str, Any]:
    """The opening messages and the tools on offer."""
    return {
        "messages": [message_to_wire(turn) for turn in opening.turns],
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            }
            for tool in opening.tools
        ],
    }


def opening_from_wire(value: Mapping[str, Any]) -> Opening:
    """The inverse of `opening_to_wire`."""
    return Opening(
        turns=tuple(map(message_from_wire, value["messages"])),
        tools=tuple(
            ToolSpec(name=t["name"], description=t["description"], parameters=t["parameters"])
            for t in value["tools"]
        ),
    )


def turns_to_chat(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Messages of the chat-completions API; each tool result is a message of its own.

    >>> call = ToolCall("c1", "ls", {})
    >>> turn = Turn(role="assistant", author=None, blocks=(call,))
    >>> turns_to_chat([turn])[0]["tool_calls"][0]["id"]
    'c1'
    """
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn.role == "tool":
            messages += [
                {"role": "tool", "tool_call_id": r.call_id, "content": r.text} for r in turn.results
            ]
            continue
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for call in turn.calls
            ]
        messages.append(message)
    return messages


def turn_from_chat(message: Mapping[str, Any], *, number: int) -> Turn:
    """The student's message `number` of a chat-completions answer; arguments that are no JSON
    object become a call that the environment answers with an error."""
    blocks: list[Block] = [Text(message["content"])] if message.get("content") else []
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except json.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"": str(function.get("arguments"))}
        name = call.get("id") or f"call_{number}_{place}"
        blocks.append(ToolCall(name, function["name"], arguments))
    return Turn(role="assistant", author=None, blocks=tuple(blocks))


def tools_to_chat(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Tools as the chat-completions API takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]
