"""What a text says once it is decoded: JSON within JSON, URL encoding, base64. Positions lead back to the text as it stands.

for decoded in decodings(Page.of("token%3Dghp_...")):
    decoded.text                 # "token=ghp_..."
    decoded.source(6, 46)        # (8, 48): where letters 6 to 46 stand in the encoded text
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from composer_replication.core.secret_page import Page

MIN_BASE64_CHARS = 24
"""A shorter run is no secret's: its 18 bytes are less than any rule asks for."""
MAX_BASE64_CHARS = 2**20
_WRAPPED_AT = 60
_ESCAPE = re.compile(r"\\(?:u00([0-9a-fA-F]{2})|([\"\\/nrtbf]))")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})")
# Text is bytes below 128: of four letters of base64 the first three have a bit that is not set. 18 bytes of it in a row are no chance.
_TEXT_RUN = re.compile(
    rf"(?:[A-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghkloptwxs014589][A-Za-z0-9+/_-]){{{MIN_BASE64_CHARS // 4}}}[A-Za-z0-9+/_-]*"
)
_LINE = re.compile(r"(\r?\n[ \t]*)([A-Za-z0-9+/_-]{4,})")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = bytes([9, 10, 13, *range(32, 127)])


class Decoded(NamedTuple):
    """A decoded text; `marks` are (position in it, position in the source) at which the distance between the two changes.

    `whole` = its source can only be taken as a whole: a letter of base64 holds parts of two bytes.
    """

    text: str
    marks: tuple[list[int], list[int]]
    whole: bool = False

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Where letters `start` to `end` stand in the source."""
        if self.whole:
            return self.marks[1][0], self.marks[1][1]
        return self._at(start), self._at(end)

    def _at(self, position: int) -> int:
        here, there = self.marks
        i = bisect_right(here, position) - 1
        return there[i] + position - here[i]


def decodings(page: Page) -> Iterator[Decoded]:
    r"""Each way in which a text can be decoded, if there is something to decode in it.

    >>> [d.text for d in decodings(Page.of(r'{\"a\": 1}'))], [d.text for d in decodings(Page.of("a%3Db"))]
    (['{"a": 1}'], ['a=b'])
    """
    text = page.text
    if '\\"' in text or "\\/" in text or "\\u00" in text:
        yield _replaced(text, _ESCAPE, _of_escape)
    if "%" in text and _PERCENT.search(text):
        yield _replaced(text, _PERCENT, _of_percent)
    yield from _base64_runs(page)


def _of_escape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2])


def _of_percent(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def _replaced(text: str, pattern: re.Pattern[str], letter_of: Callable[[re.Match[str]], str]) -> Decoded:
    """A text with every match replaced by the one letter it stands for."""
    pieces: list[str] = []
    here, there = [0], [0]
    last = length = 0
    for match in pattern.finditer(text):
        start, end = match.span()
        pieces += (text[last:start], letter_of(match))
        length += start - last
        here += (length, length + 1)
        there += (start, end)
        length, last = length + 1, end
    pieces.append(text[last:])
    return Decoded("".join(pieces), (here, there))


def _base64_runs(page: Page) -> Iterator[Decoded]:
    """Runs of base64 that are text when decoded; a hash, a path or a picture is not."""
    text, done, match_at = page.text, 0, _TEXT_RUN.match
    for start, _ in page.runs:
        begin = start + 1 if text[start - 1 : start] == "\\" else start  # the n of a JSON "\n" is no letter of what follows it
        match = match_at(text, begin)
        if match is None or begin < done or not _is_text(match[0][:MIN_BASE64_CHARS]):
            continue
        done, encoded = _joined(text, begin, match.end())
        while text[done : done + 1] == "=":
            done += 1
        plain = _decoded(encoded[:MAX_BASE64_CHARS])
        yield Decoded(plain, ([0, len(plain)], [begin, done]), whole=True)


def _joined(text: str, start: int, end: int) -> tuple[int, str]:
    """The end and the letters of a run that goes on in the lines below it."""
    pieces, first = [text[start:end]], end - start
    while first >= _WRAPPED_AT and first % 4 == 0 and (below := _LINE.match(text, end)) and len(below[2]) <= first:
        pieces.append(below[2])
        end = below.end()
    return end, "".join(pieces)


def _is_text(start: str) -> bool:
    return not base64.b64decode(start.encode().translate(_URL_SAFE)).translate(None, _PRINTABLE)


def _decoded(encoded: str) -> str:
    """The text that a run of base64 stands for; a run's incomplete last letters are left out."""
    data = base64.b64decode(encoded[: len(encoded) - len(encoded) % 4].encode().translate(_URL_SAFE))
    rest = encoded[len(encoded) - len(encoded) % 4 :]
    if len(rest) > 1:
        data += base64.b64decode(rest.encode().translate(_URL_SAFE) + b"=" * (4 - len(rest)))
    return data.decode("latin-1")
