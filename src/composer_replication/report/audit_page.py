"""The page without any training: what an agent does wrong in one's own logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.html import Html, document, el, join
from composer_replication.report.page import (
    MAX_BYTES,
    contents,
    counted,
    fitted,
    funnel,
    grouped_number,
    reading,
    section,
)
from composer_replication.report.sites_section import PageLimits, cut_end, sites_section


def audit_page(work: Mapping[str, Any], *, where: str = "", max_bytes: int = MAX_BYTES) -> str:
    """The page of `work_view`; `where` are the flags that lead `recompose show` to the same
    folder."""
    return fitted(lambda limits, note: _draw(work, where, limits, note), max_bytes=max_bytes)


def _draw(work: Mapping[str, Any], where: str, limits: PageLimits, note: str) -> str:
    sections = [
        ("kinds", "What goes wrong", _kinds(work, limits)),
        ("where", "Where it goes wrong", _where(work, limits)),
        ("apart", "Not the model's mistakes", _apart(work, limits)),
        (
            "funnel",
            "From logs to what could be trained on",
            join(funnel(work), reading(work["ingest"])),
        ),
        (
            "sites",
            "Sites",
            sites_section(
                work["shown"], total=work["sites"], watched=None, limits=limits, where=where
            ),
        ),
        ("next", "What to do next", _next(work, where)),
    ]
    return document(
        "audit of agent logs · recompose",
        el(
            "main",
            el("h1", "What your agent does wrong"),
            el(
                "p",
                "An audit of imported logs. Nothing was trained, and no model was asked.",
                cls="quiet",
            ),
            el("p", note, cls="note") if note else None,
            _headline(work),
            contents([(anchor, title) for anchor, title, _ in sections]),
            [section(anchor, title, body) for anchor, title, body in sections],
        ),
        el(
            "footer",
            "Written by ",
            el("code", "recompose report"),
            f" from {work['path']}. One file; it loads nothing and sends nothing.",
        ),
    )


def _headline(work: Mapping[str, Any]) -> Html:
    counts = work["counts"]
    calls = counts["calls"]
    rate = f"{100 * work['mistakes'] / calls:.1f}" if calls else "–"
    rows = [
        (grouped_number(counts["sessions"]), "sessions"),
        (grouped_number(counts["messages"]), "messages of a model"),
        (grouped_number(calls), "tool calls"),
        (grouped_number(work["mistakes"]), "mistaken messages"),
        (rate, "mistakes per 100 calls"),
    ]
    return el("div", [el("div", el("b", value), what) for value, what in rows], cls="big")


def _kinds(work: Mapping[str, Any], limits: PageLimits) -> Html:
    if not work["kinds"]:
        return el("p", "No mistaken message was found.")
    columns = (
        ("name", "kind of mistake"),
        ("count", "sites"),
        ("hinted", "with a hint"),
        ("tools", "tools"),
    )
    without = "" if work["hints_written"] else " No hints were written yet."
    return join(
        el(
            "p",
            "A site is the message that was wrong, found by the id of the call that failed; the"
            " error that followed is its evidence.",
            without,
        ),
        counted(work["kinds"], columns, limits=limits, caption="kinds of mistakes"),
    )


def _where(work: Mapping[str, Any], limits: PageLimits) -> Html:
    kinds = ("kinds", "kinds")
    tools = (
        ("name", "tool"),
        ("mistakes", "mistakes"),
        ("of", "calls"),
        ("rate", "per 100"),
        kinds,
    )
    places = (
        *((key, "repository" if key == "name" else title) for key, title in tools[:3]),
        ("sessions", "sessions"),
        *tools[3:],
    )
    authors = (
        ("name", "model that wrote it"),
        ("mistakes", "mistakes"),
        ("of", "messages"),
        ("rate", "per 100"),
        kinds,
    )
    return join(
        _rates(work["tools"], tools, "per tool", "calls", limits),
        _rates(work["repositories"], places, "per repository", "calls", limits),
        _rates(work["authors"], authors, "per author", "messages", limits),
        el(
            "p",
            "Copied history of resumed sessions is counted once. Rates are counts, not a"
            " comparison: models had different tasks.",
            cls="quiet",
        ),
    )


def _rates(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str]],
    caption: str,
    unit: str,
    limits: PageLimits,
) -> Html:
    """A table of what has mistakes, and one sentence for what has none."""
    wrong = [
        {**row, "rate": f"{100 * row['mistakes'] / row['of']:.1f}" if row["of"] else "–"}
        for row in rows
        if row["mistakes"]
    ]
    clean = [
        f"{cut_end(row['name'], 80)} ({grouped_number(row['of'])})"
        for row in rows
        if not row["mistakes"]
    ]
    more = f", and {len(clean) - limits.rows} more" if len(clean) > limits.rows else ""
    told = f"Without a mistake ({unit}): {', '.join(clean[: limits.rows])}{more}." if clean else ""
    return join(
        counted(wrong, columns, limits=limits, count="mistakes", caption=caption),
        el("p", told, cls="quiet") if told else None,
    )


def _apart(work: Mapping[str, Any], limits: PageLimits) -> Html:
    if not work["apart"]:
        return el("p", "Nothing else looked like an error.")
    columns = (
        ("category", "category"),
        ("kind", "kind"),
        ("count", "sites"),
        ("why", "why it is kept apart"),
    )
    return join(
        el("p", "These look like errors in a log. None of them is trained on by default."),
        counted(work["apart"], columns, limits=limits),
    )


def _next(work: Mapping[str, Any], where: str) -> Html:
    rows = [] if work["hints_written"] else [("recompose hints", "a short text per mistake")]
    rows += [
        (
            "recompose hints --audit",
            "measures with a model whether a hint changes it; needs PyTorch",
        )
    ]
    rows += [("recompose build && recompose train", "tokens, then a run; needs PyTorch")]
    lines = [f"{_with(command, where):<60}  # {why}" for command, why in rows]
    return el("pre", "\n".join(lines))


def _with(command: str, where: str) -> str:
    return " && ".join(part + where for part in command.split(" && "))
