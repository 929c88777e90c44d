"""Classify the messages of the agent program about a failed call of any tool: rejections,
permissions, wrong arguments.

The order matters: the first matching rule decides, and failures that are not the model's come
first. Patterns whose words could occur in ordinary output are anchored at the start of the result.
"""

from __future__ import annotations

import re

from composer_replication.data.sites.agent_errors import (
    CALL_IS_WRONG_ELSEWHERE,
    NOT_THE_MODEL_ELSEWHERE,
)
from composer_replication.data.sites.verdict import ErrorPattern, Verdict, error_pattern, quote

HEAD_CHARS = 600
_TAG = re.compile(r"^\s*<tool_use_error>|</tool_use_error>\s*$|^\s*(?:Error: )+")


# Checked before all other rules, for every tool: these failures are not the model's.
NOT_THE_MODEL: tuple[ErrorPattern, ...] = (
    error_pattern(
        "rejected",
        "user_rejected",
        r"^The user doesn't want to (?:proceed|take this action)|^The tool use was rejected|^(?:The"
        r" )?user (?:rejected|denied|declined)"
        r"|^User chose to stay in plan mode",
    ),
    error_pattern("interrupted", "interrupted", r"^\[Request interrupted"),
    error_pattern(
        "sibling", "sibling_errored", r"^Sibling tool call errored|^Cancelled: parallel tool call"
    ),
    error_pattern("permission", "permission_aborted", r"^(?:Tool )?Permission prompt was aborted"),
    error_pattern(
        "permission",
        "permission_denied",
        r"^Permission for this action (?:was|has been) denied|^Permission to use \S+|^\S+ requested"
        r" permissions"
        r"|^(?:This command|Claude) requested permissions|denied by your permission settings|^\S+"
        r" in '.*' was blocked\. For security"
        r"|^This (?:command|operation|Bash command) requires approval|^Permission denied by",
    ),
    error_pattern(
        "permission",
        "hook_denied",
        r"^(?:Hook )?PreToolUse:\S+ |^(?:Blocked|Denied) by (?:a )?(?:PreToolUse )?hook|^Hook"
        r" PreToolUse|^BLOCKED by ",
    ),
    error_pattern(
        "environment",
        "timeout",
        r"^(?:Command|Request) timed out|^MCP error -32001|^The operation timed out",
    ),
    error_pattern(
        "environment",
        "network",
        r"^(?:connect |getaddrinfo |read |fetch"
        r" )?(?:ECONNREFUSED|ENOTFOUND|ETIMEDOUT|ECONNRESET|EAI_AGAIN)\b|^socket hang up|^fetch"
        r" failed"
        r"|^Request failed with status code \d+|^(?:Unable|Failed) to (?:fetch|connect)|^Claude"
        r" Code is unable to fetch"
        r"|^MCP (?:error -32000|server \S+ (?:is not connected|disconnected))|^Connection"
        r" closed|^unable to (?:get|verify) .*certificate",
    ),
    error_pattern(
        "environment",
        "cannot_start",  # the program of the tool itself
        r"^(?:ENOENT|EACCES|EPERM)\b[^'\n]{0,120}\bposix_spawn\b|^(?:posix_)?spawn \S+"
        r" (?:ENOENT|EACCES|EPERM)\b",
    ),
    error_pattern(
        "environment",
        "rate_limit",
        r"^(?:API Error: )?(?:429\b|rate limit|too many requests|overloaded|529\b)",
    ),
    error_pattern("environment", "disk", r"^ENOSPC|^EMFILE|^EACCES|^EPERM|^EROFS"),
)

# The agent program's own policy. Checked only if the agent tagged its refusal: elsewhere the same
# words may be a tool's output.
AGENT_POLICY: tuple[ErrorPattern, ...] = (
    error_pattern("permission", "blocked", r"^Blocked: "),
    error_pattern("permission", "plan_mode", r"^(?:You are |Claude is )?not in plan mode\b"),
    error_pattern("environment", "shell_gone", r"^Shell (?:\S+ )?is not running\b"),
)

