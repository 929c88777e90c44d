"""Patterns of paths as ripgrep reads them, for Glob and for Grep's `glob`.

Standard library only: they are also matched behind the walls.
"""

from __future__ import annotations

import re


def path_regex(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression over a path below the searched folder.

    A pattern without a slash matches a name at any depth; a star stays within a folder.

    >>> bool(path_regex("*.py").fullmatch("a/b.py")), bool(path_regex("a/*.py").match("a/b/c.py"))
    (True, False)
    >>> bool(path_regex("**/*.{ts,tsx}").fullmatch("a/b/c.tsx"))
    True
    """
    anchored = pattern.lstrip("/")
    prefix = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(prefix + _translate(anchored), re.DOTALL)


def _translate(pattern: str) -> str:
    out, i, depth = "", 0, 0
    while i < len(pattern):
        char = pattern[i]
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
            continue
        if pattern.startswith("**", i):
            out, i = out + ".*", i + 2
            continue
        end = pattern.find("]", i + 2) if char == "[" else -1
        if end > 0:
            inside = pattern[i + 1 : end].replace("\\", "\\\\")
            out, i = out + f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]", end + 1
            continue
        if char == "{":
            depth += 1
        opened = {"*": "[^/]*", "?": "[^/]", "{": "(?:"}
        closed = {"}": ")", ",": "|"} if depth else {}
        if char == "}" and depth:
            depth -= 1
        out, i = out + (opened.get(char) or closed.get(char) or re.escape(char)), i + 1
    return out + ")" * depth
