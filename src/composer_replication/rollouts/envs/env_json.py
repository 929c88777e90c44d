"""Messages, tools and answers of an environment as plain JSON, for environments that are played in
another process (rollouts/envs/openenv.py, rollouts/envs/verifiers_tasks.py).

    message_to_wire(turn)       {"role": "assistant", "author": None, "text": "", "calls": [{"id",
                                "name", "arguments"}], "results": []}
"""

from __future__ import annotations

from collections.abc import Mapping
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
