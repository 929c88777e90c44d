"""Many short strings looked for in one pass over a text: each by its rarest letter.

    hits = Needles([("ghp_", 1), ("sk-", 2)], rarest="_-")
    list(hits.search("a sk-1"))  ->  [(2, 2)]       # what is found begins at letter 2 and is the needle with the payload 2

A search with str.find per needle reads the text once for each; one pattern of them all tries each at each letter. Here the regex engine
skips to the few letters that tell, and compares the letter before, for many needles at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
_RARE_FIRST = "Q^XKZ~@?Yzqj<VJ;|+&>#B%Gj!{$(*OMWHN*LFPRUxA9E87DI_65T04C=S3k:lywgpumbc1f2\\.vdh-/\"nioasrte "
"""Letters by how rarely source code and its logs hold them, the rarest first; measured on public sessions."""
_FREQUENT = frozenset("0123456789.vdh-/\"nioasrtef ")
"""A needle of nothing but such letters is looked for by itself."""


class _Needle(NamedTuple):
    text: str
    anchor: int
    """The position of the letter by which it is looked for."""
    payloads: tuple[object, ...]


class Needles(Generic[T]):
    """Needles and what each stands for; see the head of this module. `rarest`: letters that are taken before all others."""

    def __init__(self, pairs: Iterable[tuple[str, T]], *, rarest: str = "") -> None:
        by_needle: dict[str, list[T]] = {}
        for needle, payload in pairs:
            by_needle.setdefault(needle, []).append(payload)
        needles = [_Needle(text, _anchor(text, rarest), tuple(own)) for text, own in by_needle.items()]
        alone = [n for n in needles if n.text[n.anchor] in _FREQUENT and not rarest]
        self._alone: list[tuple[str, tuple[T, ...]]] = [(n.text, n.payloads) for n in alone]  # type: ignore[misc]
        self._meanings: list[tuple[tuple[int, T], ...]] = []
        by_letter: dict[str, list[_Needle]] = {}
        for needle in needles:
            if needle not in alone:
                by_letter.setdefault(needle.text[needle.anchor], []).append(needle)
        in_order = sorted(by_letter.items(), key=lambda item: -_RARE_FIRST.find(item[0]))  # the frequent letters are told first
        self.pattern = re.compile("|".join(re.escape(letter) + self._rows(own) for letter, own in in_order))

    def _rows(self, needles: list[_Needle]) -> str:
        """What stands around one letter in its needles: those with the same letter before or behind it in one branch."""
        branches: dict[str, list[str]] = {}
        needles = sorted(needles, key=lambda n: (_near(n), -n.anchor, -len(n.text), n.text))
        for needle in needles:
            before, behind = needle.text[: needle.anchor + 1], needle.text[needle.anchor + 1 :]
            ahead = f"(?={re.escape(behind)})" if behind else ""
            branches.setdefault(_near(needle), []).append(f"{ahead}(?<=({re.escape(before)}))")
            # A hit of a longer needle ("gsk_") is one of the shorter needles within it ("sk_"), too.
            within = [n for n in needles if before.endswith(n.text[: n.anchor + 1]) and behind.startswith(n.text[n.anchor + 1 :])]
            self._meanings.append(tuple((n.anchor, payload) for n in within for payload in n.payloads))  # type: ignore[misc]
        return "(?:" + "|".join(f"{near}(?:{'|'.join(parts)})" for near, parts in branches.items()) + ")"

    def search(self, text: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, T]]:
        """Where needles begin in a part of a text, and what they stand for."""
        end = len(text) if end is None else end
        for hit in self.pattern.finditer(text, start, end):
            for offset, payload in self._meanings[(hit.lastindex or 1) - 1]:
                yield hit.start() - offset, payload
        for needle, payloads in self._alone:
            at = text.find(needle, start, end)
            while at >= 0:
                for payload in payloads:
                    yield at, payload
                at = text.find(needle, at + 1, end)


def _near(needle: _Needle) -> str:
    """A look at the letter behind the anchor, or where there is none at the one before it."""
    if needle.anchor + 1 < len(needle.text):
        return f"(?={re.escape(needle.text[needle.anchor + 1])})"
    return f"(?<={re.escape(needle.text[-2:])})"


def _anchor(needle: str, rarest: str) -> int:
    at = max((needle.rfind(c) for c in rarest), default=-1)
    return at if at >= 0 else min(range(len(needle)), key=lambda i: _RARE_FIRST.find(needle[i]))
