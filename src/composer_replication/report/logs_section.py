"""The section on the user's own logs: recurrence with intervals, and the held-out sites with the
messages of the log and of each student side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.charts import interval_chart
from composer_replication.report.evaluation_section import signed
from composer_replication.report.html import Html, el, join, plural, table, with_code
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.logs_view import (
    OK,
    RECURRENCE,
    SIDES,
    number_or_none,
    outcome_tally,
    share_with_interval,
)
from composer_replication.report.page import fact_list
from composer_replication.report.site_article import turn_block

CLAIMS = {"fewer": "better", "more": "worse", "nothing": "nothing"}
NO_SITES = "The messages at these sites were not kept: evaluate again to see them."
ORDER = "In the order of the logs: no site was selected for its outcome."
NOT_KEPT = "Only the verdict was kept."


def logs_section(view: Mapping[str, Any], limits: PageLimits) -> Html:
    """The verdict, the numbers and the sites of `logs_view`."""
    verdict, plan = view["verdict"], view["plan"]
    box = el(
        "div",
        el("p", verdict["sentence"]),
        el("ul", [el("li", reason) for reason in verdict["reasons"]]),
        cls=f"verdict {CLAIMS.get(verdict['claim'], 'nothing')}",
    )
    about = [
        ("held-out mistakes", plan["sites"]),
        ("sessions", plan["sessions"]),
        ("repositories", plan["repositories"]),
        ("samples of each site", view["samples_per_site"]),
        ("smallest change that they can show", number_or_none(plan["smallest_difference"])),
    ]
    charts = [
        chart
        for chart in (
            _rows_chart(view["rows"], RECURRENCE),
            _rows_chart(view["rows"], OK),
            _pairs_chart(view["paired"]),
        )
        if chart
    ]
    return join(
        box,
        fact_list([(name, str(value)) for name, value in about if value is not None]),
        [el("p", with_code(note), cls="quiet") for note in view["notes"]],
        el("div", charts, cls="grid") if charts else None,
        _rows(view["rows"]),
        _paired(view["paired"]),
        _sites(view, limits),
    )


def logs_chart(view: Mapping[str, Any]) -> Html | None:
    """How often the log's mistake came back, before and after, with intervals."""
    return _rows_chart(view["rows"], RECURRENCE)


def _rows_chart(rows: Sequence[Mapping[str, Any]], metric: str) -> Html | None:
    """Shares from 0 to 1; a row of fewer than two sessions has no interval and no dot."""
    drawn = [
        (r["name"], r[metric], r[f"{metric}_low"], r[f"{metric}_high"])
        for r in rows
        if r.get(f"{metric}_low") is not None
    ]
    title = (
        "recurrence of the log's mistake, share of messages"
        if metric == RECURRENCE
        else "passes the check, share of messages"
    )
    return interval_chart(title, drawn, low=0.0, high=1.0) if drawn else None


def _pairs_chart(paired: Sequence[Mapping[str, Any]]) -> Html | None:
    with_interval = [p for p in paired if p["metric"] == RECURRENCE and p["low"] is not None]
    drawn = [(f"{p['a']} − {p['b']}", p["difference"], p["low"], p["high"]) for p in with_interval]
    if not drawn:
        return None
    reach = max(max(abs(low), abs(high)) for _, _, low, high in drawn) or 1.0
    return interval_chart(
        "paired differences in recurrence", drawn, low=-reach, high=reach, zero=True
    )


def _rows(rows: Sequence[Mapping[str, Any]]) -> Html:
    metrics = [RECURRENCE, OK, "other", "malformed", "undecided"]
    lines = [
        (r["name"], r["n"], r["sessions"], *(share_with_interval(r, metric) for metric in metrics))
        for r in rows
    ]
    return table(
        lines,
        head=("row", "sites", "sessions", *metrics),
        numbers=range(1, 8),
        caption="at held-out mistakes",
    )


def _paired(paired: Sequence[Mapping[str, Any]]) -> Html:
    lines = [
        (
            f"{p['a']} − {p['b']}",
            p["metric"],
            signed(p["difference"]),
            "none" if p["low"] is None else f"{signed(p['low'])} to {signed(p['high'])}",
            "none" if p["low"] is None else "no" if p["low"] <= 0 <= p["high"] else "yes",
            number_or_none(p["detectable"]) if (p["detectable"] or 0) < 1 else "none",
        )
        for p in paired
        if p["metric"] in (RECURRENCE, OK)
    ]
    head = ("difference", "of", "value", "interval", "excludes zero", "could show")
    return table(lines, head=head, numbers=(2, 3), caption="paired over sites")


def _sites(view: Mapping[str, Any], limits: PageLimits) -> Html:
    shown_sites = view["sites"][: limits.sites]
    if not shown_sites:
        return el("p", NO_SITES, cls="note")
    left = len(view["sites"]) - len(shown_sites)
    return join(
        el("h3", "What was written there"),
        el("p", ORDER + (f" {plural(left, 'more site')} not shown." if left else ""), cls="quiet"),
        (
            el("p", f"The log's own messages are not shown: {view['unknown']}.", cls="note")
            if view["unknown"]
            else None
        ),
        [_site(site, limits) for site in shown_sites],
    )


def _site(site: Mapping[str, Any], limits: PageLimits) -> Html:
    sides = [_log(site, limits)] if site["log"] is not None else []
    sides += [
        _student(name, site["written"][name], limits) for name in SIDES if name in site["written"]
    ]
    return el(
        "article",
        el(
            "h3",
            f"{site['name']} ",
            el("small", f"{site['kind']} · {site['id']} {site['repository']}"),
        ),
        (
            el("p", "What the log answered: ", cut_end(site["detail"], 300))
            if site["detail"]
            else None
        ),
        el("div", sides, cls="sides"),
        cls="held",
        id=site["name"],
    )


def _log(site: Mapping[str, Any], limits: PageLimits) -> Html:
    return el(
        "div", el("p", el("b", "in the log"), cls="side"), turn_block(site["log"], limits.chars)
    )


def _student(name: str, samples: Sequence[Mapping[str, Any]], limits: PageLimits) -> Html:
    """The tally of outcomes and the first sample; the other samples open on a click."""
    if not samples:
        return el(
            "div",
            el("p", el("b", name), cls="side"),
            el("p", "nothing was sampled here", cls="quiet"),
        )
    first, *others = [_sample(sample, limits) for sample in samples]
    return el(
        "div",
        el("p", el("b", name), el("small", f" · {outcome_tally(samples)}"), cls="side"),
        first,
        el("details", el("summary", plural(len(others), "more sample")), others)
        if others
        else None,
    )


def _sample(sample: Mapping[str, Any], limits: PageLimits) -> Html:
    reason = sample["reason"] + (f": {cut_end(sample['detail'], 200)}" if sample["detail"] else "")
    return el(
        "div",
        el(
            "p",
            el("span", sample["outcome"], cls=f"outcome {_class(sample['outcome'])}"),
            f" {reason}",
        ),
        (
            turn_block(sample["turn"], limits.chars)
            if sample["turn"] is not None
            else el("p", NOT_KEPT, cls="quiet")
        ),
    )


def _class(outcome: str) -> str:
    """The CSS class of an outcome; a file may hold any text, which must not become a class."""
    return outcome if outcome in ("ok", "same", "other", "malformed", "undecided") else "undecided"
