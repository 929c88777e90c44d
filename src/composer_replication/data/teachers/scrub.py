"""The key out of everything that an endpoint said, in whatever dress it comes back.

    scrub = KeyScrub("sk-or-v1-0f3a...")
    scrub.text('{"a": "\\\\u0073k-or-v1-0f3a..."}')         # '{"a": "[REDACTED:key]"}'
    scrub.reply(reply)                                    # every string of it; what holds the key in pieces is not kept at all

Looked for as it stands, in any case, with signs, spaces or colour codes between its letters, behind
the escapes of JSON, shells, URLs and HTML, several layers deep, backwards, in hexadecimal, and in
base64 at any offset, of itself or of a text around it. What is not looked for: ciphers,
compression, and a key that is dealt out letter by letter over many answers.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from composer_replication.core.jsonl import json_strings
from composer_replication.core.teacher import TeacherReply
from composer_replication.core.trace import Block, Opaque, Text, ToolCall

JSON = Any
MARK = "[REDACTED:key]"
HELD_THE_KEY = "held_the_key"
"""The problem of an answer that held the key in pieces."""
_MIN_LETTERS = 8
"""A key of fewer letters is only looked for as it stands: it would be found in ordinary words."""
_LAYERS, _DEPTH = 4, 3
_ESCAPE = re.compile(
    r"(?<!\\)\\+(?:u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|([0-7]{3}))|%(?:25)*([0-9A-Fa-f]{2})"
    r"|&#0{0,9}([0-9]{1,7});|&#[xX]0{0,9}([0-9A-Fa-f]{1,6});|(\x1b\[[0-9;]{0,16}[A-Za-z])|(=)\r?\n"
)
_NO_LETTERS = bytes(
    byte for byte in range(256) if not chr(byte).isascii() or not chr(byte).isalnum()
)
_RUNS = (re.compile(r"[A-Za-z0-9+/_\-\s\\]{16,}={0,2}"), re.compile(r"[0-9A-Fa-f\s:\\]{16,}"))
_LINE_END = re.compile(r"\\+[nrt]?|\s+|:")


class KeyScrub:
    """Takes one key out of texts and answers; without a key it changes nothing. See the head of
    this module."""

    def __init__(self, key: str) -> None:
        self._key = key
        letters = _letters(key)
        self._needles = (
            (letters, letters[::-1], *_dressed(key)) if len(letters) >= _MIN_LETTERS else ()
        )

    def holds(self, text: str) -> bool:
        """Whether the key stands in a text."""
        return bool(self._key) and (self._key in text or any(True for _ in self._spans(text)))

    def text(self, text: str) -> str:
        """A text without the key."""
        if not self._key or not text:
            return text
        clean = text.replace(self._key, MARK)
        spans = sorted(self._spans(clean))
        parts, last = list[str](), 0
        for start, end in spans:
            if end > last:
                parts += [clean[last : max(start, last)], MARK] if start >= last else []
                last = end
        return "".join([*parts, clean[last:]]) if spans else clean

    def value(self, value: JSON) -> JSON:
        """A JSON value with every string in it scrubbed, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(name) if isinstance(name, str) else name: self.value(part)
                for name, part in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(part) for part in value]
        return value

    def in_pieces(self, value: JSON) -> bool:
        """Whether the strings of a value hold the key one behind the other: all of them, or those
        under one name."""
        if not self._key:
            return False
        by_name: dict[str, list[str]] = {}
        stack: list[tuple[str, JSON]] = [("", value)]
        while stack:
            name, one = stack.pop()
            if isinstance(one, str):
                by_name.setdefault(name, []).append(one)
            elif isinstance(one, dict):
                stack.extend((str(inner), part) for inner, part in reversed(one.items()))
            elif isinstance(one, list):
                stack.extend((name, part) for part in reversed(one))
        return any(
            self.holds("".join(texts))
            for texts in (list(json_strings(value)), *by_name.values())
            if len(texts) > 1
        )

    def reply(self, reply: TeacherReply) -> TeacherReply:
        """An answer without the key; its words go altogether where they hold it only when they are
        read one after the other."""
        if not self._key:
            return reply
        turn = reply.turn
        blocks = tuple(self._block(block) for block in turn.blocks)
        problem = self.text(reply.problem)
        if self.in_pieces([_written(block) for block in blocks]):
            blocks, problem = (Text(MARK),), HELD_THE_KEY
        author = None if turn.author is None else self.text(turn.author)
        turn = replace(turn, author=author, blocks=blocks)
        return replace(
            reply,
            turn=turn,
            problem=problem,
            provider=self.text(reply.provider),
            raw=self.text(reply.raw),
        )

    def _block(self, block: Block) -> Block:
        if isinstance(block, Text):
            return replace(block, text=self.text(block.text))
        if isinstance(block, Opaque):
            return replace(block, text=self.text(block.text))
        if isinstance(block, ToolCall):
            return ToolCall(self.text(block.id), self.text(block.name), self.value(block.arguments))
        return block

    def _spans(self, text: str) -> Iterable[tuple[int, int]]:
        """Where the key stands in another dress."""
        if not self._needles:
            return
        for number, layer in enumerate(_layers(text)):
            bare = _letters(layer)
            if any(needle in bare for needle in self._needles):
                yield from self._placed(text, number)
        for pattern in _RUNS:
            for run in pattern.finditer(text):
                if any(self._is_in(decoded, _DEPTH) for decoded in _decoded(run[0])):
                    yield run.span()

    def _placed(self, text: str, layers: int) -> Iterable[tuple[int, int]]:
        """The places of a text at which the key stands once so many layers of escapes are taken
        off."""
        letters, places = _with_places(text, layers)
        found = False
        for needle in self._needles:
            at = letters.find(needle)
            while at >= 0:
                found = True
                yield places[at][0], places[at + len(needle) - 1][1]
                at = letters.find(needle, at + len(needle))
        if not found:  # signs that are letters only together
            yield 0, len(text)

    def _is_in(self, text: str, depth: int) -> bool:
        """Whether what a run says once decoded holds the key, or one more run that does."""
        for layer in _layers(text):
            bare = _letters(layer)
            if any(needle in bare for needle in self._needles):
                return True
        runs = (run[0] for pattern in _RUNS for run in pattern.finditer(text)) if depth > 1 else ()
        return any(self._is_in(decoded, depth - 1) for run in runs for decoded in _decoded(run))


