"""The files that a context shows, so that edits can be applied to them without a file system.

    files_in_view(session.context(9))["a.py"]            -> "x = 1\\n"
    apply_change("x = 1\\n", (("1", "2", False),))       -> "x = 2\\n"; None if that edit would fail

A file that was read in part is known in part, which is enough to compare two edits inside that
part. The effect of shell commands on a file is not known: an edit of text that is no longer there
cannot be applied, and is then compared by its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from composer_replication.core.trace import ToolCall, Turn
from composer_replication.data.replay.agent_tools import Change, change_of, kind_of, path_of

_NUMBERED = re.compile(r"^ *\d+(?:→|\t)", re.MULTILINE)
_REMINDER = re.compile(
    r"\s*<system-reminder>(?:(?!<system-reminder>).)*</system-reminder>\s*\Z", re.DOTALL
)
MAX_FILE_CHARS = 2_000_000
"""Longer texts are not kept: a log is untrusted input."""


def files_in_view(
    context: Iterable[Turn], *, relative: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the text of every file in a context by path, with the successful edits applied."""
    files: dict[str, str] = {}
    open_calls: dict[str, ToolCall] = {}
    for turn in context:
        open_calls |= {call.id: call for call in turn.calls}
        for result in turn.results:
            call = open_calls.pop(result.call_id, None)
            path = (
                relative(path_of(call.arguments))
                if call is not None and not result.is_error
                else ""
            )
            if call is None or not path:
                continue
            if kind_of(call.name) == "read":
                files[path] = shown_text(result.text)
            elif change := change_of(call):
                _apply_or_forget(files, path, change)
    return {path: text for path, text in files.items() if len(text) <= MAX_FILE_CHARS}


def _apply_or_forget(files: dict[str, str], path: str, change: Change) -> None:
    text = apply_change(files.get(path), change)
    if text is None:
        files.pop(path, None)  # the file changed, but not in a known way
    else:
        files[path] = text


def shown_text(result: str) -> str:
    """Return a file's text from the output of a reading tool, without line numbers and reminders.

    >>> shown_text("     1→import os\\n     2→x\\n\\n<system-reminder>careful</system-reminder>")
    'import os\\nx'
    """
    text = _REMINDER.sub("", result)
    lines = text.count("\n") + 1
    bare, numbered = _NUMBERED.subn("", text)
    return bare if numbered >= lines - 1 and numbered else text


def apply_change(text: str | None, change: Change) -> str | None:
    """Return the text after some replacements; None if the agent would refuse one.

    It refuses old text that is missing, or that occurs more than once without `replace_all`.

    >>> apply_change("a b", (("a", "c", False),)), apply_change("a a", (("a", "c", False),))
    ('c b', None)
    >>> apply_change(None, ((None, "new", False),))
    'new'
    """
    for old, new, replace_all in change:
        if old is None:
            text = new
            continue
        occurrences = text.count(old) if text is not None else 0
        if text is None or not occurrences or (occurrences > 1 and not replace_all):
            return None
        text = text.replace(old, new)
    return text


def resulting_change(before: str, after: str) -> tuple[int, str, str]:
    """Return (position, old, new) of the one stretch in which two texts differ.

    >>> resulting_change("x = 1\\ny = 2", "x = 3\\ny = 2")
    (4, '1', '3')
    """
    start = _largest_n(min(len(before), len(after)), lambda n: before[:n] == after[:n])
    rest_before, rest_after = before[start:], after[start:]
    limit = min(len(rest_before), len(rest_after))
    end = _largest_n(limit, lambda n: n == 0 or rest_before[-n:] == rest_after[-n:])
    return start, rest_before[: len(rest_before) - end], rest_after[: len(rest_after) - end]


def _largest_n(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest n up to `most` with `equal(n)`, by bisection; `equal` must be monotone."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if holds(middle) else (low, middle - 1)
    return low
