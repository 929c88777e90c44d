"""Find known tokens: secrets that their own characters give away, one rule per kind, in one pass.

A rule has needles (strings that only such a secret contains, e.g. "ghp_") and a pattern that is
tried only at a needle. Tokens are searched only in long runs of token characters, by the rarest
character of each needle (the `_` of "ghp_"), so that most of a text is skipped at the speed of C. A
pattern reads at most a few hundred characters, so that a text full of needles takes linear time.

    list(known_secrets(Page.of("export X=" + token)))
    # [Span(start=9, end=49, kind="github_token")]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_needles import Needles
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_tokens import (
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


_ANCHORS = "".join(map(chr, range(33, 127)))
_TOKENS: Needles[Rule | None] = Needles(
    [
        *((needle, rule) for rule in (*TOKEN_RULES, *PLAIN_RULES) for needle in rule.needles),
        *((mark, None) for mark in INNER_MARKS),
    ],
    rarest="_-",
    anchors=_ANCHORS,
)


_ORDER: dict[Rule | None, int] = {
    rule: row for row, rule in enumerate((*TOKEN_RULES, *PLAIN_RULES))
}


def _in_order(hit: tuple[int, Rule | None]) -> tuple[int, int]:
    """Sort key of a hit: its position, then its row of the table ("sk-ant-" before "sk-")."""
    return hit[0], _ORDER.get(hit[1], 0)


def known_secrets(page: Page) -> Iterator[Span]:
    """Yield the tokens of the table; spans of two rules may overlap.

    >>> list(known_secrets(Page.of("AKIAQ3EGRNKDA2QWERTY")))
    [Span(start=0, end=20, kind='aws_key_id')]
    """
    if not page.runs:
        return
    text, match_ends = page.text, dict[Rule, int]()
    runs = "\n".join([text[start:end] for start, end in page.runs])
    hits = sorted(_TOKENS.search(runs), key=_in_order)
    begins = _begins(page.runs) if hits else []
    marked = -1
    for at, rule in hits:
        run = bisect_right(begins, at) - 1
        if rule is not None:
            yield from try_rule(rule, text, page.runs[run][0] + at - begins[run], match_ends)
        elif run != marked:
            marked = run
            yield from _marked(text, *page.runs[run])
    for start, end in page.runs:
        if end - start >= MIN_LONG_RUN:
            match = LONG_RULES.match(
                text,
                start + 1 if text[start - 1 : start] == "\\" or text[start] in "+-/" else start,
                end,
            )
            if match is not None and is_random(match[0]):
                yield Span(*match.span(), match.lastgroup or "token")


def _begins(runs: list[tuple[int, int]]) -> list[int]:
    """The offset of each run once the runs are joined by single characters."""
    return list(accumulate((end - start + 1 for start, end in runs[:-1]), initial=0))


def _marked(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield a run that is a key with a mark in its middle."""
    run = text[start:end]
    if (
        MIN_INNER <= len(run) <= MAX_INNER
        and any(run.find(mark, 20) >= 0 for mark in INNER_MARKS)
        and is_random(run)
    ):
        yield Span(
            start,
            end + (2 if text.startswith("==", end) else int(text.startswith("=", end))),
            INNER_KIND,
        )


def try_rule(rule: Rule, text: str, needle: int, match_ends: dict[Rule, int]) -> Iterator[Span]:
    """Yield the secret that a rule finds at a needle; `done` holds the end of each rule's last
    match."""
    if rule.around:
        start = max(match_ends.get(rule, 0), needle - rule.around)
        for match in rule.pattern.finditer(text, start, needle + rule.around):
            if rule.drawn and not is_random(match[1]):
                continue
            yield Span(*match.span(1), rule.kind)
        match_ends[rule] = needle + rule.around
        return
    start = needle - rule.back
    if rule.by_line:
        start = text.rfind("\n", max(0, needle - MAX_INDENT), needle) + 1
        if not start and needle > MAX_INDENT:  # no line of which this could be the beginning
            return
    elif rule.by_word:
        start = max(text.rfind(c, max(0, needle - MAX_INDENT), needle) for c in _BEFORE_A_WORD) + 1
    if start < match_ends.get(rule, 0):  # inside the rule's last match, or before the text
        return
    match = rule.pattern.match(text, start)
    if match is None:
        return
    match_ends[rule] = match.end()
    # ghp_xxxxxxxx, AKIAIOSFODNN7EXAMPLE
    if len(set(match[0][-8:])) == 1 or match[0].endswith("EXAMPLE"):
        return
    group = match.lastindex or 0
    if (rule.odd and not _is_odd(match[group])) or (rule.drawn and not is_random(match[group])):
        return
    if not group or len(match[group]) >= MAX_PLACEHOLDER or not is_placeholder(match[group]):
        yield Span(*match.span(group), rule.kind)


def _is_odd(secret: str) -> bool:
    return any(map(str.isdigit, secret)) or is_random(secret)
