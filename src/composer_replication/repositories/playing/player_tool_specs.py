"""The tools of Claude Code as a player of repositories has them: names and schemas of arguments."""

from __future__ import annotations

from typing import Any

from composer_replication.core.trace import ToolSpec


def _spec(name: str, description: str, *, required: str, properties: dict[str, Any]) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=description, parameters=schema)


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


AGENT_TOOLS: tuple[ToolSpec, ...] = (
    _spec(
        "Bash",
        "Run a command in a shell. The working directory is kept between commands.",
        required="command",
        properties={
            "command": _text("The command"),
            "description": _text("What it does, in a few words"),
            "timeout": _number("Milliseconds until it is stopped"),
        },
    ),
    _spec(
        "Read",
        "Read a file; lines are numbered from 1.",
        required="file_path",
        properties={
            "file_path": _text("Absolute path of the file"),
            "offset": _number("The first line, for a long file"),
            "limit": _number("How many lines"),
        },
    ),
    _spec(
        "Edit",
        "Replace a text in a file that was read before. The text must occur once.",
        required="file_path old_string new_string",
        properties={
            "file_path": _text("Absolute path of the file"),
            "old_string": _text("The text to replace"),
            "new_string": _text("What stands there afterwards"),
            "replace_all": _flag("Replace every occurrence"),
        },
    ),
    _spec(
        "Write",
        "Write a whole file. One that exists must be read first.",
        required="file_path content",
        properties={
            "file_path": _text("Absolute path of the file"),
            "content": _text("What the file will hold"),
        },
    ),
    _spec(
        "Grep",
        "Search the contents of files for a regular expression.",
        required="pattern",
        properties={
            "pattern": _text("The regular expression"),
            "path": _text("File or folder to search in"),
            "glob": _text("Only files whose path fits, such as *.py"),
            "output_mode": {"type": "string", "enum": ["content", "files_with_matches", "count"]},
            "-n": _flag("Show line numbers (content)"),
            "-i": _flag("Ignore case"),
            "-A": _number("Lines after each match (content)"),
            "-B": _number("Lines before each match (content)"),
            "-C": _number("Lines around each match (content)"),
            "multiline": _flag("A match may span lines"),
            "head_limit": _number("Only the first lines or files"),
            "offset": _number("Leave out so many lines or files first"),
        },
    ),
    _spec(
        "Glob",
        "List the files whose path fits a pattern, such as src/**/*.py; the newest last.",
        required="pattern",
        properties={
            "pattern": _text("The pattern"),
            "path": _text("The folder to look in"),
        },
    ),
)
"""The tools on offer, in the order in which they are shown."""
