"""Remove the API key from everything that an endpoint sent, however it is encoded.

    scrub = KeyScrub("sk-or-v1-0f3a...")
    scrub.text('{"a": "\\\\u0073k-or-v1-0f3a..."}')         # '{"a": "[REDACTED:key]"}'
    scrub.reply(reply)                                    # the same for every string of a reply

It finds the key verbatim, in any case, with signs, spaces or colour codes between its letters,
behind the escapes of JSON, shells, URLs and HTML, several layers deep, backwards, in hexadecimal,
and in base64 at any offset, of itself or of a text around it. It does not look for ciphers,
compression, or a key that is spread letter by letter over many answers.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from composer_replication.core.jsonl import json_strings
from composer_replication.core.teacher import TeacherReply
from composer_replication.core.trace import JSON, Block, Opaque, Text, ToolCall

MARK = "[REDACTED:key]"
HELD_THE_KEY = "held_the_key"
"""The `problem` of an answer that held the key in pieces."""
_MIN_LETTERS = 8
"""A key of fewer letters is only looked for verbatim: it would be found in ordinary words."""
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
    """Removes one key from texts and answers; see the head of this module. "" removes nothing."""

    def __init__(self, key: str) -> None:
        self._key = key
        letters = _letters(key)
        self._needles = (
            (letters, letters[::-1], *_encodings(key)) if len(letters) >= _MIN_LETTERS else ()
        )

    def holds(self, text: str) -> bool:
        """Return whether a text holds the key."""
        return bool(self._key) and (self._key in text or any(True for _ in self._spans(text)))

    def text(self, text: str) -> str:
        """Return a text without the key."""
        if not self._key or not text:
            return text
        clean = text.replace(self._key, MARK)
        spans = sorted(self._spans(clean))
        parts, end_of_last = list[str](), 0
        for start, end in spans:
            if end > end_of_last:
                parts += (
                    [clean[end_of_last : max(start, end_of_last)], MARK]
                    if start >= end_of_last
                    else []
                )
                end_of_last = end
        return "".join([*parts, clean[end_of_last:]]) if spans else clean

    def value(self, value: JSON) -> JSON:
        """Return a JSON value with every string in it scrubbed, names of fields too."""
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
        """Return whether the key is split over strings of a value: all, or those of one name."""
        if not self._key:
            return False
        by_name: dict[str, list[str]] = {}
        stack: list[tuple[str, JSON]] = [("", value)]
        while stack:
            name, node = stack.pop()
            if isinstance(node, str):
                by_name.setdefault(name, []).append(node)
            elif isinstance(node, dict):
                stack.extend((str(inner), part) for inner, part in reversed(node.items()))
            elif isinstance(node, list):
                stack.extend((name, part) for part in reversed(node))
        return any(
            self.holds("".join(texts))
            for texts in (list(json_strings(value)), *by_name.values())
            if len(texts) > 1
        )

    def reply(self, reply: TeacherReply) -> TeacherReply:
        """Return an answer without the key; if the key is split over its blocks, all of them go."""
        if not self._key:
            return reply
        turn = reply.turn
        blocks = tuple(self._block(block) for block in turn.blocks)
        problem = self.text(reply.problem)
        if self.in_pieces([_block_value(block) for block in blocks]):
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
        """Yield the spans of a text that encode the key."""
        if not self._needles:
            return
        for number, layer in enumerate(_layers(text)):
            bare = _letters(layer)
            if any(needle in bare for needle in self._needles):
                yield from self._locate(text, number)
        for pattern in _RUNS:
            for run in pattern.finditer(text):
                if any(self._decodes_to_key(decoded, _DEPTH) for decoded in _decodings(run[0])):
                    yield run.span()

    def _locate(self, text: str, layers: int) -> Iterable[tuple[int, int]]:
        """Yield the original spans that hold the key after unescaping `layers` times."""
        letters, spans = _letters_with_positions(text, layers)
        is_located = False
        for needle in self._needles:
            start = letters.find(needle)
            while start >= 0:
                is_located = True
                yield spans[start][0], spans[start + len(needle) - 1][1]
                start = letters.find(needle, start + len(needle))
        if (
            not is_located
        ):  # characters that become letters only in combination: drop the whole text
            yield 0, len(text)

    def _decodes_to_key(self, text: str, depth: int) -> bool:
        """Return whether a decoded run holds the key, or another run that decodes to it."""
        for layer in _layers(text):
            bare = _letters(layer)
            if any(needle in bare for needle in self._needles):
                return True
        runs = (run[0] for pattern in _RUNS for run in pattern.finditer(text)) if depth > 1 else ()
        return any(
            self._decodes_to_key(decoded, depth - 1) for run in runs for decoded in _decodings(run)
        )


def _letters(text: str) -> str:
    """Return only digits and lower-case letters: other characters do not hide a key."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).lower()
    return plain.encode("ascii", "ignore").lower().translate(None, _NO_LETTERS).decode("ascii")


