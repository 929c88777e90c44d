"""What the agent program says when a call fails, and whose fault that is."""

from __future__ import annotations

import pytest

from composer_replication.compat.guide_errors import default_classify_error
from composer_replication.core.trace import ToolCall, ToolResult
from composer_replication.data.ingestion.counts import ERROR_CLASSES, opening_error_class
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.tool_errors import judge_tool_error
from tests.data.sites.builder import find, one_call, only

TAG = "<tool_use_error>{}</tool_use_error>"

APART = [
    ("rejected", "user_rejected", "User chose to stay in plan mode and continue planning"),
    ("permission", "hook_denied", "BLOCKED by guard\n\nTip: explain the command"),
    (
        "rejected",
        "user_rejected",
        (
            "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if"
            " it was a file edit"
        ),
    ),
    (
        "rejected",
        "user_rejected",
        "The user doesn't want to take this action right now. STOP what you are doing",
    ),
    ("interrupted", "interrupted", "[Request interrupted by user for tool use]"),
    ("sibling", "sibling_errored", TAG.format("Sibling tool call errored")),
    (
        "sibling",
        "sibling_errored",
        TAG.format("Cancelled: parallel tool call Bash(npm test) errored"),
    ),
    ("permission", "permission_aborted", "Permission prompt was aborted."),
    (
        "permission",
        "permission_denied",
        "Permission for this action was denied by the Claude Code auto mode classifier",
    ),
    (
        "permission",
        "permission_denied",
        "Permission to use Bash with command rm -rf has been denied.",
    ),
    (
        "permission",
        "permission_denied",
        "Claude requested permissions to write to /etc/x, but you haven't granted it yet.",
    ),
    ("permission", "hook_denied", "PreToolUse:Bash hook error: [guard.sh]: no force pushes"),
    ("environment", "timeout", "MCP error -32001: Request timed out"),
    ("environment", "network", "Request failed with status code 503"),
    ("environment", "network", "getaddrinfo ENOTFOUND example.org"),
    ("environment", "rate_limit", "API Error: 429 too many requests"),
    ("environment", "cannot_start", "ENOENT: no such file or directory, posix_spawn '/usr/bin/rg'"),
    ("environment", "cannot_start", "EACCES: permission denied, posix_spawn '/usr/bin/rg'"),
    ("environment", "cannot_start", "spawn /usr/bin/rg ENOENT"),
    ("environment", "cannot_start", "Error: spawn rg EACCES"),
    ("environment", "unclassified", "Entity not found: Issue"),
]
MISTAKES = [
    ("unknown_tool", "Raed", TAG.format("Error: No such tool available: Raed")),
    (
        "bad_arguments",
        "Read",
        TAG.format(
            "InputValidationError: Read failed due to the following issue:\nThe required parameter"
            " `file_path` is missing"
        ),
    ),
    ("bad_arguments", "Task", "Agent type 'simplifier' not found. Available agents: Bash, Explore"),
    ("bad_arguments", "Skill", TAG.format("Unknown skill: commit")),
    ("file_missing", "Read", TAG.format("File does not exist. Did you mean .env?")),
    ("file_missing", "Read", "File does not exist. Note: your current working directory is /src."),
    ("file_missing", "Grep", TAG.format("Path does not exist: cmd/cli")),
    ("file_missing", "Read", "ENOENT: no such file or directory, open '/w/posix_spawn.c'"),
    ("is_directory", "Read", "EISDIR: illegal operation on a directory, read"),
    (
        "edit_no_match",
        "Edit",
        TAG.format("String to replace not found in file.\nString: Permission prompt was aborted"),
    ),
    (
        "edit_multi_match",
        "Edit",
        TAG.format("Found 3 matches of the string to replace, but replace_all is false."),
    ),
    (
        "edit_not_read",
        "Write",
        TAG.format("File has not been read yet. Read it first before writing to it."),
    ),
    (
        "edit_stale",
        "Edit",
        TAG.format("File has been modified since read, either by the user or by a linter."),
    ),
    (
        "edit_no_change",
        "Edit",
        TAG.format("No changes to make: old_string and new_string are exactly the same."),
    ),
    ("repeated_call", "Read", TAG.format("Wasted call - file unchanged since your last Read.")),
    ("too_large", "Read", "File content (26800 tokens) exceeds maximum allowed tokens (25000)."),
    (
        "structured_output_invalid",
        "StructuredOutput",
        "Output does not match required schema: root: must have required property 'title'",
    ),
    ("other", "Skill", TAG.format("Skill model is not a prompt-based skill")),
]


