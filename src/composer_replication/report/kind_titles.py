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
    "hook_blocked": "blocked by a hook",
    "command_failed": "command failed",
    "user_corrected": "called wrong by a person",
    "taken_back": "edit taken back later",
    "broke_check": "edit at whose lines a check failed",
    "wasted_call": "call that could bring nothing new",
    "interrupted": "cut off by a person",
    "permission_aborted": "permission prompt left without an answer",
    "permission_denied": "permission denied",
    "hook_denied": "refused by a hook",
    "plan_mode": "not allowed in this mode",
    "blocked": "blocked by the agent program",
    "test_failed": "a test failed",
    "lint_failed": "a linter or type checker found something",
    "build_failed": "a build failed",
    "git_failed": "a git command failed",
    "git_conflict": "a merge conflict",
    "no_match": "a search without a match",
    "differs": "two files that differ",
    "shell_requoted": "quotes changed by the agent program",
    "shell_gone": "the shell was gone",
    "cannot_start": "tool that could not start",
    "not_on_path": "program not found, though it is installed",
    "changed_meanwhile": "file changed from outside",
    "network": "network failed",
    "timeout": "took too long",
    "rate_limit": "rate limit of the provider",
    "disk": "disk full or not writable",
    "killed": "command killed",
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
