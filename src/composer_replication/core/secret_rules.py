"""Secrets that their own letters or the place they stand in give away: one rule per kind, all found in one look at a text.

A rule has needles - letters that only such a secret has, "ghp_" or "://" - and a pattern that is tried where a
needle stands, nowhere else. Tokens are looked for in long runs of letters only, by the rarest letter of each needle (the
`_` of "ghp_"), so that most letters of a text are passed over at the speed of C. What is tried at a needle looks at some
hundred letters at most, so a text of needles takes linear time.

    list(known_secrets(Page.of("export X=" + token)))  ->  [Span(start=9, end=49, kind="github_token")]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.core.secret_blocks import key_blocks
from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_needles import Needles
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_tokens import (
    END,
    INNER_KIND,
    INNER_MARKS,
    LONG_RULES,
    MAX_INNER,
    MIN_INNER,
    MIN_LONG_RUN,
    PLAIN_RULES,
    TOKEN_RULES,
    Rule,
)
from composer_replication.core.secret_values import is_placeholder

MAX_PLACEHOLDER = 20
MAX_INDENT = 160
_BEFORE_A_WORD = " \n\t\"'`="


_TOKENS = Needles(((needle, rule) for rule in TOKEN_RULES for needle in rule.needles), rarest="_-")


def known_secrets(page: Page) -> Iterator[Span]:
    """Where secrets of the rules stand; spans of two rules may overlap.

    >>> list(known_secrets(Page.of("AKIAQ3EGRNKDA2QWERTY")))
    [Span(start=0, end=20, kind='aws_key_id')]
    """
    yield from key_blocks(page)
    done: dict[Rule, int] = {}
    text = page.text
    runs = "\n".join([text[start:end] for start, end in page.runs])
    for start, end in page.runs if _TOKENS.pattern.search(runs) else ():
        for at, rule in _TOKENS.search(text, start, end):
            yield from tried(rule, text, at, done)
    yield from _by_shape(page)
    if any(mark in runs for mark in INNER_MARKS):
        yield from _by_inner_mark(page)
    for rule in PLAIN_RULES:
        if rule.needles[0] in runs:
            yield from _found_by_needle(rule, page, (text, 0, len(text)), done)


def _by_shape(page: Page) -> Iterator[Span]:
    """Tokens that no letters of their own begin, in the few runs that are long enough."""
    for start, end in page.runs:
        if end - start >= MIN_LONG_RUN:
            for match in LONG_RULES.finditer(page.text, start, end):
                if is_random(match[0]):
                    yield Span(*match.span(), match.lastgroup or "token")


def _by_inner_mark(page: Page) -> Iterator[Span]:
    """Keys that bear a mark in their middle, whole."""
    for start, end in page.runs:
        run = page.text[start:end]
        if MIN_INNER <= len(run) <= MAX_INNER and any(run.find(mark, 20) >= 0 for mark in INNER_MARKS) and is_random(run):
            yield Span(start, end + (2 if page.text.startswith("==", end) else int(page.text.startswith("=", end))), INNER_KIND)


def _found_by_needle(rule: Rule, page: Page, where: tuple[str, int, int], done: dict[Rule, int]) -> Iterator[Span]:
    """The secrets of a rule wherever its needle stands in a part of the text, or of the text in small letters."""
    needle, (text, at, end) = rule.needles[0], where
    while (at := text.find(needle, at, end)) >= 0:
        yield from tried(rule, page.text, at, done)
        at += len(needle)


def tried(rule: Rule, text: str, needle: int, done: dict[Rule, int]) -> Iterator[Span]:
    """The secret of a rule at a needle, if it is one; `done` is where the last match of each rule ends."""
    start = needle - rule.back
    if rule.by_line:
        start = text.rfind("\n", max(0, needle - MAX_INDENT), needle) + 1
        if not start and needle > MAX_INDENT:  # no line of which this could be the beginning
            return
    elif rule.by_word:
        start = max(text.rfind(c, max(0, needle - MAX_INDENT), needle) for c in _BEFORE_A_WORD) + 1
    if start < done.get(rule, 0):  # inside the rule's last match, or before the text
        return
    match = rule.pattern.match(text, start)
    if match is None:
        return
    done[rule] = match.end()
    if len(set(match[0][-8:])) == 1 or match[0].endswith("EXAMPLE"):  # ghp_xxxxxxxx, AKIAIOSFODNN7EXAMPLE
        return
    group = match.lastindex or 0
    if rule.odd and not _is_odd(match[group]):
        return
    if not group or len(match[group]) >= MAX_PLACEHOLDER or not is_placeholder(match[group]):
        yield Span(*match.span(group), rule.kind)


def _is_odd(secret: str) -> bool:
    return any(map(str.isdigit, secret)) or is_random(secret)
