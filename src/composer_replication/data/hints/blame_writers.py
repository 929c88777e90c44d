"""Hints for an edit that broke a check: the kind of error, and nothing of its repair."""

from __future__ import annotations

import re

from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.templates import fill

_FAULTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (words, re.compile(pattern, re.IGNORECASE))
    for words, pattern in (
        (
            "a name that is not defined or not imported there",
            r"\bundefined: |undeclared|\bNameError\b|is not defined|cannot find name|F821",
        ),
        (
            "an import, variable, parameter or function that nothing uses",
            r"\bnot used\b|\bunused\b|ineffassign|F401|F841|declared but",
        ),
        (
            "a field, method or attribute that does not exist",
            r"no field or method|has no attribute|AttributeError|property .* does not exist"
            r"|unknown field",
        ),
        ("a call with too many or too few arguments", r"(?:many|enough) arguments|positional argu"),
        (
            "a value of the wrong type",
            r"cannot use .* as|TypeError|is not assignable|incompatible (?:return value )?type"
            r"|mismatched types",
        ),
        (
            "an error that is ignored, or returned as it came",
            r"errcheck|unhandled|wrapcheck|nilerr|unwrapped|return value .* is not checked",
        ),
        ("a line or function that is too long or too complex", r"\blll\b|too long|complexity|E501"),
        ("code that does not parse", r"syntax error|SyntaxError|IndentationError|expected '"),
        ("a value that stands there several times", r"goconst|duplicate|\bdupl\b"),
        ("cases that a switch leaves out", r"missing cases|exhaustive"),
        (
            "a variable that is read before it is set",
            r"UnboundLocalError|used before assignment|possibly unbound",
        ),
        ("an import that is not found", r"ImportError|ModuleNotFoundError|cannot find module"),
        ("a key or an index that is not there", r"\bKeyError\b|\bIndexError\b|out of range"),
        ("a value that a function does not take", r"\bValueError\b"),
        ("a file that is not there", r"FileNotFoundError|\bENOENT\b"),
        ("a recursion that does not end", r"RecursionError|stack overflow"),
        ("an assertion in the code that does not hold", r"\bAssertionError\b|(?:^| )assert "),
    )
)


def broke_check(context: SiteContext) -> str | None:
    """Name the kind of error that a later check finds in the lines of this edit; None if it is of
    no kind that is known."""
    detail = context.site.detail
    fault = next((words for words, pattern in _FAULTS if pattern.search(detail)), "")
    return fill("broke_check", fault=fault) if fault else None
