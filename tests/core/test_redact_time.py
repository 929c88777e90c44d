"""No text makes redaction slow: time per letter on hostile shapes, as a ratio to that on ordinary
text measured beside it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest

from composer_replication.core.redact import find_secrets
from composer_replication.core.secret_blocks import BLOCK_WORDS
from composer_replication.core.secret_names import WORDS
from composer_replication.core.secret_places import PLACE_RULES
from composer_replication.core.secret_tokens import INNER_MARKS, PLAIN_RULES, TOKEN_RULES

CHARS = 20_000
MAX_TIMES_ORDINARY = 300.0
"""Names with a separator, 3,000 of them, take 40 to 175 times as long as ordinary text, by the
processor and its load; a rule that reads the rest again at each takes thousands of times."""
MAX_OF_NAMES = 150.0
MAX_GROWTH = 12.0
"""Four times the text may take so many times as long; a quadratic rule takes sixteen times as long
and more."""
ORDINARY = (
    "2026-01-05 10:00:12 INFO user.cart - order 4411 took 12 ms; def read(self, order: str) ->"
    " None: return self._cart.get(order, 3)\n"
)
CLASSES = (
    "a",
    "A",
    "7",
    "f",
    "aB3",
    "0",
    "_",
    "-",
    ".",
    "/",
    "+",
    "=",
    ":",
    " ",
    "\t",
    "\n",
    "\\",
    '"',
    "'",
    "`",
    "%",
    "&",
    "<",
    ">",
    "(",
    "[",
    "{",
    "$",
    "@",
    "|",
    ",",
    ";",
    "\x1b",
    "\x00",
    "^@",
    "\u00e9",
    "\u2192",
    "x ",
    "a=",
    "a:",
    "a\n",
    "\\n",
    "\\\\",
    '\\"',
    "%41",
    "%25",
    "&#",
    "&#65;",
    "\\u00",
    "\\x41",
    "0x",
    "0x61,",
    "97,",
    "61 ",
    "6161",
    "61:",
    "eJ",
    "H4sI",
    "cABh",
    "ABAB",
    "=\n",
    "=3D",
    '"+"',
    "' '",
    '",',
    '" "',
    "\\\n",
    "\x1b[",
    "\x1b[0m",
    "^[[",
    "</span>",
    "<span ",
    "<",
    "\u2502 ",
    "a b ",
    "00000000: ",
    "00000000: 6161 6161\n",
    "[97,",
    "chr(97).",
    "JBSWY3DP",
)
GLUES = (
    "",
    " ",
    "=",
    ": ",
    ' "',
    '="',
    " = '",
    '":"',
    ">",
    "|",
    "\n",
    " is ",
    "\t",
    "(",
    '", "',
    ": |\n  ",
    " -p ",
    "://",
    "aaaa",
    "A1b2C3d4",
    "A1b2C3d4E5f6G7h8\n",
    "[",
    "\\",
    "@",
)


def words() -> list[str]:
    """Return every string that a rule looks for."""
    rules = (*TOKEN_RULES, *PLAIN_RULES, *PLACE_RULES)
    return sorted(
        {w.word for w in WORDS}
        | {n for rule in rules for n in rule.needles}
        | set(INNER_MARKS)
        | set(BLOCK_WORDS)
        | {"-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "Private-Lines: 8", "kty"}
    )


def hostile(word: str, rng: random.Random) -> Iterator[str]:
    """Return units that nearly match a word: the word alone, with what may follow it, with the
    start of a value."""
    yield word
    for glue in rng.sample(GLUES, 6):
        yield word + glue
        yield (
            word
            + glue
            + rng.choice(
                ("a", "A1b2C3d4", "a1" * 40, "a" * 300, "a b c d e f ", "a.b", "a:b:", "a=b; ")
            )
        )


def seconds(text: str) -> float:
    """Return the CPU time of one search of a text, the better of two; a tracer (coverage) would be
    timed too, so it is off meanwhile."""
    best, tracer = float("inf"), sys.gettrace()
    sys.settrace(None)
    try:
        for _ in range(2):
            start = time.process_time()
            find_secrets(text)
            best = min(best, time.process_time() - start)
    finally:
        sys.settrace(tracer)
    return best


def filled(unit: str, chars: int) -> str:
    return (unit * (chars // len(unit) + 1))[:chars]


@pytest.fixture(scope="module")
def ordinary() -> float:
    """Return the seconds that ordinary text of the same length takes."""
    return max(min(seconds(filled(ORDINARY, CHARS)) for _ in range(5)), 1e-4)


def slow(
    units: Iterator[str] | tuple[str, ...], ordinary: float, *, most: float = MAX_TIMES_ORDINARY
) -> list[tuple[str, float]]:
    """Return the units whose texts take too many times as long as ordinary text, each measured
    twice before it counts."""
    slow_units = []
    for unit in units:
        text = filled(unit, CHARS)
        ratio = seconds(text) / ordinary
        for _ in range(4):  # a busy machine is not our slowness
            if ratio > most:
                ratio = min(ratio, seconds(text) / ordinary)
        if ratio > most:
            slow_units.append((unit[:60], round(ratio)))
    return slow_units


NEAR_MATCHES = (
    "-----BEGIN PRIVATE KEY-----\n",
    "password: a\n",
    "Authorization: Basic aA",
    "password=",
    "a.",
    "a@",
    "://a:",
    "eyJa.",
    "secret" + " " * 5,
    "a-b.c-",
    "@a.b",
    "password: a ",
    "private_key: |\n  abcdefgh\n",
    "cookie: a=b; ",
    "cookie: sess",
    "a=b; ",
    "mysql -p ",
    " login -",
    ":5432:a:b",
    "authorization: a ",
    "pat1//0dapi",
    " login a password ",
    "curl -u a:",
    '\\"',
    "%41",
    "password','",
    "cGFzc3dvcmQ9aHVudGVyMjJ4eCBhbmQgc28gb24g",
)


def test_what_repeats_and_nearly_matches_takes_a_bounded_time_per_letter(ordinary: float) -> None:
    assert slow((*CLASSES, *NEAR_MATCHES), ordinary) == []


@pytest.mark.parametrize("part", range(6))
def test_the_beginnings_of_every_rule_take_a_bounded_time_per_letter(
    ordinary: float, part: int
) -> None:
    rng = random.Random(part)
    units = tuple(
        unit
        for word in rng.sample(words(), 60)
        for unit in rng.sample(tuple(hostile(word, rng)), 2)
    )
    assert slow(units, ordinary) == []


@pytest.mark.parametrize(
    "unit",
    [
        ":5432:a:b:1",
        "password=a1,",
        "-----BEGIN PRIVATE KEY-----\n",
        "token: ",
        'secret="a',
        "eyJa.",
        "hmac=",
        "jwt|",
        '\\"a',
    ],
)
def test_four_times_the_text_takes_about_four_times_as_long(unit: str) -> None:
    short, long = seconds(filled(unit, 100_000)), seconds(filled(unit, 400_000))
    if long > MAX_GROWTH * short:  # once more: another process may have been in the way
        short, long = seconds(filled(unit, 100_000)), seconds(filled(unit, 400_000))
    assert long <= MAX_GROWTH * short + 0.05


@pytest.mark.parametrize("unit", ["hmac=", "psk=", "jwt|"])
def test_a_row_of_names_is_not_read_again_at_every_name(ordinary: float, unit: str) -> None:
    assert slow((unit,), ordinary, most=MAX_OF_NAMES) == []  # usually 55 to 90
