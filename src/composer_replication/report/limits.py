"""How much of a page's content is drawn: bounds that are halved until the page fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEAST = {
    "sites": 1,
    "site_bytes": 2_000,
    "chars": 60,
    "message_chars": 120,
    "tokens": 20,
    "rows": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Bounds on the content of a page.

    `site_bytes` is the part of the page that its lists (sites, answers) may take, packed, `turns`
    the turns on each side of a record there; `sites` are the held-out sites drawn side by side.
    """

    sites: int = 24
    site_bytes: int = 1_500_000
    turns: int = 3
    chars: int = 1500
    message_chars: int = 4000
    tokens: int = 800
    rows: int = 25

    def halved(self) -> PageLimits:
        """Half of every bound, but at least a little text."""
        halves = {name: max(getattr(self, name) // 2, least) for name, least in LEAST.items()}
        return replace(self, turns=max(self.turns - 2, 0), **halves)


def cut_end(text: str, limit: int, *, more: int = 0) -> str:
    """The beginning of a text, and the number of characters that are cut.

    `more` of them were cut before.

    >>> cut_end("abcdef", 4), cut_end("ab", 4, more=7)
    ('abcd [2 more characters]', 'ab [7 more characters]')
    """
    left = max(len(text) - limit, 0) + more
    return f"{text[:limit]} [{left} more characters]" if left else text
