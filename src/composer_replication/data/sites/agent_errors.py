"""What other agents say when a call fails: the same kinds as for Claude Code, in other words.

Codex CLI, Gemini CLI and qwen-code, OpenCode, OpenHands, SWE-agent, Cline and Roo Code. All
patterns are anchored at the start of the result, below the lines that `result_headers.py` takes
off.
"""

from __future__ import annotations

from composer_replication.data.sites.result_headers import PATCH_NOT_FOUND, split_header
from composer_replication.data.sites.verdict import ErrorPattern, error_pattern

MAX_WORDS_READ = 600
_ROO_WRAP = (
    r"(?:\[\w+[^\n]*\] Result:\s*)?(?:The tool execution failed with the following"
    r" error:\s*<error>\s*)?"
)

NOT_THE_MODEL_ELSEWHERE: tuple[ErrorPattern, ...] = (
    error_pattern(
        "rejected",
        "user_rejected",
        r"^(?:exec command|patch) rejected by user|^rejected by user|^exec_command failed for"
        r" [\s\S]{0,400}rejected by user|^\[Operation Cancelled\] Reason: User did not allow"
        r"|^Action has been rejected by the user"
        rf"|^{_ROO_WRAP}The user denied this operation",
    ),
    error_pattern(
        "interrupted",
        "interrupted",
        r"^(?:Wall time: [\d.]+ seconds\n)?aborted by user|^\[Operation Cancelled\]|^Tool execution"
        r" (?:aborted|was interrupted)|^User (?:aborted|cancelled)"
        r"|^(?:Command|Tool call) was cancelled|^Command aborted$",
    ),
    error_pattern(
        "permission",
        "permission_denied",
        r"^The user has specified a rule that|^The user has specified a rule which prevents"
        r"|^Tool execution (?:was )?denied by policy"
        r"|^Tool execution for [^\n]* requires user confirmation|^failed in sandbox|^sandbox denied"
        r"|^approval policy is|^apply_patch was rejected|^Permission denied and could not request"
        r'|^Tool "?[^"\n]+"? requires approval in a TTY session',
    ),
    error_pattern(
        "permission",
        "blocked",
        r"^(?:Path not in workspace|File path must be within|Path must be within|Access to [^\n]*"
        r" is blocked by|Command blocked by)|^Operation '[^'\n]*' is not supported by this"
        r" environment|^Bash operation blocked",
    ),
    error_pattern(
        "environment",
        "timeout",
        r"^command timed out after|^The command timed out|^MCP tool timed out",
    ),
)

CALL_IS_WRONG_ELSEWHERE: tuple[ErrorPattern, ...] = (
    error_pattern(
        "mistake",
        "unknown_tool",
        r"^unsupported (?:custom tool )?call\b|^(?:The arguments provided to the tool are invalid:"
        r" |Tool call \S+ was rejected before execution: AI_NoSuchToolError: )?Model tried to call"
        r" unavailable tool|^Unknown function\b|^Function [`'\"]?\S+ is not"
        r" registered",
    ),
    error_pattern(
        "mistake",
        "edit_no_match",
        rf"^(?:apply_patch verification failed|error): {PATCH_NOT_FOUND}"
        r"|^Failed to edit, (?:0 occurrences found|could not find the string)"
        r"|^(?:oldString not found|Could not find oldString)"
        r"|^(?:ERROR:\s*)?No replacement was performed, old_str [\s\S]{0,4000}did not appear"
        rf"|^{_ROO_WRAP}(?:Unable to apply diff|The SEARCH block|No sufficiently similar match)"
        r"|^Text [^\n]{0,200} not found in displayed lines"
        r"|^Editor operation failed: No replacement performed: text not found",
    ),
    error_pattern(
        "mistake",
        "edit_multi_match",
        r"^Failed to edit, expected 1 occurrence|^Found multiple matches for oldString|^oldString"
        r" found multiple times|^(?:ERROR:\s*)?No replacement was performed\. Multiple occurrences",
    ),
    error_pattern(
        "mistake",
        "edit_no_change",
        r"^No changes (?:to apply|made to )|^oldString and newString (?:are|must)|^(?:ERROR:\s*)?No"
        r" replacement was performed\. `?new_str`? and `?old_str`? must be different",
    ),
    error_pattern(
        "mistake",
        "file_missing",
        r"^apply_patch verification failed: Failed to read [^\n]*(?:No such file|os error 2)"
        r"|^(?:ERROR:\s*)?Invalid `?path`? parameter[^\n]*does not exist"
        r"|^The path \S+ does not exist"
        rf"|^{_ROO_WRAP}(?:File|Path) (?:not found|does not exist)|^File \S+ not found\b"
        r"|^(?:unable to locate|could not read) (?:image|file) at"
        r"|^Error reading file: ENOENT\b",
    ),
    error_pattern(
        "mistake",
        "is_directory",
        r"^Path is a directory|^(?:ERROR:\s*)?The path \S+ is a directory and only the `?view`?",
    ),
    error_pattern(
        "mistake",
        "too_large",
        r"^File size exceeds the|^File too large\b",
    ),
    error_pattern(
        "mistake",
        "malformed_call",
        r"^apply_patch verification failed: (?:invalid (?:patch|hunk)|The (?:first|last) line)"
        r"|^failed to parse function arguments: (?:EOF|expected|trailing|control character|invalid"
        r" (?:escape|unicode))",
    ),
    error_pattern(
        "mistake",
        "bad_arguments",
        r"^failed to parse function arguments|^The arguments provided to the tool are invalid"
        r"|^params(?:/\S+)? must\b|^The \w+ tool was called with"
        r" invalid arguments"
        rf"|^{_ROO_WRAP}Missing value for required parameter"
        r"|^Missing required (?:argument|parameter)|^(?:ERROR:\s*)?Invalid `?\w+`? parameter"
        r"|^(?:ERROR:\s*)?File already exists at: \S+ Cannot overwrite",
    ),
    error_pattern(
        "mistake",
        "other",
        r"^Your proposed edit has introduced new syntax error|^apply_patch verification failed",
    ),
)
_WORDS = (*NOT_THE_MODEL_ELSEWHERE, *CALL_IS_WRONG_ELSEWHERE)


def failed_by_text(text: str) -> bool | None:
    """Whether a result without an error flag is one of a failed call, by the exit code that the
    agent put around it or by words that only an agent writes; None if neither says so.

    >>> failed_by_text("Exit code: 0\\nWall time: 0 seconds\\nOutput:\\n"), failed_by_text("42")
    (False, None)
    """
    header = split_header(text)
    if header is not None and header.failed is not None:
        return header.failed
    head = (text if header is None else header.body)[:MAX_WORDS_READ].removeprefix("Error: ")
    return True if any(rule.pattern.search(head) for rule in _WORDS) else None