def _letters(text: str) -> str:
    """The small letters and digits of a text, alone: what stands between them does not hide a
    key."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).lower()
    return plain.encode("ascii", "ignore").lower().translate(None, _NO_LETTERS).decode("ascii")


def _dressed(key: str) -> Iterable[str]:
    """The letters of a key in hexadecimal and in base64 at its three offsets, without those that
    depend on what stands around it."""
    raw = key.encode("utf-8")
    yield raw.hex()
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + raw).decode("ascii").rstrip("=")
        yield _letters(whole[(0, 2, 3)[offset] : -1])


def _layers(text: str) -> Iterable[str]:
    """A text, and what it says with its escapes taken off once, twice, ..."""
    yield text
    for _ in range(_LAYERS if any(sign in text for sign in "\\%&\x1b=") else 0):
        if (plain := _ESCAPE.sub(_character, text)) == text:
            return
        text = plain
        yield text


def _character(match: re.Match[str]) -> str:
    """The one character that an escape stands for; none for a colour code or a soft line end."""
    digits, kind = match[match.lastindex or 0], match.lastindex
    if kind in (8, 9):
        return ""
    number = int(digits, 8 if kind == 4 else 10 if kind == 6 else 16)
    return chr(number) if number < 0x110000 else match[0][:1]


def _with_places(text: str, layers: int) -> tuple[str, list[tuple[int, int]]]:
    """The letters of a text, so many layers of escapes taken off, and where each of them stands."""
    plain, places = text, [(at, at + 1) for at in range(len(text))]
    for _ in range(layers):
        parts, moved, last = list[str](), list[tuple[int, int]](), 0
        for match in _ESCAPE.finditer(plain):
            parts.append(plain[last : match.start()])
            moved += places[last : match.start()]
            if character := _character(match):
                parts.append(character)
                moved.append((places[match.start()][0], places[match.end() - 1][1]))
            last = match.end()
        plain, places = "".join([*parts, plain[last:]]), [*moved, *places[last:]]
    letters = [
        (letter, place)
        for character, place in zip(plain, places, strict=True)
        for letter in _letters(character)
    ]
    return "".join(letter for letter, _ in letters), [place for _, place in letters]


def _decoded(run: str) -> Iterable[str]:
    """What a run of letters says in base64, from each of the places at which a group may begin, and
    in hexadecimal."""
    bare = _LINE_END.sub("", run).rstrip("=").replace("-", "+").replace("_", "/")
    for offset in range(4):
        part = bare[offset:]
        part = part[: len(part) - (len(part) % 4 == 1)]
        with contextlib.suppress(binascii.Error):
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode("ascii", "ignore")
    for offset in range(2):
        part = bare[offset:]
        with contextlib.suppress(ValueError):
            yield bytes.fromhex(part[: len(part) // 2 * 2]).decode("ascii", "ignore")


def _written(block: Block) -> JSON:
    if isinstance(block, ToolCall):
        return [block.name, dict(block.arguments)]
    return block.text if isinstance(block, (Text, Opaque)) else ""
