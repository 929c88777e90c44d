"""The tools of a session: from the log if it has them, else inferred from the calls."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any

from composer_replication.core.trace import ToolCall, ToolSpec

# The harness refused the call: there is no such tool, or the arguments do not fit it.
_REFUSED = re.compile(
    r"\s*(?:<tool_use_error>\s*)?(?:Error:\s*)?(?:No such tool"
    r" available|(?:Unknown|Unsupported|Invalid) tool\b|Tool \S+ (?:was )?not found"
    r"|\S*InputValidationError|\S+ failed due to the following issues?:|Argument Validation Error)"
)
_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def offered_tools(entries: Any) -> tuple[ToolSpec, ...]:
    """Read the tools of a prompt snapshot, [{"name", "description", "schema": {"input_schema":
    ...}}]; malformed entries are left out.

    >>> offered_tools([{"name": "Read", "schema": {"input_schema": {"type": "object"}}}])
    (ToolSpec(name='Read', description='', parameters={'type': 'object'}),)
    """
    specs: dict[str, ToolSpec] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            continue
        schema = entry.get("schema")
        inner = (
            schema.get("input_schema", schema)
            if isinstance(schema, dict)
            else entry.get("input_schema")
        )
        description = entry.get("description")
        specs[entry["name"]] = ToolSpec(
            name=entry["name"],
            description=description if isinstance(description, str) else "",
            parameters=inner if isinstance(inner, dict) else {},
        )
    return tuple(specs.values())


def is_refusal(text: str) -> bool:
    """Whether an error result means that there is no such tool or that the arguments do not fit.

    >>> is_refusal("<tool_use_error>Error: No such tool available: Reed</tool_use_error>")
    True
    >>> is_refusal("Exit code 1")
    False
    """
    return _REFUSED.match(text) is not None


def tools_from_calls(
    calls: Iterable[ToolCall], *, refused: Container[str] = ()
) -> tuple[ToolSpec, ...]:
    """Infer one tool per called name: a property per argument, required if every call has it.

    `refused` are the ids of calls whose result `is_refusal`: they show the model's error, not the
    tools on offer. A tool is left out if every call of it was refused.

    >>> first = ToolCall("c1", "Read", {"path": "a", "limit": 5})
    >>> tools_from_calls([first, ToolCall("c2", "Read", {"path": "b"})])[0].parameters["required"]
    ['path']
    """
    # Most calls of a tool are alike, so the distinct shapes (name, argument names, types) are few.
    call_shapes = dict.fromkeys(
        (c.name, tuple(c.arguments), tuple(map(type, c.arguments.values())))
        for c in calls
        if c.id not in refused
    )
    by_name: dict[str, list[tuple[tuple[str, ...], tuple[type, ...]]]] = {}
    for name, arguments, types in call_shapes:
        by_name.setdefault(name, []).append((arguments, types))
    return tuple(ToolSpec(name=name, parameters=_schema(by_name[name])) for name in sorted(by_name))


def _schema(call_shapes: list[tuple[tuple[str, ...], tuple[type, ...]]]) -> dict[str, Any]:
    json_types: dict[str, set[str]] = {}
    for arguments, types in call_shapes:
        for name, python_type in zip(arguments, types, strict=True):
            json_types.setdefault(name, set()).add(_TYPES.get(python_type, "string"))
    properties = {
        name: {"type": next(iter(names)) if len(names) == 1 else sorted(names)}
        for name, names in json_types.items()
    }
    required = [
        name for name in json_types if all(name in arguments for arguments, _ in call_shapes)
    ]
    return {"type": "object", "properties": properties, "required": required}
