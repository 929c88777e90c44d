"""Changes of a text that a task line can hold.

    changed = apply_edits(text, [Edit(8, 9, "8")])

Edits name byte offsets in the UTF-8 text, so that comments and layout of the rest stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """Replace the bytes from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with non-overlapping edits made.

    >>> apply_edits("depth = 7", [Edit(8, 9, "8")])
    'depth = 8'
    """
    data = text.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def removed_texts(text: str, edits: Sequence[Edit]) -> tuple[str, ...]:
    """What each edit takes away.

    >>> removed_texts("depth = 7", [Edit(8, 9, "8")])
    ('7',)
    """
    data = text.encode()
    return tuple(data[edit.start : edit.end].decode() for edit in edits)
