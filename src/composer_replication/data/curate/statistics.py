"""Statistics of a text, with the names and definitions of data-juicer's filters.

    STATISTICS["words_num_filter"].count("Let me look, then.", {})      -> 4

Each definition is that of py-data-juicer 1.6.1 (Apache-2.0), so that both keep the same texts: the
special characters, splitting words at blanks and stripping special characters from them, the
measure of repetition. tests/peers/test_data_juicer.py compares them with the real one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Code points that data-juicer calls special (punctuation, digits, blanks, a list of signs and the
# emoji of its day), as ranges in hex.
_SPECIAL = """
9-d 20-40 5b-60 7b-7e 81-85 91-93 95-99 9c-9d a1-ab ad-b4 b7-bf d7 f7-f8 131 26a 2ba-2bc 2c8 2cc
2d0 2d8 2da 2dc 3c0 413 60c 647 66a 66c 6e9 93e 940 947 94d 97d 9be e51 2002-2003 2005 2008-200b
2010-2011 2013-2016 2018-201a 201c-2020 2022 2024 2026 202f-2030 2032-2033 2039-203a 203c 203f
2043-2044 2049 20a8 20aa 20ac 2103 2122 2139 2190-2199 21a9-21aa 21d3 2206 2208 2212 221a 221e-221f
223c 2248 2256 2264-2265 2295 22c5 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 2550 25a0 25aa-25ac
25b2 25b4 25b6-25b7 25ba-25bc 25c0 25c6 25cf 25e6 25fb-25fe 2600-2606 260e 2611 2614-2615 2618 261b
261d 2620 2622-2623 2626 262a 262e-262f 2638-263b 2640 2642 2648-2653 265f-2661 2663 2665-2666 2668
266b 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab 26b0-26b1 26bd-26be 26c4-26c5
26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 2708-270d 270f 2712-2714
2716 271d 2721 2726 2728 2731 2733-2734 2744 2747 274c 274e 2753-2757 2763-2764 2795-2797 27a1 27a4
27a9 27b0 27bf 2800 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3000-3002 300a-300d 3010-3011 3030 303d
309c 30b7 30c3-30c4 30f3 30fb-30fc 3297 3299 4e00 4e0a 58eb fd3e-fd3f feff ff01 ff08-ff09 ff0c ff0e
ff11 ff1a-ff1b ff1f ff3e ff5e fffc-fffd 1f004 1f0cf 1f170-1f171 1f17e-1f17f 1f18e 1f191-1f19a
1f201-1f202 1f21a 1f22f 1f232-1f23a 1f250-1f251 1f300-1f321 1f324-1f393 1f396-1f397 1f399-1f39b
1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd 1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 1f573-1f57a
1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3
1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d7
1f6dc-1f6e5 1f6e9 1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945
1f947-1f9ff 1fa70-1fa7c 1fa80-1fa88 1fa90-1fabd 1fabf-1fac5 1face-1fadb 1fae0-1fae8 1faf0-1faf8
"""


def _code_points(ranges: str) -> frozenset[str]:
    bounds = [part.split("-") for part in ranges.split()]
    return frozenset(chr(n) for b in bounds for n in range(int(b[0], 16), int(b[-1], 16) + 1))


SPECIAL = _code_points(_SPECIAL)
_BLANKS = " \n\t"  # between words; every other blank is a special character like a comma
# ASCII is counted over bytes, a hundred times faster; the other characters are few and are counted
# one by one.
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_ASCII_DELETE = bytes(n for n in range(128) if chr(n) in SPECIAL)
_ASCII_TO_BLANK = bytes.maketrans(b"\n\t", b"  ")
_ASCII_DELETE_IN_WORDS = bytes(n for n in _ASCII_DELETE if chr(n) not in _BLANKS)
_ASCII_NOT_ALNUM = bytes(n for n in range(128) if not chr(n).isalnum())
Field = Literal["text", "words"]
Count = Callable[[str, Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One of data-juicer's filters: its count, its bounds and parameters with defaults, its input.

    `field` "text" is the whole message, "words" the text of a message that calls no tool: a JSON
    call has no words, and a message that calls a tool passes. `bound`, if given, is a cheaper upper
    bound of the count.
    """

    count: Count
    least: tuple[str, float]
    most: tuple[str, float]
    field: Field = "words"
    parameters: Mapping[str, Any]
    bound: Count | None = None


def text_len(text: str, parameters: Mapping[str, Any]) -> float:
    """Count characters."""
    return len(text)


def num_words(text: str, parameters: Mapping[str, Any]) -> float:
    """Count words: the blank-separated parts, except those made only of special characters."""
    pieces = _in_ascii(text).translate(_ASCII_TO_BLANK, _ASCII_DELETE_IN_WORDS).split(b" ")
    return len(pieces) - pieces.count(b"")


def _in_ascii(text: str) -> bytes:
    """Return an ASCII text with as many words.

    A run of characters beyond ASCII is dropped if all are special, else it becomes "x".
    """
    return (
        text
        if text.isascii()
        else _NOT_ASCII.sub(lambda run: "" if SPECIAL.issuperset(run[0]) else "x", text)
    ).encode()


def _split_ascii(text: str) -> tuple[bytes, str]:
    """Return the ASCII part of a text as bytes, and the other characters."""
    return (
        (text.encode(), "")
        if text.isascii()
        else (text.encode("ascii", "ignore"), "".join(_NOT_ASCII.findall(text)))
    )