def _encodings(key: str) -> Iterable[str]:
    """Yield the letters of a key in hexadecimal and in base64 at each of the three offsets.

    Letters that depend on the surrounding text are left out.
    """
    raw = key.encode("utf-8")
    yield raw.hex()
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode("ascii").rstrip("=")
        yield _letters(encoded[(0, 2, 3)[offset] : -1])


def _layers(text: str) -> Iterable[str]:
    """Yield a text, and the text unescaped once, twice, ..."""
    yield text
    for _ in range(_LAYERS if any(sign in text for sign in "\\%&\x1b=") else 0):
        if (plain := _ESCAPE.sub(_character, text)) == text:
            return
        text = plain
        yield text


def _character(match: re.Match[str]) -> str:
    """Return the character that an escape stands for; "" for a colour code or a soft line end."""
    digits, kind = match[match.lastindex or 0], match.lastindex
    if kind in (8, 9):
        return ""
    number = int(digits, 8 if kind == 4 else 10 if kind == 6 else 16)
    return chr(number) if number < 0x110000 else match[0][:1]


def _letters_with_positions(text: str, layers: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the letters of a text unescaped `layers` times, each with its original span."""
    plain, spans = text, [(at, at + 1) for at in range(len(text))]
    for _ in range(layers):
        parts, moved_spans, end_of_last = list[str](), list[tuple[int, int]](), 0
        for match in _ESCAPE.finditer(plain):
            parts.append(plain[end_of_last : match.start()])
            moved_spans += spans[end_of_last : match.start()]
            if character := _character(match):
                parts.append(character)
                moved_spans.append((spans[match.start()][0], spans[match.end() - 1][1]))
            end_of_last = match.end()
        plain, spans = "".join([*parts, plain[end_of_last:]]), [*moved_spans, *spans[end_of_last:]]
    letters = [
        (letter, span)
        for character, span in zip(plain, spans, strict=True)
        for letter in _letters(character)
    ]
    return "".join(letter for letter, _ in letters), [span for _, span in letters]


def _decodings(run: str) -> Iterable[str]:
    """Yield what a run of letters decodes to, in base64 at each offset and in hexadecimal."""
    cleaned = _LINE_END.sub("", run).rstrip("=").replace("-", "+").replace("_", "/")
    for offset in range(4):
        part = cleaned[offset:]
        part = part[: len(part) - (len(part) % 4 == 1)]
        with contextlib.suppress(binascii.Error):
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode("ascii", "ignore")
    for offset in range(2):
        part = cleaned[offset:]
        with contextlib.suppress(ValueError):
            yield bytes.fromhex(part[: len(part) // 2 * 2]).decode("ascii", "ignore")


def _block_value(block: Block) -> JSON:
    if isinstance(block, ToolCall):
        return [block.name, dict(block.arguments)]
    return block.text if isinstance(block, (Text, Opaque)) else ""
