r"""Decode what hides secrets in a text: escapes, URL encoding, base64, hex, colour codes inside a
word, string literals in pieces.

view = decoded(Page.of(r"{\"t\": \"ghp_...\"}"))
view.text                 # '{"t": "ghp_..."}'
view.source(7, 47)        # (10, 50): the span in the original text of letters 7 to 47

All wrapping of one layer is undone at once, and only the surroundings of what was wrapped are kept:
a layer costs no more than the text itself, whatever is in it. core/redact.py looks at the view as
at any text, and undoes the next layer of it.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from composer_replication.core.secret_page import Page

MIN_BASE64_CHARS = 24
"""A shorter run is no secret's: its 18 bytes are less than any rule asks for."""
MAX_DECODED = 2**20
AROUND = 160
"""Characters before and after a decoded piece that are searched with it, so that a name and the
glue before its value are seen."""
_WRAPPED_AT, _WIDE_LINE = 40, 60
_LINE_NUMBER = r"(?:\d{1,6}[\t\u2192][ \t]{0,40})"
_ESCAPE = re.compile(
    r"\\(?:u\{([0-9a-fA-F]{1,5})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-3][0-7]{2})(?![0-7])|([\"\\/nrtbfe'`])"
    r"|(?<=\w\\)([_*~#!$&@+=(){}^])(?=\w)"  # Markdown's and a shell's, within a word
    rf"|\\{{0,2}}\r?\n[ \t]{{0,40}}{_LINE_NUMBER}?)"
)
_REST = re.compile(r"[^\s\"']{0,4000}")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "e": "\x1b"}
_LINE_ENDS = ("n", "r", "t", "b", "f", "e", "`")
_PERCENT = re.compile(r"%(?:25)?([0-9A-Fa-f]{2})")
_PERCENT_UTF8 = re.compile(
    r"%(?:25)?([CDcd][0-9A-Fa-f])%(?:25)?([89ABab][0-9A-Fa-f])|" + _PERCENT.pattern
)
_ENTITY = re.compile(
    r"&(?:#[xX]([0-9a-fA-F]{2,4})|#(\d{2,5})|(quot|amp|lt|gt|apos|equals|colon|num|dollar|excl|commat|sol|lowbar|plus|period|percnt));"
)
_NAMED = "quot amp lt gt apos equals colon num dollar excl commat sol lowbar plus period percnt"
_ENTITIES: dict[str, str] = dict(zip(_NAMED.split(), "\"&<>'=:#$!@/_+.%", strict=True))
_COLOUR = re.compile(
    r"(?:\x1b|\u241b|\^\[)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
_TAG = re.compile(
    r"</?(?:span|font|mark|em|b|i|strong|code|wbr)(?: [^<>\n]{0,160})?/?>", re.IGNORECASE
)
# Letters that nobody sees: those of no width, what a backspace takes back, the zeros of UTF-16.
# Each is looked for where its mark stands.
_INVISIBLE = (
    *((mark, re.compile(mark)) for mark in "\u200b\u200c\u200d\u2060\ufeff\u00ad"),
    ("\x08", re.compile(".\x08")),
    ("\x00", re.compile("\x00(?=[\x01-\x7f]\x00)|(?<=\x00[\x01-\x7f])\x00")),
    ("^@", re.compile(r"\^@(?=.\^@)|(?<=\^@.)\^@")),
)
_IS_QUOTED = re.compile(r"=(?:3D|[ \t]?\r?\n)")
_SOFT_BREAK = re.compile(r"=(?:([0-9A-F]{2}(?:=[0-9A-F]{2}){0,199})|[ \t]?\r?\n(?=\S))")
# One pattern per quote: a pattern that begins with one letter is looked for many times as fast.
_GLUED = tuple(
    re.compile(
        rf"{q}(?=[ \t+.&|<~\\`\r\nbfruBFRU\"'])(?<=[\w+/=.~:@!-]{q})["
        r" \t]{0,4}+(?:\+|\.{1,2}|&|\|\||<>|~|\\)?[ \t]{0,4}+"
        r"(?:[\\`]?\r?\n[ \t]{0,40}(?:\d{1,6}[\t\u2192:][ \t]{0,40}|[+>|*#-]["
        r" \t]{1,40})?(?:(?:\+|\.{1,2}|&|\|\|)[ \t]{0,4})?)?"
        r"[bfruBFRU]?[\"'](?=[\w+/=.~:@!-])"
    )
    for q in "\"'"
)
_LISTED = tuple(
    re.compile(rf"{q}(?<=[\w+/=.~:@!-]{q})[ \t]{{0,4}},\s{{0,40}}[bfru]?[\"'](?=[\w+/=.~:@!-])")
    for q in "\"'"
)
_JOINS = ("join(", "concat(")
# Quotes doubled within a field of CSV: {""api_key"": ""...""}.
_DOUBLED = re.compile(r'""(?:(?<=[{,:\w ]"")(?=\w)|(?<=\w"")(?=[:,}]))')
# Literals of one letter each: {'a', 'b', ...}, with what ends such a list in C.
_SINGLES = tuple(
    (
        re.compile(rf"{q}[^\\\n]{q},\s{{0,20}}{q}[^\\\n]{q},"),
        re.compile(
            rf"[\[({{]\s{{0,20}}(?:{q}[^\\\n]{q}\s{{0,2}},\s{{0,20}}){{7,4000}}(?:{q}[^\\\n]{q})?(?:\s{{0,2}},?\s{{0,20}}(?:{q}\\0{q}|0))?\s{{0,20}}[\])}}]"
        ),
    )
    for q in "\"'"
)
_SINGLE = re.compile(r"[\"'](.)[\"'](?=\s{0,2}(?:,|[\])}]))")
# Values in a template one behind the other: ${'...'}${'...'}.
_IN_TEMPLATE = re.compile(r"(?<=[\w+/=.-])[\"']\}\$\{[\"'](?=[\w+/=.-])")
# Codes of letters in a row: in brackets, or as calls that make a letter each.
_CODE = r"(?:3[2-9]|[4-9]\d|1[01]\d|12[0-6]|10|13)"
_NUMBERS = tuple(
    re.compile(rf"{bracket}\s{{0,20}}(?:{_CODE}\s{{0,2}},\s{{0,20}}){{11,4000}}{_CODE}(?!\d)")
    for bracket in (r"\[", r"\(", r"\{")
)
_CHARS = re.compile(
    rf"ch(?:a)?r\({_CODE}\)(?:\s{{0,4}}(?:[,.+&]|\|\|)\s{{0,8}}ch(?:a)?r\({_CODE}\)){{7,4000}}",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_HEX_LIST = re.compile(
    r"(?:(?<=[\s\"'\[({:])|\A)(?:(?:0x)?(?:[2-7][0-9a-fA-F]|0[aAdD9])(?:["
    r" :]|,\s{0,20})){11,4000}(?:0x)?(?:[2-7][0-9a-fA-F]"
    r"|0[aAdD9])(?![0-9A-Za-z])"
)
_SPACED_HEX = tuple(
    map(
        re.compile,
        (
            r" 6[0-9a-fA-F] [2-7][0-9a-fA-F][ \n]",
            r":6[0-9a-fA-F]:[2-7][0-9a-fA-F]:",
            r"0x6[0-9a-fA-F],\s{0,20}0x[2-7]",
        ),
    )
)
_OPENED = re.compile(r"[\[({]\s{0,20}\Z")
_REGISTRY = re.compile(
    r"=hex(?:\([127]\))?:((?:[0-9a-fA-F]{2},00,(?:\\\r?\n[ \t]{0,8})?){5,400}[0-9a-fA-F]{2},00)"
)
_HEX_PAIR = re.compile(r"(?:0x)?([0-9a-fA-F]{2})")
_DUMP = re.compile(
    r"(?m)^[ \t]{0,8}[0-9a-fA-F]{7,8}:?[ \t]{1,3}((?:[0-9a-fA-F]{2}){1,2}(?:["
    r" \t]{1,3}(?:[0-9a-fA-F]{2}){1,2}){0,15})"
    r"(?:[ \t]{2,60}[^\n]{0,20})?$\n?"
)
_HEX_RUN = re.compile(r"(?:0[xX])?((?:[2-7][0-9a-fA-F]|0[aAdD9]){12,20000})(?![0-9a-zA-Z])")
_HEX_LINE = re.compile(r"\r?\n[ \t]{0,8}((?:[2-7][0-9a-fA-F]|0[aAdD9]){1,200})(?![0-9a-zA-Z])")
# Text is bytes below 128: of four letters of base64 the first three have a bit that is not set. 18
# bytes of it in a row are no chance.
_TEXT_RUN = re.compile(
    r"(?:[A-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghkloptwxs014589][A-Za-z0-9+/_-])"
    rf"{{{MIN_BASE64_CHARS // 4}}}[A-Za-z0-9+/_-]*"
)
# UTF-16: every other byte is 0.
_WIDE_RUN = re.compile(
    r"(?:(?:[A-Za-z0-9+/]{2}[AB][A-Za-z0-9+/]A[A-Za-z0-9+/]{2}A){2}|(?:A[A-Za-z0-9+/]{2}A[A-Za-z0-9+/]{2}[AB][A-Za-z0-9+/]){2}|//[45][A-Za-z0-9+/]{13})[A-Za-z0-9+/_-]{8,}"
)
_PACKED_RUN = re.compile(r"(?:H4sI|eJ[wxyz]|eN[oq])[A-Za-z0-9+/_-]{20,}")
_BASE32_RUN = re.compile(r"[A-Z2-7]{32,20000}(?![A-Za-z0-9])")
_LINE = re.compile(
    r"((?:\r?\n|\\n)[ \t]*(?:\d{1,6}[\t\u2192][ \t]*|[+>|#*][ \t]?)?)([A-Za-z0-9+/_-]{4,})"
)
# A word that a narrow screen broke: it goes on at the beginning of the next line. A date or a hash
# that begins a line is none.
_BROKEN = re.compile(
    r"\n(?<=[A-Za-z0-9_=+/-]\n)(?=[A-Za-z0-9_+/=-]{8})(?=[A-Za-z_+/-]{0,24}\d)(?!\d{4}-\d\d|[0-9a-f]{7,64}\s)"
)
_NAME_AND_PASSWORD = re.compile(
    r"[A-Za-z][\w.@-]{1,40}:(?![\d.:-]+\Z)(?=[^:/ ]{0,40}\d)(?=[^:/"
    r" ]{0,40}[A-Z!#$%&*+?^~])[^\s:/@,;=\"'<>{}\x00-\x1f\x7f-\xff]{6,60}\Z"
)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = bytes([9, 10, 13, *range(32, 127)])


class Piece(NamedTuple):
    """A part of a text, and its decoded form."""

    start: int
    end: int
    text: str
    alone: bool = True
    """Whether the piece alone justifies a search; an escaped line end does not."""


class View(NamedTuple):
    """A decoded text; its parts begin at `starts`, and in the source at `source_starts`."""

    text: str
    starts: list[int]
    source_starts: list[int]
    changed: list[bool]

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The span in the source of characters `start` to `end`; a decoded part counts whole."""
        first, last = (
            bisect_right(self.starts, start) - 1,
            bisect_right(self.starts, max(start, end - 1)) - 1,
        )
        begin = (
            self.source_starts[first]
            if self.changed[first]
            else self.source_starts[first] + start - self.starts[first]
        )
        stop = (
            self.source_starts[last + 1]
            if self.changed[last]
            else self.source_starts[last] + end - self.starts[last]
        )
        return begin, stop

    def is_whole(self, start: int, end: int) -> bool:
        """Whether characters `start` to `end` lie within one decoded part."""
        first = bisect_right(self.starts, start) - 1
        return self.changed[first] and end <= (
            self.starts[first + 1] if first + 1 < len(self.starts) else len(self.text)
        )


def decoded(page: Page) -> View | None:
    r"""Decode what can be decoded in a page, with the text around it; None if there is nothing.

    >>> decoded(Page.of(r'{\"a\": 1}')).text, decoded(Page.of("a%3Db")).text
    ('{"a": 1}', 'a=b')
    >>> decoded(Page.of("a=b")) is None
    True
    """
    pieces = list(_pieces(page))
    if not any(piece.alone for piece in pieces):
        return None
    return _view(page.text, sorted(pieces, key=lambda p: (p.start, -p.end)))


def _pieces(page: Page) -> Iterator[Piece]:
    """Yield everything that can be decoded; pieces may overlap."""
    yield from _disguised_letters(page)
    yield from _literals_in_pieces(page)
    yield from _lists_of_letters(page)
    yield from _runs(page)


def _disguised_letters(page: Page) -> Iterator[Piece]:
    """Escapes and entities, and letters that are there for the eye or for a line's length only."""
    text = page.text
    if "\\" in text:
        for match in _ESCAPE.finditer(text):
            yield Piece(*match.span(), _of_escape(match), match[5] not in _LINE_ENDS)
    if "%" in text:
        yield from _letters(text, _PERCENT_UTF8, lambda m: _of_bytes((m[1] or "") + (m[2] or m[3])))
    if "&" in text and ";" in text:
        yield from _letters(text, _ENTITY, _of_entity)
    if "\x1b" in text or "\u241b" in text or ("^" in text and "^[" in text):
        yield from _letters(text, _COLOUR, lambda _: "")
    if "</" in page.low and ("<span" in page.low or "<font" in page.low or "<mark" in page.low):
        yield from _letters(text, _TAG, lambda _: "")
    for mark, invisible in _INVISIBLE:
        if mark in text:
            yield from _letters(text, invisible, lambda _: "")
    if _IS_QUOTED.search(text):
        yield from _letters(
            text, _SOFT_BREAK, lambda m: _of_bytes(m[1].replace("=", "")) if m[1] else ""
        )
    if '""' in text:
        yield from _letters(text, _DOUBLED, lambda _: '"')


def _literals_in_pieces(page: Page) -> Iterator[Piece]:
    """The separator between two literals that make one."""
    text = page.text
    for glued in _GLUED:
        yield from _letters(text, glued, lambda _: "")
    if any(word in page.low for word in _JOINS):
        for listed in _LISTED:
            yield from _letters(text, listed, lambda _: "")
    if "}${" in text:
        yield from _letters(text, _IN_TEMPLATE, lambda _: "")


def _lists_of_letters(page: Page) -> Iterator[Piece]:
    """Letters one by one: their codes, literals of one letter, bytes in hex."""
    text = page.text
    for numbers in _NUMBERS:
        yield from (
            Piece(*m.span(), _quoted(map(chr, map(int, _NUMBER.findall(m[0])))))
            for m in numbers.finditer(text)
        )
    for row, singles in _SINGLES:
        if row.search(text):
            yield from (
                Piece(*m.span(), _quoted(_SINGLE.findall(m[0]))) for m in singles.finditer(text)
            )
    if "r(1" in page.low:
        yield from (
            Piece(*m.span(), " " + "".join(map(chr, map(int, _NUMBER.findall(m[0])))))
            for m in _CHARS.finditer(text)
        )
    yield from _hex_lists(text)


def _quoted(letters: Iterable[str]) -> str:
    """Letters that stood in a list as one literal."""
    return '"' + "".join(letters) + '"'


def _letters(text: str, pattern: re.Pattern[str], of: object) -> Iterator[Piece]:
    for match in pattern.finditer(text):
        yield Piece(*match.span(), of(match))  # type: ignore[operator]


def _of_bytes(digits: str) -> str:
    """Bytes in hex as UTF-8, or a letter each where they are none."""
    data = bytes.fromhex(digits)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _of_escape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code:
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "?"
    if match[4]:
        return chr(int(match[4], 8))
    return _ESCAPED.get(match[5], match[5]) if match[5] else match[6] or ""


def _of_entity(match: re.Match[str]) -> str:
    if match[3]:
        return _ENTITIES[match[3]]
    number = int(match[1], 16) if match[1] else int(match[2])
    return chr(number) if number < 0xD800 else "?"


def _hex_lists(text: str) -> Iterator[Piece]:
    """Bytes written one by one, and the lines of a hex dump: each line with its offset and its
    letters beside is one piece."""
    first = min(
        (found.start() for pattern in _SPACED_HEX if (found := pattern.search(text)) is not None),
        default=-1,
    )
    if first >= 0:
        for match in _HEX_LIST.finditer(text, max(0, text.rfind("\n", 0, first))):
            letters = bytes.fromhex("".join(_HEX_PAIR.findall(match[0]))).decode("latin-1")
            before = _OPENED.search(text, max(0, match.start() - 24), match.start())
            yield (
                Piece(*match.span(), letters)
                if before is None
                else Piece(before.start(), match.end(), _quoted(letters))
            )
    if "=hex" in text:  # a dump of a registry: UTF-16, two bytes to a letter
        for match in _REGISTRY.finditer(text):
            data = bytes.fromhex("".join(_HEX_PAIR.findall(match[1])))
            yield Piece(
                match.start() + 1,
                match.end(),
                _quoted(data.decode("utf-16-le", "replace").rstrip("\0")),
            )
    if "0000000" in text:
        for match in _DUMP.finditer(text):
            data = bytes.fromhex("".join(match[1].split()))
            if len(data) >= 2 and not data.translate(None, _PRINTABLE).strip(b"\0"):
                yield Piece(*match.span(), data.decode("latin-1").replace("\0", ""))


def _runs(page: Page) -> Iterator[Piece]:
    """Runs of base64, base32 or hex that decode to text (hashes and pictures do not), and tokens
    that a narrow screen wrapped."""
    text, last_end = page.text, 0
    for start, end in page.runs:
        # the n of a JSON "\n" is no letter of what follows it
        begin = start + 1 if text[start - 1 : start] == "\\" else start
        if begin < last_end:
            continue
        piece = _run(text, begin, end)
        if piece is not None:
            last_end = piece.end
            yield piece
    for match in _BROKEN.finditer(text):
        if (
            match.start() - text.rfind("\n", max(0, match.start() - 400), match.start())
            > _WIDE_LINE
        ):
            yield Piece(*match.span(), "")


def _run(text: str, start: int, end: int) -> Piece | None:
    match = _TEXT_RUN.match(text, start, end)
    if match is not None and _is_text(match[0][:MIN_BASE64_CHARS]):
        end, encoded = _joined(text, start, match.end())
        plain = _of_base64(encoded[:MAX_DECODED]).decode("latin-1")
        # as a header of HTTP carries them; said as in an address, where they are known
        if _NAME_AND_PASSWORD.match(plain):
            plain = f"x://{plain}@header "
        return Piece(start, _padded(text, end), plain)
    if text[start] in "234567" or text.startswith(("0x", "0X", "0a", "0A"), start):
        match = _HEX_RUN.match(text, start, end)
        if match is not None:
            end, encoded = match.end(), match[1]
            while (
                len(match[1]) >= _WRAPPED_AT
                and (below := _HEX_LINE.match(text, end)) is not None
                and len(below[1]) <= len(match[1])
            ):
                end, encoded = below.end(), encoded + below[1]
            return Piece(
                start, end, bytes.fromhex(encoded[: len(encoded) // 2 * 2]).decode("latin-1")
            )
    if text[start] == "A" or text.startswith("//", start) or text[start + 4 : start + 5] == "A":
        match = _WIDE_RUN.match(text, start, end)
        if match is not None:
            end, encoded = _joined(text, start, match.end())
            data = _of_base64(encoded[:MAX_DECODED])
            plain = data.replace(b"\0", b"").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
            if 3 * len(plain) < 2 * len(data) and not plain[:16].translate(None, _PRINTABLE):
                return Piece(start, _padded(text, end), plain.decode("latin-1"))
    if (
        text.startswith(("H4sI", "eJ", "eN"), start)
        and (match := _PACKED_RUN.match(text, start, end)) is not None
    ):
        end, encoded = _joined(text, start, match.end())
        plain = _unpacked(_of_base64(encoded[:MAX_DECODED]))
        return (
            Piece(start, _padded(text, end), plain.decode("latin-1"))
            if plain and not plain[:64].translate(None, _PRINTABLE)
            else None
        )
    if text[start].isupper() and (match := _BASE32_RUN.match(text, start, end)) is not None:
        plain = base64.b32decode(match[0][: len(match[0]) // 8 * 8])
        if not plain.translate(None, _PRINTABLE):
            return Piece(start, _padded(text, match.end()), plain.decode("latin-1"))
    return None


def _joined(text: str, start: int, end: int) -> tuple[int, str]:
    """The end and the letters of a run that goes on in the lines below it."""
    pieces, first = [text[start:end]], end - start
    while (
        first >= _WRAPPED_AT
        and first % 4 == 0
        and (below := _LINE.match(text, end))
        and len(below[2]) <= first
    ):
        pieces.append(below[2])
        end = below.end()
    return end, "".join(pieces)


def _padded(text: str, end: int) -> int:
    while text[end : end + 1] == "=":
        end += 1
    return end


def _is_text(start: str) -> bool:
    return not base64.b64decode(start.encode().translate(_URL_SAFE)).translate(None, _PRINTABLE)


def _of_base64(encoded: str) -> bytes:
    """Decode a run of base64, without an incomplete last group."""
    data = encoded.encode("ascii", "replace").translate(_URL_SAFE)
    complete, remainder = data[: len(data) // 4 * 4], data[len(data) // 4 * 4 :]
    plain = base64.b64decode(complete)
    return (
        plain + base64.b64decode(remainder + b"=" * (4 - len(remainder)))
        if len(remainder) > 1
        else plain
    )


def _unpacked(data: bytes) -> bytes:
    """Decompress gzip or zlib data, which may be truncated, up to MAX_DECODED bytes."""
    try:
        return zlib.decompressobj(47).decompress(data, MAX_DECODED)
    except (zlib.error, binascii.Error):
        return b""


def _view(text: str, pieces: list[Piece]) -> View:
    """The decoded pieces with the text around them, one after the other."""
    parts: list[str] = []
    starts, source_starts, changed = [0], [0], [False]
    length = last = 0

    def add(part: str, source: int, *, was_changed: bool) -> None:
        nonlocal length
        starts.append(length)
        source_starts.append(source)
        changed.append(was_changed)
        parts.append(part)
        length += len(part)

    shown = _windows(text, pieces)
    window = last = stop = 0
    for piece in pieces:
        # this piece lies behind the window
        while window < len(shown) and shown[window][1] <= piece.start:
            window += 1
            if window == len(shown):
                break
        if window == len(shown):
            break
        # inside the piece before it, or not worth a look
        if piece.start < max(last, shown[window][0]):
            continue
        if shown[window][1] != stop:
            if stop:
                add(text[last:stop], last, was_changed=False)
                add("\n", stop, was_changed=True)
            last, stop = shown[window]
        add(text[last : piece.start], last, was_changed=False)
        add(piece.text, piece.start, was_changed=True)
        last = piece.end
    add(text[last : max(last, stop)], last, was_changed=False)
    starts.append(length)
    source_starts.append(max(last, stop))
    changed.append(False)
    return View("".join(parts), starts, source_starts, changed)


def _windows(text: str, pieces: list[Piece]) -> list[tuple[int, int]]:
    """The parts of a text around the pieces that are worth a look, in order and apart; each ends
    with a word."""
    windows: list[tuple[int, int]] = []
    for piece in pieces:
        if not piece.alone:
            continue
        start = max(0, piece.start - AROUND)
        if windows and piece.end + AROUND <= windows[-1][1]:
            continue
        rest = _REST.match(text, min(len(text), piece.end + AROUND))
        end = rest.end() if rest is not None else len(text)
        if windows and start <= windows[-1][1]:
            windows[-1] = windows[-1][0], max(end, windows[-1][1])
        else:
            windows.append((start, end))
    return windows
