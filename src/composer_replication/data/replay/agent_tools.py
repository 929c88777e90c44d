"""The tools of coding agents: their names, and the arguments that hold the file and the edit.

kind_of("str_replace")                 -> "edit"
path_of({"file_path": "a.py"})         -> "a.py"
change_of(call)                        -> (("x = 1", "x = 2", False),)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.core.trace import ToolCall
from composer_replication.data.sites.shell import SHELL_TOOLS
from composer_replication.data.sites.shell_rules import word_set

Change = tuple[tuple[str | None, str, bool], ...]
"""Replacements in order: (old text, new text, replace all); old None = the whole file."""
_NAMES: Mapping[str, frozenset[str]] = {
    "shell": frozenset(SHELL_TOOLS),
    "read": word_set("Read read read_file view_file open_file view cat NotebookRead"),
    "write": word_set("Write write write_file create_file create"),
    "edit": word_set(
        "Edit edit edit_file str_replace patch replace replace_in_file search_replace MultiEdit"
        " NotebookEdit apply_patch"
    ),
    "search": word_set(
        "Grep grep search find_text search_files ripgrep search_file_content codebase_search"
    ),
    "list": word_set("LS ls Glob glob list_files list_dir list_directory find"),
    "ask": word_set("AskUserQuestion ask_user ask_followup_question ask"),
    "plan": word_set(
        "TodoWrite todo_write update_plan ExitPlanMode EnterPlanMode TaskCreate TaskUpdate think"
    ),
    "delegate": word_set("Task Agent spawn_agent delegate"),
    "test": word_set("run_tests run_test test"),
    "web": word_set("WebFetch WebSearch web_search fetch"),
}
_KIND_OF = {name: kind for kind, names in _NAMES.items() for name in names}
PATHS = ("file_path", "path", "filename", "file", "target_file", "absolute_path", "notebook_path")
_OLD = ("old_string", "old_str", "old", "find", "before", "search")
_NEW = ("new_string", "new_str", "new", "replace", "after")
_TEXT = ("content", "text", "file_text")


def kind_of(tool: str) -> str:
    """Return the kind of a tool by its name, a key of _NAMES; "" if the name is unknown."""
    return _KIND_OF.get(tool, "")


def path_of(arguments: Mapping[str, Any]) -> str:
    """Return the path that a call names, as it was written; "" if it names none."""
    return next((arguments[key] for key in PATHS if isinstance(arguments.get(key), str)), "")


def change_of(call: ToolCall) -> Change:
    """Return the replacements that a call asks for; () if it changes no file, or in an unknown way.

    >>> change_of(ToolCall("c", "Edit", {"path": "a.py", "old_string": "1", "new_string": "2"}))
    (('1', '2', False),)
    """
    arguments, kind = call.arguments, kind_of(call.name)
    if kind == "write":
        text = next((arguments[key] for key in _TEXT if key in arguments), None)
        return ((None, text, False),) if isinstance(text, str) else ()
    if kind != "edit":
        return ()
    edits = arguments.get("edits")
    replacements = [
        _replacement(edit) for edit in (edits if isinstance(edits, list) else [arguments])
    ]
    known = tuple(replacement for replacement in replacements if replacement is not None)
    return known if len(known) == len(replacements) else ()


def _replacement(arguments: Any) -> tuple[str, str, bool] | None:
    if not isinstance(arguments, Mapping):
        return None
    old = next((arguments[key] for key in _OLD if key in arguments), None)
    new = next((arguments[key] for key in _NEW if key in arguments), None)
    if not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    return old, new, arguments.get("replace_all") is True
