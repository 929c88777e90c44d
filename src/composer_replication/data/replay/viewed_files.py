"""Files as a context shows them: what was read, written and edited since, so that an edit can be
carried out in thought.

files_in_view(session.context(9))["a.py"]            -> "x = 1\\n"
apply_change("x = 1\\n", (("1", "2", False),))       -> "x = 2\\n"; None where that edit would fail

A file that was read in part is known in part, which is enough to compare two edits inside that
part. What a shell command did to a file is not known: an edit of what is no longer there cannot be
applied, and is then compared word by word.
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
"""A longer text is not kept: a log is untrusted input."""


def files_in_view(
    context: Iterable[Turn], *, relative: Callable[[str], str] = str
) -> dict[str, str]:
    """Path -> text of every file that a context shows, with the edits that the context shows to
    have worked."""
    files: dict[str, str] = {}
    waiting: dict[str, ToolCall] = {}
    for turn in context:
        waiting |= {call.id: call for call in turn.calls}
        for result in turn.results:
            call = waiting.pop(result.call_id, None)
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
                _follow(files, path, change)
    return {path: text for path, text in files.items() if len(text) <= MAX_FILE_CHARS}


def _follow(files: dict[str, str], path: str, change: Change) -> None:
    text = apply_change(files.get(path), change)
    if text is None:
        files.pop(path, None)  # it changed in a way that cannot be followed
    else:
        files[path] = text


def shown_text(result: str) -> str:
    """The text of a file from what a reading tool printed: without line numbers, and without what
    the agent program added below.

    >>> shown_text("     1→import os\\n     2→x = 1\\n\\n<system-reminder>careful</system-reminder>")
    'import os\\nx = 1'
    """
    text = _REMINDER.sub("", result)
    lines = text.count("\n") + 1
    bare, numbered = _NUMBERED.subn("", text)
    return bare if numbered >= lines - 1 and numbered else text


def apply_change(text: str | None, change: Change) -> str | None:
    """The text after some replacements; None where the agent would refuse one: not found, or found
    more than once and not meant everywhere.

    >>> apply_change("a b", (("a", "c", False),)), apply_change("a a", (("a", "c", False),)), apply_change(None, ((None, "new", False),))
    ('c b', None, 'new')
    """
    for old, new, everywhere in change:
        if old is None:
            text = new
            continue
        found = text.count(old) if text is not None else 0
        if text is None or not found or (found > 1 and not everywhere):
            return None
        text = text.replace(old, new)
    return text


def resulting_change(before: str, after: str) -> tuple[int, str, str]:
    """(where, what was there, what is there now): the one stretch in which two texts differ.

    >>> resulting_change("x = 1\\ny = 2", "x = 3\\ny = 2")
    (4, '1', '3')
    """
    start = _common(min(len(before), len(after)), lambda n: before[:n] == after[:n])
    rest_before, rest_after = before[start:], after[start:]
    limit = min(len(rest_before), len(rest_after))
    end = _common(limit, lambda n: n == 0 or rest_before[-n:] == rest_after[-n:])
    return start, rest_before[: len(rest_before) - end], rest_after[: len(rest_after) - end]


def _common(most: int, equal: Callable[[int], bool]) -> int:
    """The largest n up to `most` for which `equal(n)` holds, where it holds for every smaller
    one."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if equal(middle) else (low, middle - 1)
    return low