# The call itself is wrong: its tool, its arguments, or its assumptions.
CALL_IS_WRONG: tuple[ErrorPattern, ...] = (
    error_pattern(
        "mistake",
        "unknown_tool",
        r"^No such tool available|^(?:Unknown|Unsupported|Invalid) tool\b|^Tool [`'\"]?\S+ (?:was"
        r" )?not found",
    ),
    error_pattern("mistake", "repeated_call", r"^File unchanged since last read|^Wasted call"),
    error_pattern("mistake", "edit_not_read", r"has not been read yet|^You must read the file"),
    error_pattern(
        "mistake",
        "edit_no_match",
        r"^String to replace not found|^old_?(?:string|text) (?:was )?not found|^Could not find the"
        r" exact text",
    ),
    error_pattern(
        "mistake", "edit_multi_match", r"^Found \d+ (?:matches|occurrences) of the (?:string|text)"
    ),
    error_pattern(
        "mistake", "edit_stale", r"modified since (?:it was last )?read|unexpectedly modified"
    ),
    error_pattern(
        "mistake",
        "edit_no_change",
        r"^No changes to make|^old_?string and new_?string (?:are|must)",
    ),
    error_pattern(
        "mistake",
        "too_large",
        r"exceeds maximum allowed|^File content .* exceeds|^File is too large",
    ),
    error_pattern(
        "mistake", "is_directory", r"^EISDIR|illegal operation on a directory|\bis a directory\b"
    ),
    error_pattern(
        "mistake",
        "file_missing",
        r"^(?:File|Path|Directory|Notebook file|Notebook)\b.{0,300}?does not exist|^(?:File|Path)"
        r" not found|^ENOENT\b",
    ),
    error_pattern("mistake", "malformed_call", r"^InputValidationError: malformed tool call\b"),
    error_pattern(
        "mistake",
        "bad_arguments",
        r"^\S*InputValidationError|^\S+ failed due to the following issues?:|^Argument Validation"
        r" Error"
        r"|^Invalid (?:tool )?(?:parameters|arguments|input)\b|^Unknown skill\b|^Agent type '[^']*'"
        r" not found"
        r"|^MCP error -32602|regex parse error|^Invalid pages? parameter",
    ),
)
_STRUCTURED = re.compile(
    r"schema|required property|must (?:have|be|match|NOT)|validation", re.IGNORECASE
)
_TAGGED = re.compile(r"^\s*<tool_use_error>")


def strip_tag(text: str) -> str:
    """Remove the agent program's wrapping from an error.

    >>> strip_tag("<tool_use_error>Error: no such file</tool_use_error>")
    'no such file'
    """
    previous = None
    while previous != text:
        previous, text = text, _TAG.sub("", text)
    return text.strip()


def not_the_model(text: str) -> Verdict | None:
    """Return a verdict if a human, a permission, a sibling call or the environment caused the
    failure; else None.

    >>> not_the_model("The user doesn't want to proceed with this tool use.").category
    'rejected'
    """
    return _first_match((*NOT_THE_MODEL, *NOT_THE_MODEL_ELSEWHERE), strip_tag(text))


def judge_tool_error(text: str, *, tool: str) -> Verdict:
    """Judge an error result of a tool that is not a shell.

    An error that no rule matches is "unclassified" and counts as the environment's, so that an
    unknown failure is never trained on.

    >>> judge_tool_error("<tool_use_error>File does not exist.</tool_use_error>", tool="Read").kind
    'file_missing'
    """
    message = strip_tag(text)
    verdict = not_the_model(text)
    if verdict is not None:
        return verdict
    if tool == "StructuredOutput" and _STRUCTURED.search(message[:HEAD_CHARS]):
        return Verdict(category="mistake", kind="structured_output_invalid", detail=quote(message))
    verdict = (
        _first_match(AGENT_POLICY, message) if _TAGGED.search(text) else None
    ) or _first_match((*CALL_IS_WRONG, *CALL_IS_WRONG_ELSEWHERE), message)
    if verdict is not None:
        return verdict
    # The agent refused the call before the tool ran: the arguments are at fault.
    if _TAGGED.search(text):
        return Verdict(category="mistake", kind="other", detail=quote(message))
    return Verdict(category="environment", kind="unclassified", detail=quote(message))


def is_error_text(text: str, *, is_shell: bool) -> bool:
    """Whether a result without an error flag begins with words that only the agent program writes,
    and only on failure."""
    if is_shell:
        return bool(re.match(r"Exit code \d+\b", text)) or not_the_model(text) is not None
    return (
        bool(_TAGGED.search(text))
        or bool(re.match(r"Error: No such tool available|InputValidationError", text))
        or _first_match(NOT_THE_MODEL[:5], text.strip())
        is not None  # a human, sibling or permission
    )


def _first_match(rules: tuple[ErrorPattern, ...], message: str) -> Verdict | None:
    head = message[:HEAD_CHARS]
    for rule in rules:
        if rule.pattern.search(head):
            return Verdict(category=rule.category, kind=rule.kind, detail=quote(message))
    return None
