"""Parts that the run page and the audit page share: sections, tables, chains, and the size cap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.report.charts import bar
from composer_replication.report.html import (
    Child,
    Html,
    el,
    join,
    listed_counts,
    plural,
    table,
    with_code,
)
from composer_replication.report.kind_titles import category_title
from composer_replication.report.limits import PageLimits, cut_end

MAX_BYTES = 2_000_000
CUT_NOTE = (
    "This page was shortened to stay below 2 MB: long texts, long tables and the list of sites are"
    " cut more than usual, each with a note."
)


def fit_page(draw: Callable[[PageLimits, str], str], *, max_bytes: int = MAX_BYTES) -> str:
    """The page under the widest limits that keep it below `max_bytes`.

    `draw` gets the limits and a note for the reader, which is empty unless the page was cut. Raises
    DataError if even the narrowest page is too large.
    """
    limits, note = PageLimits(site_bytes=max_bytes * 3 // 4), ""
    while True:
        page = draw(limits, note)
        if len(page.encode("utf-8")) <= max_bytes:
            return page
        narrower = limits.halved()
        if narrower == limits:
            raise DataError(
                f"the page is larger than {max_bytes} bytes even when cut",
                fix="give fewer runs or a smaller work folder",
            )
        limits, note = narrower, CUT_NOTE


def section(anchor: str, title: str, *children: Child) -> Html:
    """One section with a heading and an anchor."""
    return el("section", el("h2", title), *children, id=anchor)


def fact_list(rows: Sequence[tuple[str, Child]]) -> Html:
    """A line of named facts without the empty ones."""
    return el(
        "ul",
        [el("li", f"{name} ", el("b", value)) for name, value in rows if value not in ("", None)],
        cls="facts",
    )


def section_links(rows: Sequence[tuple[str, str]]) -> Html:
    """Links to the sections."""
    return el(
        "nav",
        [el("a", title, href=f"#{anchor}") for anchor, title in rows],
        cls="top",
        aria_label="sections",
    )


def bar_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str]],
    *,
    limits: PageLimits,
    count: str = "count",
    caption: str = "",
) -> Html:
    """A table of rows with a bar beside the column `count`; `columns` are (key, heading).

    Rows over the limit are counted below the table.
    """
    shown_rows, longest = rows[: limits.rows], max((row[count] for row in rows), default=0)
    bar_column = [key for key, _ in columns].index(count) + 1
    cells = [
        _with_bar([_cell(row[key]) for key, _ in columns], bar(row[count], longest), bar_column)
        for row in shown_rows
    ]
    numbers = (
        [i for i, cell in enumerate(cells[0]) if isinstance(cell, (int, float))] if cells else []
    )
    left = len(rows) - len(shown_rows)
    drawn_table = table(
        cells,
        head=_with_bar([title for _, title in columns], "", bar_column),
        numbers=numbers,
        caption=caption,
    )
    return join(drawn_table, el("p", f"and {left} more rows", cls="quiet") if left else None)


def _with_bar(cells: Sequence[Child], drawn: Child, at: int) -> list[Child]:
    return [*cells[:at], drawn, *cells[at:]]


def _cell(value: Any) -> Child:
    return cut_end(value, 160) if isinstance(value, str) and not isinstance(value, Html) else value


_STAGES = {"sites": "mistakes and other failures"}
"""Plain words for stages whose names in files mean nothing to a newcomer."""


def chain(stages: Sequence[Mapping[str, Any]], *, title: str) -> Html:
    """The stages of a chain as a list, each with the losses before it."""
    items = [
        el(
            "li",
            el("b", grouped_number(stage["count"])),
            f" {_STAGES.get(stage['what'], stage['what'])}",
            el("ul", [_drop(d) for d in stage["drops"]]) if stage["drops"] else None,
        )
        for stage in stages
    ]
    return el("div", el("h3", title), el("ol", items, cls="chain"))


def _drop(drop: Mapping[str, Any]) -> Html:
    return el(
        "li",
        f"− {grouped_number(drop['count'])} {_reason(drop['reason'])}",
        [": ", with_code(drop["why"])] if drop["why"] else None,
    )


def _reason(reason: str) -> str:
    """A reason in plain words; those of skipped.jsonl are machine names, such as `no_hint`."""
    return category_title(reason).replace("_", " ")


def grouped_number(value: int) -> str:
    """A count with thin spaces between thousands, e.g. 263 056."""
    return f"{value:,}".replace(",", "\u202f")


def grouped_plural(count: int, noun: str) -> str:
    """A count with thin spaces between thousands, and its noun.

    >>> grouped_plural(1, "tool call"), grouped_plural(890, "tool call")
    ('1 tool call', '890 tool calls')
    """
    return grouped_number(count) + plural(count, noun).removeprefix(str(count))


def rollout_funnels(chains: Mapping[str, Any]) -> list[Html]:
    """The chains of a live run's rollouts."""
    titles = {"policy": "the policy channel", "rollout_hints": "the hint channel, in rollouts"}
    return [chain(chains[name], title=title) for name, title in titles.items() if chains.get(name)]


def funnel(work: Mapping[str, Any], *, rollouts: Mapping[str, Any] | None = None) -> Html:
    """The chains from files to sessions, sites to hint targets, messages to lm_ce, turns to pairs.

    `rollouts` are the chains of a run's rollouts.
    """
    chains = work["chains"]
    other_skips = work["other_skips"]
    return join(
        el(
            "div",
            chain(chains["files"], title="files"),
            chain(chains["sites"], title="the hint channel" + (", imported" if rollouts else "")),
            chain(chains["messages"], title="lm_ce") if chains["messages"] else None,
            (
                chain(chains["preference"], title="the preference channel")
                if chains["preference"]
                else None
            ),
            rollout_funnels(rollouts or {}),
            cls="grid",
        ),
        (
            table(
                [(s["reason"], s["count"], with_code(s["why"])) for s in other_skips],
                head=("also left out", "count", "why"),
                numbers=(1,),
            )
            if other_skips
            else None
        ),
    )


def ingest_facts(ingest: Mapping[str, Any] | None) -> Html:
    """Facts about reading the logs: removed secrets, damaged lines, unknown records."""
    if ingest is None:
        return el(
            "p", "There is no ingest.json, so it is not known how the logs were read.", cls="quiet"
        )
    rows = [
        ("files", ingest["files"]),
        ("secrets and words removed", listed_counts(list(ingest["removed"].items()), most=6)),
        ("records of unknown types", listed_counts(list(ingest["unknown"].items()), most=6)),
        ("damaged lines", ingest["damaged_lines"]),
    ]
    return fact_list([(name, value if value not in ("", 0) else "none") for name, value in rows])
