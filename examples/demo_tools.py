"""The system prompt and the tools in the demonstration logs of the newest era: our own wording in
Claude Code's layout."""

from __future__ import annotations

from typing import Any

SYSTEM_PROMPT = [
    "You are a coding agent in a terminal.",
    (
        "Use the tools on offer. Read a file before you edit it. Run the tests before you say that"
        " you are done."
    ),
]


def _tool(name: str, about: str, required: tuple[str, ...], /, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"name": name, "description": about, "schema": {"input_schema": schema}}


TOOLS = [
    _tool(
        "Read", "Read a file.", ("file_path",), file_path="string", offset="number", limit="number"
    ),
    _tool(
        "Edit",
        "Replace text in a file that was read before.",
        ("file_path", "old_string", "new_string"),
        file_path="string",
        old_string="string",
        new_string="string",
        replace_all="boolean",
    ),
    _tool("Write", "Write a file.", ("file_path", "content"), file_path="string", content="string"),
    _tool(
        "Grep",
        "Search the contents of files.",
        ("pattern",),
        pattern="string",
        path="string",
        output_mode="string",
    ),
    _tool(
        "Bash",
        "Run a shell command.",
        ("command",),
        command="string",
        description="string",
        timeout="number",
    ),
    _tool(
        "Agent",
        "Start a subagent on a task.",
        ("description", "prompt"),
        description="string",
        prompt="string",
        subagent_type="string",
    ),
]
