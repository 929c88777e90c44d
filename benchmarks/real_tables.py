"""Tables and intervals of docs/evidence_real.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(table(("kind", "n"), [("a", "1")]), end="")
    | kind | n |
    | --- | --- |
    | a | 1 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def interval(row: Mapping[str, Any] | None) -> str:
    """A mean with its interval.

    >>> interval({"mean": 1.25, "low": 1.0, "high": 1.5}), interval(None)
    ('+1.25 [+1.00, +1.50]', '-')
    """
    if row is None:
        return "-"
    if row["low"] is None:
        return f"{row['mean']:+.2f} (one session)"
    return f"{row['mean']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"


def in_words(row: Mapping[str, Any], words: tuple[str, str, str]) -> str:
    """What an interval supports: above zero, below zero, or neither.

    >>> in_words({"low": -0.1, "high": 0.2}, ("more", "less", "not shown to differ"))
    'not shown to differ'
    """
    above, below, neither = words
    if row["low"] is not None and row["low"] > 0:
        return above
    return below if row["high"] is not None and row["high"] < 0 else neither
