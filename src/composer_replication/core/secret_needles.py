"""Search for many short strings in one pass over a text, each by its rarest character.

    hits = Needles([("ghp_", 1), ("sk-", 2)], rarest="_-")
    hits.search("a sk-1")  ->  [(2, 2)]       # at position 2 stands the needle with the payload 2

str.find reads the text once per needle; one pattern of all needles tries each of them at each
position. Here the regex engine skips to the rare characters and then compares a neighbouring one,
for many needles at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
_RARE_FIRST = (
    'Q^XKZ~@?Yzqj<VJ;|+&>#B%Gj!{$(*OMWHN*LFPRUxA9E87DI_65T04C=S3k:lywgpumbc1f2\\.vdh-/"nioasrte '
)
"""Characters from rare to frequent in source code and logs, as measured on public sessions."""
_ASCII = bytes(range(128))
SHORT = 240
"""In a shorter text, one search for all anchors is faster than one search for each."""


class _Needle(NamedTuple):
    text: str
    anchor: int
    """The position of the character by which the needle is searched."""
    payloads: tuple[object, ...]


class Needles(Generic[T]):
    """Needles and their payloads; the module's docstring explains the method.

    `rarest`: characters that are preferred as anchors. `anchors`: the only characters to search
    for, one after the other, which is faster in long texts; a needle without any of them is
    searched by str.find. Without `anchors` all characters are searched at once.
    """

    def __init__(
        self, pairs: Iterable[tuple[str, T]], *, rarest: str = "", anchors: str = ""
    ) -> None:
        by_needle: dict[str, list[T]] = {}
        for needle, payload in pairs:
            by_needle.setdefault(needle, []).append(payload)
        by_letter: dict[str, list[_Needle]] = {}
        self._alone: list[tuple[str, tuple[T, ...]]] = []
        self._foreign: list[tuple[str, bytes, tuple[T, ...]]] = []
        for text, payloads in by_needle.items():
            at = _anchor(text, rarest, anchors)
            if letters := _without_ascii(text):
                self._foreign.append((text, letters, tuple(payloads)))
            elif at < 0:
                self._alone.append((text, tuple(payloads)))
            else:
                by_letter.setdefault(text[at], []).append(_Needle(text, at, tuple(payloads)))
        # frequent anchors first
        in_order = sorted(by_letter.items(), key=lambda item: -_RARE_FIRST.find(item[0]))
        self._looks = [
            self._look(group)
            for group in ([[item] for item in in_order] if anchors else [in_order])
        ]
        self._at_once = self._look(in_order)

    def _foreign_in(self, text: str) -> Iterator[tuple[str, tuple[T, ...]]]:
        """The needles of other scripts whose non-ASCII characters the text contains."""
        foreign_letters = _without_ascii(text)
        return (
            (needle, payloads)
            for needle, letters, payloads in self._foreign
            if letters in foreign_letters
        )

    def _look(
        self, group: list[tuple[str, list[_Needle]]]
    ) -> tuple[re.Pattern[str], list[tuple[tuple[int, T], ...]]]:
        """A pattern, and for each of its groups (offset of the needle's start, payload)."""
        meanings: list[tuple[tuple[int, T], ...]] = []
        pattern = "|".join(
            re.escape(letter) + self._rows(needles, meanings) for letter, needles in group
        )
        return re.compile(pattern), meanings

    def _rows(self, needles: list[_Needle], meanings: list[tuple[tuple[int, T], ...]]) -> str:
        """The pattern around one anchor: needles with the same neighbouring character share a
        branch."""
        branches: dict[str, list[str]] = {}
        needles = sorted(
            needles,
            key=lambda n: (n.anchor + 1 == len(n.text), _near(n), -n.anchor, -len(n.text), n.text),
        )
        for needle in needles:
            before, behind = needle.text[: needle.anchor + 1], needle.text[needle.anchor + 1 :]
            ahead = f"(?={re.escape(behind)})" if behind else ""
            branches.setdefault(_near(needle), []).append(f"{ahead}(?<=({re.escape(before)}))")
            # A hit of a longer needle ("gsk_") is also a hit of the shorter ones in it ("sk_").
            within = [
                n
                for n in needles
                if before.endswith(n.text[: n.anchor + 1])
                and behind.startswith(n.text[n.anchor + 1 :])
            ]
            meanings.append(tuple((n.anchor, payload) for n in within for payload in n.payloads))  # type: ignore[misc]
        return (
            "(?:"
            + "|".join(f"{near}(?:{'|'.join(parts)})" for near, parts in branches.items())
            + ")"
        )

    def search(self, text: str, start: int = 0, end: int | None = None) -> list[tuple[int, T]]:
        """(start, payload) of every needle in a part of a text, in order."""
        end = len(text) if end is None else end
        hits: list[tuple[int, T]] = []
        for pattern, meanings in self._looks if end - start > SHORT else (self._at_once,):
            for hit in pattern.finditer(text, start, end):
                hits += [
                    (hit.start() - offset, payload)
                    for offset, payload in meanings[(hit.lastindex or 1) - 1]
                ]
        for needle, payloads in (
            self._alone if text.isascii() else (*self._alone, *self._foreign_in(text))
        ):
            at = text.find(needle, start, end)
            while at >= 0:
                hits += [(at, payload) for payload in payloads]
                at = text.find(needle, at + 1, end)
        hits.sort(key=itemgetter(0))
        return hits


def _without_ascii(text: str) -> bytes:
    """The non-ASCII characters of a text, as UTF-8."""
    return text.encode("utf-8", "replace").translate(None, _ASCII)


def _near(needle: _Needle) -> str:
    """A lookaround for the character after the anchor or, if there is none, the one before it."""
    if needle.anchor + 1 < len(needle.text):
        return f"(?={re.escape(needle.text[needle.anchor + 1])})"
    return f"(?<={re.escape(needle.text[-2:])})"


def _anchor(needle: str, rarest: str, anchors: str) -> int:
    """The position of a needle's anchor, or -1."""
    at = max((needle.rfind(c) for c in rarest), default=-1)
    allowed = [i for i in range(len(needle)) if not anchors or needle[i] in anchors]
    return at if at >= 0 or not allowed else min(allowed, key=lambda i: _RARE_FIRST.find(needle[i]))
