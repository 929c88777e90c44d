"""Parts of a request that all wire formats have: texts, results and tools, read with care.

    text_blocks("Hi")                                  # (Text("Hi"),)
    text_blocks([{"type": "text", "text": "Hi"}])      # (Text("Hi"),): the same message
    result_turn("c1", "x = 1", is_error=None)          # a turn of role "tool"

A block that is no text has no place in a prompt: it is kept as Opaque and counted when rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Block,
    Opaque,
    Role,
    Text,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.serve.client_messages import RefusedRequestError

_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
_REMINDER = "<system-reminder>"


def text_blocks(content: Any) -> tuple[Block, ...]:
    """The text of a message, which is one string or a list of blocks, and its other blocks."""
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise RefusedRequestError("the content of a message is neither a text nor a list")
    blocks: list[Block] = []
    for item in content:
        if isinstance(item, str):
            blocks.append(Text(item))
        elif not isinstance(item, dict):
            raise RefusedRequestError("a block of a message is no object")
        elif item.get("type") in _TEXT_TYPES:
            text = item.get("text", item.get("refusal"))
            blocks.append(Text(text if isinstance(text, str) else ""))
        else:
            blocks.append(Opaque(str(item.get("type")), json.dumps(item, ensure_ascii=False)))
    return tuple(blocks)


def message_turn(role: Role, content: Any) -> Turn:
    """A message of the system or the user; reminders are the agent program's."""
    blocks = text_blocks(content)
    texts = [block.text for block in blocks if isinstance(block, Text)]
    is_reminder = bool(texts) and all(text.lstrip().startswith(_REMINDER) for text in texts)
    author = HARNESS if role == "system" or is_reminder else HUMAN
    return Turn(role=role, author=author, blocks=blocks)


def result_turn(call_id: Any, content: Any, *, is_error: bool | None) -> Turn:
    """The result of a call as a turn of its own."""
    blocks = text_blocks(content)
    images = tuple(block.type for block in blocks if isinstance(block, Opaque))
    text = "\n".join(block.text for block in blocks if isinstance(block, Text))
    result = ToolResult(str(call_id), text, is_error, images)
    return Turn(role="tool", author=ENVIRONMENT, blocks=(result,))


def tool_spec(name: Any, description: Any, parameters: Any) -> ToolSpec:
    """A tool on offer."""
    if not isinstance(name, str) or not name:
        raise RefusedRequestError("a tool has no name")
    return ToolSpec(
        name=name,
        description=description if isinstance(description, str) else "",
        parameters=parameters if isinstance(parameters, Mapping) else {"type": "object"},
    )


def objects_of(body: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    """A list of objects of a request, e.g. its messages; nothing is an empty list."""
    rows = body.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RefusedRequestError(f"{key!r} is not a list of objects")
    return rows


def token_limit(body: Mapping[str, Any], *names: str, refusal: str) -> int:
    """The limit of tokens in the first field that names one; 0 if none does.

    Raises RefusedRequestError for a number below 1, in the wire's words: `refusal` with the field's
    `name` and `value`; and for what is not an integer.
    """
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise RefusedRequestError(f"'{name}' is not an integer: {value!r}", param=name)
        if value < 1:
            raise RefusedRequestError(refusal.format(name=name, value=value), param=name)
        return value
    return 0


OPENAI_LIMIT = (
    "Invalid '{name}': integer below minimum value. Expected a value >= 1, but got {value} instead."
)
"""How OpenAI's wires refuse a limit."""
