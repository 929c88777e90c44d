"""The error kinds of the earlier guide, for code that was written against them."""

from __future__ import annotations

import re

# First match wins; the names are the guide's, the patterns are ours.
GUIDE_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "command_not_found",
        re.compile(
            r"command not found|unknown command: |is not recognized as (?:an internal or external"
            r" command|the name of)|: not found\s*$"
            r"|\bspawn \S{1,200} ENOENT|^(?:\S{0,80}/)?env: .{0,200}no such file",
            re.I | re.M,
        ),
    ),
    (
        "file_not_found",
        re.compile(
            r"no such file or directory|(?:file|path|directory) (?:does not exist|not"
            r" found)|\bENOENT\b|FileNotFoundError"
            r"|cannot find the (?:file|path) specified|did not match any files?\b|\bfile \S{1,200}"
            r" not found",
            re.I,
        ),
    ),
    (
        "permission_denied",
        re.compile(
            r"permission denied|permission to use .{1,200} (?:was|has been) denied|\bpermission to"
            r" \S{1,200} denied"
            r"|\baccess (?:is |was )?denied|\bE(?:ACCES|PERM)\b|PermissionError|operation not"
            r" permitted|\b403 forbidden",
            re.I,
        ),
    ),
    (
        "syntax_error",
        re.compile(
            r"syntax ?error|parse error|IndentationError|TabError|unexpected (?:token|EOF|indent)",
            re.I,
        ),
    ),
    (
        "connection_error",
        re.compile(
            r"connection (?:refused|reset|timed out|error|closed|aborted)|network (?:error|is"
            r" unreachable|unreachable)|no route to host"
            r"|could not resolve host|(?:failed|unable|could(?: not|n't)) (?:to )?connect\b|socket"
            r" hang up|fetch failed"
            r"|(?:read|request|connect) timed out|name resolution|name or service not known"
            r"|Connection(?:Reset|Refused|Aborted)?Error|\bSSLError|\bERR_(?:CONNECTION|NETWORK|INTERNET|NAME_NOT_RESOLVED)"
            r"|\bE(?:CONNREFUSED|CONNRESET|CONNABORTED|TIMEDOUT|NOTFOUND|NETUNREACH|HOSTUNREACH|AI_AGAIN)\b",
            re.I,
        ),
    ),
)
DEFAULT_KIND = "tool_error"


def default_classify_error(text: str) -> str:
    """Return the guide's kind of an error text: one of six, `tool_error` if no other matches.

    >>> default_classify_error("bash: foo: command not found")
    'command_not_found'
    >>> default_classify_error("network error")
    'connection_error'
    >>> default_classify_error("String to replace not found in file.")
    'tool_error'
    """
    return next((name for name, pattern in GUIDE_KINDS if pattern.search(text)), DEFAULT_KIND)
