"""Edits as diffs: the lines that a call takes out and puts in."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.html import Html, el, join
from composer_replication.report.limits import cut_end

SIDES_OF_EDIT = (
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("oldText", "newText"),
    ("old", "new"),
)
"""Names of the two texts of an edit in the tools of coding agents."""
PATCHES = ("patch", "diff", "input")
PATCH_BEGINS = ("*** Begin Patch", "--- ", "diff --git ")
MARKS = {"-": ("del", "gone"), "+": ("ins", "new")}


def edit_lines(arguments: Mapping[str, Any]) -> list[str] | None:
    """The lines of an edit with "-", "+" or " " in front; None if the call is no edit.

    >>> edit_lines({"file_path": "a.py", "old_string": "x = 1\\ny", "new_string": "x = 2\\ny"})
    ['-x = 1', '+x = 2', ' y']
    """
    for old, new in SIDES_OF_EDIT:
        if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str):
            return _changed(arguments[old], arguments[new])
    edits = arguments.get("edits")
    if isinstance(edits, list) and edits and all(isinstance(edit, dict) for edit in edits):
        parts = [edit_lines(edit) for edit in edits]
        return None if None in parts else [line for part in parts for line in part or ()]
    for name in PATCHES:
        text = arguments.get(name)
        if isinstance(text, str) and text.startswith(PATCH_BEGINS):
            return text.splitlines()
    return None


def without_edit(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the diff does not show."""
    shown = {"edits", *PATCHES, *(name for pair in SIDES_OF_EDIT for name in pair)}
    return {name: value for name, value in arguments.items() if name not in shown}


def _changed(old: str, new: str) -> list[str]:
    before, after = old.splitlines(), new.splitlines()
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=len(before) > 400)
    for name, a, b, c, d in matcher.get_opcodes():
        if name == "equal":
            lines += [f" {line}" for line in before[a:b]]
        else:
            lines += [f"-{line}" for line in before[a:b]] + [f"+{line}" for line in after[c:d]]
    return lines


def diff_block(lines: Sequence[str], limit: int) -> Html:
    """The lines of a diff, at most `limit` characters of them."""
    drawn: list[Html] = []
    left = limit
    for number, line in enumerate(lines):
        if left <= 0:
            rest = sum(len(other) for other in lines[number:])
            drawn.append(el("span", f"[{rest} more characters]"))
            break
        name, cls = MARKS.get(line[:1], ("span", None))
        drawn.append(join(el(name, cut_end(line, left), cls=cls), "\n"))
        left -= len(line)
    return el("div", drawn, cls="text diff")
