"""Classify an error result by its opening words: a coarse table of fifteen kinds, for counting.

The kind describes the *result*. Whether the call was the model's mistake is another question, which
`data/sites/tool_errors.py` and `data/sites/shell_rules.py` answer with finer tables.
"""

from __future__ import annotations

import re

HEAD_CHARS = 400
"""Only the opening is read: an error comes first, and a long result may quote anything below."""

# First match wins. `^` anchors a pattern where the words also occur in ordinary output.
ERROR_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("user_rejected", re.compile(r"^The user doesn't want to")),
    ("interrupted", re.compile(r"^\[Request interrupted")),
    ("permission_aborted", re.compile(r"Permission prompt was aborted")),
    (
        "permission_denied",
        re.compile(
            r"^Permission for this action was denied|^Permission to use|requested permissions"
        ),
    ),
    ("sibling_errored", re.compile(r"Sibling tool call errored")),
    ("bash_exit", re.compile(r"^Exit code")),
    ("edit_not_read", re.compile(r"has not been read yet")),
    ("edit_no_match", re.compile(r"String to replace not found")),
    ("edit_multi_match", re.compile(r"^<tool_use_error>Found \d+ matches")),
    ("edit_stale", re.compile(r"modified since read|unexpectedly modified")),
    ("file_missing", re.compile(r"does not exist")),
    ("input_validation", re.compile(r"InputValidationError")),
    ("too_large", re.compile(r"exceeds maximum allowed")),
    ("tool_use_error_other", re.compile(r"^<tool_use_error>")),
)
OTHER = "other"
ALL_KINDS: tuple[str, ...] = (*(name for name, _ in ERROR_KINDS), OTHER)


def error_kind(text: str, *, tool: str = "") -> str:
    """Classify an error result by its opening words; `tool` is unused, but part of the signature of
    users' own functions.

    >>> error_kind("Exit code 1\\nFAILED tests/test_a.py")
    'bash_exit'
    >>> error_kind("File does not exist.")
    'file_missing'
    """
    head = text.strip()[:HEAD_CHARS]
    return next((name for name, pattern in ERROR_KINDS if pattern.search(head)), OTHER)
