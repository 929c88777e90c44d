"""A long list of a page: every row and article packed, with search, filters, order and an address
for each, e.g. #sites?kind=edit_no_match&at=s7ecd45f6.

Every article is drawn here, in Python; lists.js only unpacks, chooses and inserts.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from composer_replication.core.harmless import harmless
from composer_replication.report.html import Child, Html, el, packed
from composer_replication.report.limits import LEAST, PageLimits, cut_end

SAMPLE = 60
BASE64 = 4 / 3
DRAWN = "title", "text"
LASTING = "lasting"
"""The field of a row's lasting name, which its addresses hold: they mean the same record, or none,
on a page that was made anew. Without one they hold its name, which is its place in the list."""

Row = Mapping[str, Any]
"""The name of a record, its value of each facet (a list if it has several), title and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListShape:
    """What a list is of, and how it is filtered and ordered.

    `name` is its anchor and begins its addresses, `nouns` are its records. A row's first line is
    its name and title, the second its `facets[0]`, the third its text; `more` are further fields of
    a row. `sorts` are (key, label): "log" orders by name, another key by the field of this name.
    `titles` put a text for people before a value of a facet. `elsewhere` is the command or file
    that shows a record without the page.
    """

    name: str
    nouns: str
    facets: tuple[str, ...]
    sorts: tuple[tuple[str, str], ...]
    more: tuple[str, ...] = ()
    titles: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    elsewhere: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row, in the order in which the page holds them."""
        return ("name", *self.facets, *self.more, *DRAWN)


def list_link(text: Child, name: str, **filters: str) -> Html:
    """A link to a list, filtered.

    >>> list_link("9 sites", "sites", kind="edit_no_match")
    '<a href="#sites?kind=edit_no_match">9 sites</a>'
    """
    query = "&".join(f"{key}={quote(_short(value), safe='')}" for key, value in filters.items())
    return el("a", text, href=f"#{name}?{query}")


def half_for_answers(limits: PageLimits) -> PageLimits:
    """The limits of the list of answers, which takes at most half of the bytes of both lists."""
    return replace(limits, site_bytes=limits.site_bytes // 2)


def with_less(limits: PageLimits, drawn: str | None) -> PageLimits:
    """The limits of the next list, after one that was drawn."""
    return replace(
        limits, site_bytes=max(limits.site_bytes - len(drawn or ""), LEAST["site_bytes"])
    )


def packed_bytes(text: str) -> float:
    """The bytes that a text takes in the page, deflated and in base64."""
    return BASE64 * len(zlib.compress(text.encode("utf-8", "replace")))


def packed_list(
    shape: ListShape,
    views: Sequence[Mapping[str, Any]],
    *,
    row: Callable[[Mapping[str, Any]], Row],
    article: Callable[[Mapping[str, Any], PageLimits], Html],
    limits: PageLimits,
) -> Html:
    """The list of `views`, with as much of each article as `limits.site_bytes` allows."""
    rows = [_cells(row(view), shape) for view in views]
    room = max(limits.site_bytes - packed_bytes(json.dumps(rows)), limits.site_bytes // 8)
    bounds, drawn = _fitting(views, limits, article, room=room)
    articles = [article(view, bounds) for view in views[:drawn]]
    left = len(views) - drawn
    value = {
        "fields": shape.fields,
        "nouns": shape.nouns,
        "facets": shape.facets,
        "lines": ["title", shape.facets[0], "text"],
        "elsewhere": shape.elsewhere,
        "rows": rows,
        "articles": articles,
    }
    return el(
        "div",
        (
            el(
                "p",
                f"The last {left} {shape.nouns} are only listed, to keep this page small:"
                " the search knows no more of them than their rows.",
                cls="note",
            )
            if left
            else None
        ),
        el(
            "p",
            f"This list of {len(views)} {shape.nouns} needs the page's script; without it: ",
            el("code", shape.elsewhere.replace(" {}", "")),
            cls="no-script",
        ),
        _controls(rows, shape),
        el(
            "p",
            f"None of the {shape.nouns} matches the search and the filters. ",
            el("button", "clear the filters", type="button", data_clear="1"),
            cls="note",
            data_nothing="1",
            hidden=True,
        ),
        el(
            "p",
            f"None of the {shape.nouns} has the name in the address: it may be of another page, or"
            " of this one before it was made anew.",
            cls="note",
            data_missing="1",
            hidden=True,
        ),
        el(
            "div",
            el("nav", el("ol"), aria_label=shape.nouns, tabindex=0),
            el("div", cls="shown"),
            cls="sites script-only",
            hidden=True,
        ),
        packed(f"{shape.name}-data", value),
        data_list=shape.name,
    )


def _fitting(
    views: Sequence[Mapping[str, Any]],
    limits: PageLimits,
    article: Callable[[Mapping[str, Any], PageLimits], Html],
    *,
    room: float,
) -> tuple[PageLimits, int]:
    """Bounds under which the articles fit into `room` bytes, packed, and how many are drawn.

    Measured on a sample, so that a long list is drawn once.
    """
    step = max(len(views) // SAMPLE, 1)
    sample = views[::step]
    while sample:
        each = packed_bytes("".join(article(view, limits) for view in sample)) / len(sample)
        narrower = limits.halved()
        if each * len(views) <= room:
            break
        if narrower.chars == limits.chars and narrower.turns == limits.turns:
            return limits, max(min(len(views), int(room / each)), 1)
        limits = narrower
    return limits, len(views)


def _cells(row: Row, shape: ListShape) -> list[Any]:
    """One row of the list, in the order of its fields."""
    values = [row[name] for name in shape.fields]
    return [
        value
        if isinstance(value, (int, float))
        else [_short(part) for part in value]
        if isinstance(value, (list, tuple))
        else _short(value)
        for value in values
    ]


def _short(value: Any) -> str:
    return harmless(str(value)[:200])


def _controls(rows: Sequence[Sequence[Any]], shape: ListShape) -> Html:
    """Search, one choice per facet that has two values or more, and the order."""
    counts = {name: _counts(rows, shape.fields.index(name)) for name in shape.facets}
    selects = [
        _choice(name, [("", f"all ({len(rows)})"), *_options(counts[name], shape.titles.get(name))])
        for name in shape.facets
        if len(counts[name]) > 1
    ]
    has = {name: any(row[shape.fields.index(name)] for row in rows) for name in shape.more}
    sorts = [(key, title) for key, title in shape.sorts if has.get(key, True)]
    return el(
        "div",
        el(
            "label",
            "search (/)",
            el("input", type="search", data_facet="q", autocomplete="off", spellcheck="false"),
        ),
        selects,
        _choice("sort", sorts, label="order"),
        el("button", "clear", type="button", data_clear="1"),
        el("p", el("output", aria_live="polite"), cls="quiet"),
        el(
            "p",
            f"Keys: / search, j and k next and previous of the {shape.nouns}. Each has its own"
            " address.",
            cls="quiet",
        ),
        cls="controls script-only",
        hidden=True,
        role="search",
        aria_label=shape.nouns,
    )


def _counts(rows: Sequence[Sequence[Any]], column: int) -> Counter[str]:
    """How many rows have each value of a facet; one with several values counts for each."""
    counts: Counter[str] = Counter()
    for row in rows:
        value = row[column]
        counts.update(set(value or [""]) if isinstance(value, list) else [value])
    return counts


def _options(
    counts: Mapping[str, int], title: Callable[[str], str] | None
) -> list[tuple[str, str]]:
    """The values of a facet with their counts, the most common first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:200]
    titles = {value: cut_end(value, 60) or "(none)" for value in counts}
    if title is not None:
        titles = {
            value: text if title(value) == text else f"{title(value)} · {text}"
            for value, text in titles.items()
        }
    return [(value or "-", f"{titles[value]} ({n})") for value, n in ordered]


def _choice(name: str, values: Sequence[tuple[str, str]], *, label: str = "") -> Html:
    options = [el("option", text, value=value) for value, text in values]
    return el("label", label or name, el("select", options, data_facet=name))
