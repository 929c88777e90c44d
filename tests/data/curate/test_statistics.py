"""Counts against plain definitions; tests/peers/test_data_juicer.py compares them with data-juicer
itself."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from hypothesis import example, given
from hypothesis import strategies as st

from composer_replication.data.curate.statistics import (
    SPECIAL,
    STATISTICS,
    most_char_rep_ratio,
    most_word_rep_ratio,
)

TEXTS = st.text(alphabet=st.sampled_from("ab1 .,\n\t\r\x0b\x1c\u2003é漢👍—x"), max_size=80)
REPEATED = st.builds(
    lambda part, times, rest: part * times + rest, TEXTS, st.integers(0, 12), TEXTS
)


def count(name: str, text: str, **parameters: int) -> float:
    return STATISTICS[name].count(text, parameters)


def words_of(text: str) -> list[str]:
    pieces = [
        piece for line in text.split("\n") for cell in line.split("\t") for piece in cell.split(" ")
    ]
    stripped_words = []
    for piece in pieces:
        while piece and piece[0] in SPECIAL:
            piece = piece[1:]
        while piece and piece[-1] in SPECIAL:
            piece = piece[:-1]
        stripped_words += [piece] if piece else []
    return stripped_words


@given(TEXTS)
@example("a\x1cb c")  # a blank to Python, none to data-juicer
@example("")
def test_words_signs_and_letters_are_counted_by_their_definitions(text: str) -> None:
    assert count("words_num_filter", text) == len(words_of(text))
    assert count("special_characters_filter", text) == (
        sum(c in SPECIAL for c in text) / len(text) if text else 0.0
    )
    assert count("alphanumeric_filter", text) == (
        sum(c.isalnum() for c in text) / len(text) if text else 0.0
    )


@given(REPEATED, st.integers(2, 12))
@example("äö" * 30, 10)
# two bytes a character, and then a loop
@example("".join(map(chr, range(0x400, 0x450))) + "ab" * 15, 10)
def test_repetitions_are_counted_by_their_definition_and_never_above_the_bound(
    text: str, size: int
) -> None:
    grams = Counter(text[i : i + size] for i in range(len(text) - size + 1))
    often = sorted((n for n in grams.values() if n > 1), reverse=True)[: int(sqrt(len(grams)))]
    wanted = sum(often) / grams.total() if grams else 0.0
    assert count("character_repetition_filter", text, rep_len=size) == wanted
    assert most_char_rep_ratio(text, {"rep_len": size}) >= wanted


@given(
    st.builds(
        lambda part, times, rest: part * times + rest,
        st.text("abc ", max_size=30),
        st.integers(0, 9),
        st.text("abcdefgh ", max_size=200),
    )
)
def test_the_bound_of_repetition_holds_for_plain_text(text: str) -> None:
    assert most_char_rep_ratio(text, {"rep_len": 10}) >= count(
        "character_repetition_filter", text, rep_len=10
    )


@given(
    st.lists(st.sampled_from(["the", "a-b", "ab", "of", "1", "x.", "..."]), max_size=60),
    st.integers(1, 6),
)
def test_the_bound_of_repeated_words_holds(words: list[str], size: int) -> None:
    text = " ".join(words)
    assert most_word_rep_ratio(text, {"rep_len": size}) >= count(
        "word_repetition_filter", text, rep_len=size
    )


def test_the_bounds_are_worth_having() -> None:
    plain = (
        "The test imports limit from config, where nobody sets it, so it is None when main compares"
        " it with the size of the queue. I will set a default of ten there, because the docs"
        " promise one, and run the whole file again to see whether anything else breaks."
    )
    assert (
        most_char_rep_ratio(plain, {"rep_len": 10}) < 0.2
        and most_word_rep_ratio(plain, {"rep_len": 5}) == 0.0
    )


def test_repeated_words_and_lines() -> None:
    assert count("word_repetition_filter", "go on and on go on and on", rep_len=4) == 2 / 5
    assert count("word_repetition_filter", "one two", rep_len=3) == 0.0
    assert (
        count("maximum_line_length_filter", "ab\nabcd\n") == 4
        and count("average_line_length_filter", "ab\nabcd") == 3.5
    )
