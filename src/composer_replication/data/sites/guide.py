"""The error kinds of the earlier guide, for code that was written against them."""

from __future__ import annotations

import re

# First match wins; the names are the guide's, the patterns are ours.
GUIDE_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "command_not_found",
        re.compile(r"command not found|is not recognized as an internal or external command|: not found\s*$", re.I | re.M),
    ),
    (
        "file_not_found",
        re.compile(r"no such file or directory|(?:file|path|directory) (?:does not exist|not found)|\bENOENT\b|FileNotFoundError", re.I),
    ),
    (
        "permission_denied",
        re.compile(r"permission denied|permission to use .* (?:was|has been) denied|\bE(?:ACCES|PERM)\b|operation not permitted", re.I),
    ),
    ("syntax_error", re.compile(r"syntax ?error|parse error|IndentationError|unexpected (?:token|EOF|indent)", re.I)),
    (
        "connection_error",
        re.compile(
            r"connection (?:refused|reset|timed out|error|closed|aborted)|network (?:error|is unreachable|unreachable)|no route to host"
            r"|could not resolve host|(?:failed|unable|could(?: not|n't)) (?:to )?connect\b|socket hang up|fetch failed"
            r"|(?:read|request|connect) timed out|name resolution|name or service not known"
            r"|\bE(?:CONNREFUSED|CONNRESET|CONNABORTED|TIMEDOUT|NOTFOUND|NETUNREACH|HOSTUNREACH|AI_AGAIN)\b",
            re.I,
        ),
    ),
)
DEFAULT_KIND = "tool_error"


def default_classify_error(text: str) -> str:
    """The guide's kind of an error text: one of six, `tool_error` where nothing more is known.

    >>> default_classify_error("bash: foo: command not found")
    'command_not_found'
    >>> default_classify_error("network error")
    'connection_error'
    >>> default_classify_error("String to replace not found in file.")
    'tool_error'
    """
    return next((name for name, pattern in GUIDE_KINDS if pattern.search(text)), DEFAULT_KIND)
