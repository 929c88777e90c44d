"""Everyday texts with secrets, as templates (tests/core/shapes.txt), and made-up values for their
placeholders.

    ### redis acl list
    user worker on >«P12» ~* +@all      # «P12» is a password of 12 letters, drawn at run time

This is development data: the rules were tuned on it. No value in it is or was a secret."""

from __future__ import annotations

import base64
import gzip
import random
import re
import string
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("shapes.txt")
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
LETTERS = {
    "A": ALNUM,
    "H": HEX,
    "D": string.digits,
    "U": ALNUM + "-_",
    "T": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "S": ALNUM + "!@#%^*-_+?=~&$()",
}
_WALLET = (
    "zebra canvas hamster jewel garlic beach eager feather copper orbit kangaroo lemon abandon"
    " ability about absent absorb abstract absurd abuse access accident account accuse achieve acid"
    " acoustic acquire across actress actual tiger timber tobacco today toilet tomato"
)
_NOUNS = "jasper velvet marble falcon orchid copper winter sunset puzzle rocket".split()  # noqa: SIM905
_MARK = re.compile(r"«((?:=[^«»]*)|[^«»]+)»")


class Shape(NamedTuple):
    """A text and the secrets that must not be left in it."""

    name: str
    text: str
    secrets: tuple[str, ...]


def shapes(*, seed: int = 0) -> list[Shape]:
    """Return every template with its values drawn; a seed always gives the same values."""
    drawn_shapes = []
    for block in FILE.read_text(encoding="utf-8").split("### ")[1:]:
        name, _, body = block.partition("\n")
        rng, secrets = random.Random(f"{name}-{seed}"), list[str]()

        def drawn(
            match: re.Match[str], rng: random.Random = rng, secrets: list[str] = secrets
        ) -> str:
            secrets.append(_value(match[1], rng))
            return secrets[-1]

        body = _MARK.sub(drawn, body.rstrip("\n").replace("\\x1b", "\x1b"))
        drawn_shapes.append(Shape(name, f"some text before\n{body}\nnext line", tuple(secrets)))
    return drawn_shapes


def _value(spec: str, rng: random.Random) -> str:
    if spec[0] == "=":
        return spec[1:]
    if ":" in spec:  # a text in an encoding
        encoding, _, text = spec.partition(":")
        data = gzip.compress(text.encode(), mtime=0) if encoding == "gz" else text.encode()
        return data.hex() if encoding == "hex" else base64.b64encode(data).decode()
    if spec == "U":
        return "-".join(_some(rng, n, HEX) for n in (8, 4, 4, 4, 12))
    if spec == "K":
        return "AK" + "IA" + _some(rng, 16, LETTERS["T"])
    kind, count = spec[0], int(spec[1:].rstrip("a"))
    if spec.endswith("a"):
        return _some(rng, count, string.ascii_lowercase + string.digits)
    return _of_kind(kind, count, rng)


def _of_kind(kind: str, count: int, rng: random.Random) -> str:
    if kind == "P":  # a password: starts with a letter or a digit, holds a digit and a symbol
        return (
            rng.choice(ALNUM) + "7" + _some(rng, count - 4, ALNUM + "!@#%^*-_+?=~") + "!x"
            if count > 4
            else "a7!x"
        )
    if kind == "G":  # a password that a person chose: two words, one word, a phrase
        word, second_word = rng.choice(_NOUNS).capitalize(), rng.choice(_NOUNS).capitalize()
        number = rng.randint(11, 99)
        return (
            f"{word}#{second_word}{number}",
            f"{word}{second_word.lower()}{number}",
            f"{word.lower()} {second_word.lower()} under the {number} trees",
        )[count - 1]
    if kind == "L":
        return f"{rng.choice(_NOUNS)}{rng.randint(10, 99)}{rng.choice(_NOUNS)}"[:count]
    if kind == "B":
        return (
            _some(rng, count, ALNUM + "+/")
            if count not in (24, 44)
            else _some(rng, count - 1, ALNUM + "+/") + "="
        )
    if kind == "b":
        return base64.b64encode(_some(rng, count, ALNUM + "!:").encode()).decode()
    if kind == "W":
        return _some(rng, count, ALNUM + "./" if count in (4, 8, 16, 22, 43, 53, 86) else ALNUM)
    if kind == "M":
        return " ".join(rng.sample(_WALLET.split(), count))
    if kind == "C":
        return "', '".join(_some(rng, count, ALNUM))
    if kind == "N":
        return ", ".join(str(ord(c)) for c in _some(rng, count, ALNUM))
    return _some(rng, count, LETTERS[kind])


def _some(rng: random.Random, count: int, letters: str) -> str:
    return "".join(rng.choices(letters, k=count))
