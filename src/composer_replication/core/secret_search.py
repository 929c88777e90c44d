"""Find all secrets of a page: known tokens and blocks first, then those that a context or a name
gives away, in one pass over its needles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from composer_replication.core.secret_blocks import BLOCK_WORDS, key_blocks
from composer_replication.core.secret_names import assigned_at, goes_on
from composer_replication.core.secret_needles import Needles
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_places import PLACE_RULES
from composer_replication.core.secret_prose import (
    CODE_WORDS,
    PAIR_SIGNS,
    WALLET_WORDS,
    codes_below,
    named_behind,
    pair_at,
    spoken,
    wallet_words,
)
from composer_replication.core.secret_rules import known_secrets, try_rule
from composer_replication.core.secret_shown import (
    LINE_ALONE_BELOW,
    PRINTERS,
    printed_below,
    printed_by,
)
from composer_replication.core.secret_tables import (
    HEADS_COLUMN,
    copied_secrets,
    inserted_secrets,
    table_at,
)
from composer_replication.core.secret_tokens import Rule
from composer_replication.core.secret_values import OPAQUE, PASSWORD
from composer_replication.core.secret_words import WORDS, Word

Look = Callable[[Page, int], list[Span]]
"""The search at a needle that is neither a secret's name nor a rule's needle."""


def _single_span(look: Callable[[Page, int], Span | None]) -> Look:
    return lambda page, at: [span] if (span := look(page, at)) is not None else []


def _of_insert(page: Page, at: int) -> list[Span]:
    return inserted_secrets(page.text, at)


def _of_copy(page: Page, at: int) -> list[Span]:
    return copied_secrets(page.text, at)


_PARTS_OF_SENTENCE = (" ", "-")
_LINE_ENDS = ("\n", "\r")
_PAIR, _WALLET, _CODES = (
    _single_span(pair_at),
    _single_span(wallet_words),
    _single_span(codes_below),
)
_LOOKED_FOR: Needles[Word | Rule | Look | None] = Needles(
    [
        ("insert into", _of_insert),
        *((words, None) for words in BLOCK_WORDS),
        *((sign, _PAIR) for sign in PAIR_SIGNS),
        *((word, _WALLET) for word in WALLET_WORDS),
        *((words, _CODES) for words in CODE_WORDS),
        ("copy ", _of_copy),
        *((words, printed_by) for words in PRINTERS),
        *((word.word, word) for word in WORDS),
        *((needle, rule) for rule in PLACE_RULES for needle in rule.needles),
    ],
    anchors="c:bpuwk_l$",
)


def secrets_on(page: Page) -> Iterator[Span]:
    """Yield the spans of secrets; they may overlap, and the first of them names the kind.

    >>> list(secrets_on(Page.of("postgres://app:h0rse@db/x")))
    [Span(start=15, end=20, kind='basic_auth')]
    """
    yield from _known(page)
    hits = _LOOKED_FOR.search(page.low)
    if any(target is None for _, target in hits):
        yield from key_blocks(page)
    assigned: list[Span] = []
    match_ends: dict[Rule, int] = {}
    gates: dict[str, bool] = {"": True}
    rows_end = spoken_end = 0
    for at, target in hits:
        if target is None:
            continue
        if isinstance(target, Word):
            # "passed", "keyboard"
            if page.low[at + len(target.word) : at + len(target.word) + 1] not in target.next:
                continue
            if assigned and at < assigned[-1].end:  # inside a value that is removed already
                continue
            if (span := assigned_at(page, at, target)) is not None:
                assigned.append(span)
            elif target.promise != OPAQUE and at >= rows_end:
                spans, rows_end = _around(page, at, target, rows_end)
                assigned += spans
            # "pass the flag on to fortran90"
            if target.promise == PASSWORD and target.word != "pass" and at >= spoken_end:
                spans, spoken_end = spoken(page, at)
                assigned += spans
            continue
        if not isinstance(target, Rule):
            assigned += target(page, at)
            continue
        if target.gate not in gates:
            gates[target.gate] = target.gate in page.low
        if gates[target.gate]:
            yield from try_rule(target, page.text, at, match_ends)
    yield from assigned


def _known(page: Page) -> Iterator[Span]:
    """Known tokens, each with the lines below that continue it: narrow screens wrap tokens."""
    last = 0
    for span in known_secrets(page):
        continuation = None
        if span.start >= last and page.text[span.end : span.end + 1] in _LINE_ENDS:
            continuation = goes_on(page.text, span.start, span.end)
        yield span if continuation is None else span._replace(end=continuation[1])
        last = span.end if continuation is None else continuation[1]


def _around(page: Page, at: int, word: Word, rows_end: int) -> tuple[list[Span], int]:
    """Secrets near a name without an assignment: it heads a column, follows the value, or is in a
    command that prints the value."""
    low, end = page.low, at + len(word.word)
    if HEADS_COLUMN.match(low, end):
        spans, stop = table_at(page, at, end)
        if stop:
            return spans, max(rows_end, stop)
    if low[at - 1 : at] in _PARTS_OF_SENTENCE and (span := named_behind(page, at)) is not None:
        return [span], rows_end
    if LINE_ALONE_BELOW.match(low, end) and (span := printed_below(page, at)) is not None:
        return [span], rows_end
    return [], rows_end
