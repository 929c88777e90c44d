"""Readable names of kinds and categories, to stand beside the machine names of docs/kinds.md."""

from __future__ import annotations

KIND_TITLES = {
    "unknown_tool": "tool that is not on offer",
    "malformed_call": "call that cannot be parsed",
    "bad_arguments": "wrong arguments",
    "structured_output_invalid": "answer that does not fit the schema",
    "file_missing": "file not there",
    "is_directory": "folder taken for a file",
    "too_large": "file too large to read at once",
    "edit_not_read": "file not read first",
    "edit_no_match": "text not found",
    "edit_multi_match": "text found more than once",
    "edit_no_change": "old and new text are the same",
    "edit_stale": "file changed since it was read",
    "repeated_call": "same call again, nothing changed",
    "shell_syntax": "command line with a syntax error",
    "shell_unknown_command": "program not installed",
    "shell_bad_option": "option that does not exist",
    "shell_missing_path": "path not there",
    "shell_unknown_ref": "branch or commit not there",
    "path_explored": "looked for a path that is not there",
    "user_rejected": "refused by a person",
    "user_interrupted": "stopped by a person",
    "user_corrected": "corrected by a person",
    "taken_back": "edit taken back later",
    "broke_check": "edit that broke a check",
    "wasted_call": "call that brought nothing new",
    "interrupted": "stopped by a person, without words",
    "permission_denied": "permission denied",
    "permission_aborted": "permission prompt closed",
    "hook_denied": "denied by a hook",
    "blocked": "blocked by the agent program",
    "plan_mode": "not allowed outside plan mode",
    "hook_blocked": "blocked by a hook",
    "command_failed": "command failed",
    "test_failed": "test failed",
    "lint_failed": "lint failed",
    "build_failed": "build failed",
    "git_failed": "git failed",
    "git_conflict": "git conflict",
    "no_match": "search found nothing",
    "differs": "files differ",
    "timeout": "time limit reached",
    "network": "network failed",
    "rate_limit": "rate limit reached",
    "disk": "disk refused",
    "cannot_start": "tool could not start",
    "killed": "command killed",
    "shell_gone": "background shell not running",
    "shell_requoted": "command line broken by the agent program",
    "not_on_path": "program not on the search path",
    "changed_meanwhile": "file changed right after it was read",
    "sibling_errored": "cancelled with another call of its message",
    "other": "another error of the call",
    "unclassified": "error that no rule names",
}
"""What happened, without the tool's name."""

CATEGORY_TITLES = {
    "sibling": "cancelled with another call",
    "environment": "the machine's failure",
    "benign": "harmless",
    "failed_check": "failed check",
    "rejected": "refused by a person",
    "interrupted": "stopped by a person",
    "permission": "stopped by a permission rule",
    "corrected": "called wrong by a person",
    "undone": "taken back later",
    "blamed": "a check failed at its lines",
    "wasted": "brought nothing new",
}
"""Readable names of the categories whose machine names say too little."""


def category_title(category: str) -> str:
    """The readable name of a category.

    >>> category_title("sibling"), category_title("mistake")
    ('cancelled with another call', 'mistake')
    """
    return CATEGORY_TITLES.get(category, category)


def kind_title(kind: str, tool: str = "") -> str:
    """The readable name of a kind, with the tool in front if one is given.

    >>> kind_title("edit_no_match", "Edit"), kind_title("a_new_kind")
    ('Edit: text not found', 'a new kind')
    """
    title = KIND_TITLES.get(kind) or kind.replace("_", " ")
    return f"{tool}: {title}" if tool else title
