"""The verdict on a call, from its result."""

from __future__ import annotations

import re
from dataclasses import dataclass

from composer_replication.core.site import Category

DETAIL_CHARS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whose fault a failure is (`category`), its kind, and the shortest quote that shows it.

    `subject` is the path, command, option or ref that the failure names, if it names one.
    Example: Verdict(category="mistake", kind="shell_missing_path", detail="ls: src/x: No such file
    or directory", subject="src/x")
    """

    category: Category
    kind: str
    detail: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """A pattern over the opening of a result, and what it means."""

    category: Category
    kind: str
    pattern: re.Pattern[str]


def error_pattern(category: Category, kind: str, pattern: str) -> ErrorPattern:
    """Compile the pattern of an error, without regard to case."""
    return ErrorPattern(category, kind, re.compile(pattern, re.IGNORECASE))


def quote(text: str) -> str:
    """The first non-empty line, cut to the width of a table.

    >>> quote("\\nError: x\\nmore")
    'Error: x'
    """
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= DETAIL_CHARS else line[: DETAIL_CHARS - 1] + "…"