# In a shell, words of the network may be a program's output: those are judged in
# test_shell_errors.py.
BOTH = [
    (tool, *row)
    for tool in ("Edit", "Bash")
    for row in APART
    if tool == "Edit" or row[1] not in ("unclassified", "network")
]


@pytest.mark.parametrize(("tool", "category", "kind", "text"), BOTH)
def test_what_is_not_the_models_doing_is_never_a_mistake(
    tool: str, category: str, kind: str, text: str
) -> None:
    site = only(one_call(tool, {"file_path": "a", "command": "ls"}, text))
    assert (site.category, site.kind) == (category, kind)


@pytest.mark.parametrize(("kind", "tool", "text"), MISTAKES)
def test_a_call_that_was_refused_for_what_it_says_is_a_mistake_of_its_kind(
    kind: str, tool: str, text: str
) -> None:
    site = only(one_call(tool, {"file_path": "a"}, text))
    assert (site.category, site.kind) == ("mistake", kind)


def test_words_of_a_rejection_inside_an_edit_error_do_not_change_it() -> None:
    quoted = TAG.format(
        "String to replace not found in file.\nString: The user doesn't want to proceed"
    )
    assert only(one_call("Edit", {"file_path": "a"}, quoted)).category == "mistake"


def test_a_file_that_shows_an_error_text_is_no_error() -> None:
    shown = (
        '   12\t<tool_use_error>File does not exist.</tool_use_error>\n   13\tprint("Exit code 1")'
    )
    assert find(one_call("Read", {"file_path": "log.txt"}, shown, error=None)) == []
    assert not is_error(ToolCall("c", "Read", {}), ToolResult("c", shown))


def test_detail_is_one_short_line() -> None:
    verdict = judge(
        ToolCall("c", "Read", {}),
        ToolResult("c", TAG.format("File does not exist. " + "x" * 500 + "\nmore"), True),
    )
    assert len(verdict.detail) <= 160
    assert verdict.detail.endswith("…") and "\n" not in verdict.detail


# the coarse table ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("user_rejected", "The user doesn't want to proceed"),
        ("interrupted", "[Request interrupted by user]"),
        ("permission_aborted", "Permission prompt was aborted."),
        ("permission_denied", "Permission to use Bash has been denied"),
        ("sibling_errored", TAG.format("Sibling tool call errored")),
        ("bash_exit", "Exit code 2\nFile does not exist"),
        ("edit_not_read", TAG.format("File has not been read yet.")),
        ("edit_no_match", TAG.format("String to replace not found in file.")),
        ("edit_multi_match", TAG.format("Found 2 matches of the string")),
        ("edit_stale", TAG.format("File has been modified since read")),
        ("file_missing", TAG.format("Path does not exist: x")),
        ("input_validation", TAG.format("InputValidationError: Read failed")),
        ("too_large", "File content (1 tokens) exceeds maximum allowed tokens"),
        ("tool_use_error_other", TAG.format("Unknown skill: x")),
        ("other", "Task not found"),
        ("other", "x" * 400 + "does not exist"),
    ],
)
def test_the_fifteen_error_classes(kind: str, text: str) -> None:
    assert opening_error_class(text) == kind


def test_every_error_class_is_in_the_list() -> None:
    assert len(ERROR_CLASSES) == len(set(ERROR_CLASSES)) == 15


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("command_not_found", "bash: foo: command not found"),
        ("file_not_found", "cat: x: No such file or directory"),
        ("file_not_found", "File does not exist."),
        ("permission_denied", "open x: Permission denied"),
        ("syntax_error", "SyntaxError: invalid syntax"),
        ("connection_error", "connect ECONNREFUSED 127.0.0.1:80"),
        ("tool_error", "String to replace not found in file."),
    ],
)
def test_the_kinds_of_the_earlier_guide(kind: str, text: str) -> None:
    assert default_classify_error(text) == kind


@pytest.mark.parametrize(
    ("text", "category", "kind"),
    [
        ("Blocked: sleep 30", "permission", "blocked"),
        (
            "You are not in plan mode. This tool is only for exiting plan mode",
            "permission",
            "plan_mode",
        ),
        ("Shell is not running", "environment", "shell_gone"),
        ("Shell ab12 is not running, so cannot be killed", "environment", "shell_gone"),
        ("Bash wants something else", "mistake", "other"),
    ],
)
def test_the_agents_own_policy_is_no_mistake_where_the_agent_tagged_it(
    text: str, category: str, kind: str
) -> None:
    verdict = judge_tool_error(f"<tool_use_error>{text}</tool_use_error>", tool="Bash")
    assert (verdict.category, verdict.kind) == (category, kind)
    assert judge_tool_error(text, tool="mcp__x").kind == "unclassified"
