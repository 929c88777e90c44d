"""Tool calls of the demonstration logs with their results, word for word as Claude Code prints
them."""

from __future__ import annotations

from typing import Any

from log_writer import Call


def refused(text: str) -> str:
    """An error in the tags that Claude Code puts around it."""
    return f"<tool_use_error>{text}</tool_use_error>"


def read(path: str, content: str, **more: Any) -> Call:
    """A Read that works; lines are numbered as the tool numbers them."""
    lines = "\n".join(f"{i:6}\u2192{line}" for i, line in enumerate(content.split("\n"), 1))
    return Call("Read", {"file_path": path, **more}, lines)


def read_missing(path: str, cwd: str = "") -> Call:
    """A Read of a file that is not there."""
    note = f" Note: your current working directory is {cwd}." if cwd else ""
    return Call("Read", {"file_path": path}, refused(f"File does not exist.{note}"), True)


def edit(path: str, old: str, new: str) -> Call:
    """An Edit that works."""
    return Call(
        "Edit",
        {"file_path": path, "old_string": old, "new_string": new},
        f"The file {path} has been updated successfully.",
    )


def edit_no_match(path: str, old: str, new: str) -> Call:
    """An Edit whose old text is not in the file."""
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return Call(
        "Edit", arguments, refused(f"String to replace not found in file.\nString: {old}"), True
    )


def edit_not_read(path: str, old: str, new: str) -> Call:
    """An Edit of a file that was not read before."""
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return Call(
        "Edit",
        arguments,
        refused("File has not been read yet. Read it first before writing to it."),
        True,
    )


def edit_many(path: str, old: str, new: str, count: int = 2) -> Call:
    """An Edit whose old text is in the file more than once."""
    text = (
        f"Found {count} matches of the string to replace, but replace_all is false. To replace all"
        " occurrences, set replace_all to true. To replace only one occurrence, please provide"
        f" more context to uniquely identify the instance.\nString: {old}"
    )
    return Call(
        "Edit", {"file_path": path, "old_string": old, "new_string": new}, refused(text), True
    )


def edit_stale(path: str, old: str, new: str) -> Call:
    """An Edit of a file that was changed since it was read."""
    text = (
        "File has been modified since read, either by the user or by a linter. Read it again before"
        " attempting to write it."
    )
    return Call(
        "Edit", {"file_path": path, "old_string": old, "new_string": new}, refused(text), True
    )


def bad_arguments(tool: str, issue: str, **arguments: Any) -> Call:
    """A call that does not fit the tool's schema."""
    return Call(
        tool,
        arguments,
        refused(f"InputValidationError: {tool} failed due to the following issue:\n{issue}"),
        True,
    )


def no_tool(tool: str, **arguments: Any) -> Call:
    """A call of a tool that is not on offer."""
    return Call(tool, arguments, refused(f"Error: No such tool available: {tool}"), True)


def bash(command: str, output: str, *, code: int = 0, **more: Any) -> Call:
    """A shell command with its output; a code other than 0 is reported as an error."""
    return Call(
        "Bash",
        {"command": command, **more},
        f"Exit code {code}\n{output}" if code else output,
        code != 0,
    )


def grep(pattern: str, output: str, **more: Any) -> Call:
    """A search that works."""
    return Call("Grep", {"pattern": pattern, **more}, output)


def rejected(tool: str, reason: str, **arguments: Any) -> Call:
    """A call that the human refused, with the human's reason."""
    text = (
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it"
        " was a file edit, the new_string was NOT written to the file). To tell you how to"
        f" proceed, the user said:\n{reason}"
    )
    return Call(tool, arguments, text, True)


def sibling(tool: str, **arguments: Any) -> Call:
    """A call that was cancelled because a parallel one failed."""
    return Call(tool, arguments, refused("Sibling tool call errored"), True)


def denied(command: str) -> Call:
    """A shell command that a permission rule forbids."""
    return Call(
        "Bash",
        {"command": command},
        f"Permission to use Bash with command {command} has been denied.",
        True,
    )