def special_char_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return the share of special characters; blanks and digits count as special."""
    if not text:
        return 0.0
    plain, others = _split_ascii(text)
    return (
        len(plain)
        - len(plain.translate(None, _ASCII_DELETE))
        + sum(map(SPECIAL.__contains__, others))
    ) / len(text)


def alnum_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return the share of letters and digits."""
    if not text:
        return 0.0
    plain, others = _split_ascii(text)
    return (len(plain.translate(None, _ASCII_NOT_ALNUM)) + sum(map(str.isalnum, others))) / len(
        text
    )


def max_line_length(text: str, parameters: Mapping[str, Any]) -> float:
    """Count the characters of the longest line."""
    return max(map(len, text.splitlines()), default=0)


def avg_line_length(text: str, parameters: Mapping[str, Any]) -> float:
    """Return the mean number of characters per line."""
    lines = text.splitlines()
    return len(text) / len(lines) if lines else 0.0


def char_rep_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return the share of the most common n-grams of `rep_len` characters.

    Counted as data-juicer does: the sqrt(number of distinct n-grams) most common ones, unless fewer
    occur twice.
    """
    size = parameters["rep_len"]
    grams = len(text) - size + 1
    if grams <= 0:
        return 0.0
    counts = sorted(
        Counter([text[start : start + size] for start in range(grams)]).values(), reverse=True
    )
    repeated = min(int(math.sqrt(len(counts))), len(counts) - counts.count(1))
    return sum(counts[:repeated]) / grams


def most_char_rep_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return an upper bound of `char_rep_ratio` in a sixth of its time.

    It reads every third stretch of eight bytes as an integer. Any ten characters contain such a
    stretch, at one of three offsets. The n-grams with the same offset are at most as many as the
    stretches that they contain, so all of them together are at most three times the most common
    stretches.
    """
    size = parameters["rep_len"]
    grams = len(text) - size + 1
    if size < 8 or grams < 16:
        return 1.0
    view, step, stretches = (
        memoryview(text.encode("utf-8", "surrogatepass")),
        min(size - 7, 3),
        list[int](),
    )
    for start in range(0, 8 * step, step):
        stretches += view[start : start + (len(view) - start) // 8 * 8].cast("Q")[::step].tolist()
    counts = sorted(Counter(stretches).values(), reverse=True)
    return min(1.0, step * sum(counts[: math.isqrt(grams)]) / grams)


def word_rep_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return the share of n-grams of `rep_len` words that occur more than once."""
    size, words = parameters["rep_len"], _words(text.lower())
    grams = len(words) - size + 1
    if grams <= 0:
        return 0.0
    counts = Counter(" ".join(words[i : i + size]) for i in range(grams)).values()
    return sum(n for n in counts if n > 1) / grams


def most_word_rep_ratio(text: str, parameters: Mapping[str, Any]) -> float:
    """Return an upper bound of `word_rep_ratio` in a fifth of its time.

    Signs inside words are deleted too, so that more words are equal.
    """
    size = parameters["rep_len"]
    words = _in_ascii(text.lower()).translate(_ASCII_TO_BLANK, _ASCII_DELETE_IN_WORDS).split()
    grams = len(words) - size + 1
    return (
        2 * (grams - len(set(zip(*(words[n:] for n in range(size)), strict=False)))) / grams
        if grams > 0
        else 0.0
    )


def _words(text: str) -> list[str]:
    pieces = text.replace("\n", " ").replace("\t", " ").split(" ")
    return [word for piece in pieces if (word := _strip_special(piece))]


def _strip_special(word: str) -> str:
    start, end = 0, len(word)
    while start < end and word[start] in SPECIAL:
        start += 1
    while end > start and word[end - 1] in SPECIAL:
        end -= 1
    return word[start:end]


_UNBOUNDED = float("inf")
STATISTICS: Mapping[str, Statistic] = {
    "text_length_filter": Statistic(
        count=text_len,
        least=("min_len", 10),
        most=("max_len", _UNBOUNDED),
        field="text",
        parameters={},
    ),
    "words_num_filter": Statistic(
        count=num_words,
        least=("min_num", 10),
        most=("max_num", _UNBOUNDED),
        parameters={"lang": "en"},
    ),
    "special_characters_filter": Statistic(
        count=special_char_ratio, least=("min_ratio", 0.0), most=("max_ratio", 0.25), parameters={}
    ),
    "alphanumeric_filter": Statistic(
        count=alnum_ratio, least=("min_ratio", 0.25), most=("max_ratio", _UNBOUNDED), parameters={}
    ),
    "maximum_line_length_filter": Statistic(
        count=max_line_length, least=("min_len", 10), most=("max_len", _UNBOUNDED), parameters={}
    ),
    "average_line_length_filter": Statistic(
        count=avg_line_length, least=("min_len", 10), most=("max_len", _UNBOUNDED), parameters={}
    ),
    "character_repetition_filter": Statistic(
        count=char_rep_ratio,
        least=("min_ratio", 0.0),
        most=("max_ratio", 0.5),
        parameters={"rep_len": 10},
        bound=most_char_rep_ratio,
    ),
    "word_repetition_filter": Statistic(
        count=word_rep_ratio,
        least=("min_ratio", 0.0),
        most=("max_ratio", 0.5),
        parameters={"rep_len": 10, "lang": "en"},
        bound=most_word_rep_ratio,
    ),
}
