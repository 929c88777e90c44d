"""All of a page's secrets: known tokens and blocks first, then what a place or a name gives away, found in one pass over its words."""

from __future__ import annotations

from collections.abc import Iterator

from composer_replication.core.secret_blocks import BLOCK_WORDS, key_blocks
from composer_replication.core.secret_names import WORDS, Word, assigned_at, inserted_secrets
from composer_replication.core.secret_needles import Needles
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_places import PLACE_RULES
from composer_replication.core.secret_rules import known_secrets, tried
from composer_replication.core.secret_tokens import Rule

_LOOKED_FOR: Needles[Word | Rule | str | None] = Needles(
    [
        ("insert into", "rows"),
        *((words, None) for words in BLOCK_WORDS),
        *((word.word, word) for word in WORDS),
        *((needle, rule) for rule in PLACE_RULES for needle in rule.needles),
    ],
    anchors="c:bpuwk_l$",
)


def secrets_on(page: Page) -> Iterator[Span]:
    """Where secrets stand; spans may overlap, the first of them names the kind.

    >>> list(secrets_on(Page.of("postgres://app:h0rse@db/x")))
    [Span(start=15, end=20, kind='basic_auth')]
    """
    yield from known_secrets(page)
    found = _LOOKED_FOR.search(page.low)
    if any(what is None for _, what in found):
        yield from key_blocks(page)
    assigned: list[Span] = []
    done: dict[Rule, int] = {}
    gates: dict[str, bool] = {"": True}
    for at, what in found:
        if isinstance(what, Word):
            if assigned and at < assigned[-1].end:  # within a value that goes already
                continue
            if (span := assigned_at(page, at, what)) is not None:
                assigned.append(span)
            continue
        if what is None:
            continue
        if isinstance(what, str):
            assigned += inserted_secrets(page.text, at)
            continue
        if what.gate not in gates:
            gates[what.gate] = what.gate in page.low
        if gates[what.gate]:
            yield from tried(what, page.text, at, done)
    yield from assigned
