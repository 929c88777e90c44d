"""Did it work? The first sentence and picture of a run's page, then every number with its
interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.charts import interval_chart
from composer_replication.report.evaluation_section import signed
from composer_replication.report.headline import NOT_ON_LOGS
from composer_replication.report.heat import clearest_site, heat, legend
from composer_replication.report.html import Html, el, join, table, with_code
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.logs_section import logs_chart
from composer_replication.report.page import fact_list
from composer_replication.report.run_view import is_number
from composer_replication.report.site_article import hint_box, site_name

COLUMNS = ("name", "n", "success", "targeted_mistakes_per_episode", "other_mistakes_per_episode")
ENDS = ("_low", "_high")
SUCCESS_TITLE = "success on held-out tasks: share, with 95 % interval"
GROUPS = {
    "families": "families of mistakes: share of the episodes (n) in which each was possible",
    "cells": (
        "success by what a task holds: A = another name than the habit's, B = a file to be found"
    ),
    "kinds": "success by kind of task",
    "mistakes": "mistakes per episode, by kind",
    "hacks": "episodes that earned nothing for an attempt to cheat, by kind of attempt",
}
ON_LOGS = "Evaluated at held-out mistakes of your own logs (the section below)."
TOP_TOKENS = 240
MEASURE_TITLES = {"n": "episodes (n)", "success": "success (share)"}


def run_top(view: Mapping[str, Any], limits: PageLimits) -> Html | None:
    """The picture of a run: before and after with intervals, and beside it the site whose hint
    moves a token furthest."""
    evaluation, logs = view["evaluation"], view["logs"]
    is_users = evaluation is not None and evaluation["own_tasks"]
    chart = _success(evaluation["rows"]) if evaluation is not None and is_users else None
    chart = chart or (logs_chart(logs) if logs is not None else None)
    tokens = _clearest(view, limits)
    if chart is None and tokens is None:
        return None
    cls = "picture even" if chart is not None and tokens is not None else "picture alone"
    return el("div", chart, tokens, cls=cls)


def _clearest(view: Mapping[str, Any], limits: PageLimits) -> Html | None:
    """The clearest probed site: its hint, and its message token by token."""
    probe = view["watched"]
    best = clearest_site(probe)
    sites = [*view["rollout_sites"], *(view["work"]["shown"] if view["work"] else ())]
    site = next((row for row in sites if row["site"]["id"] == best), None)
    if site is None:
        return None
    kind, tool = site["site"]["kind"], str(site["site"].get("tool") or "")
    return el(
        "div",
        el(
            "p",
            el("b", "What the hint changes, token by token: "),
            el(
                "a",
                f"{site_name(site)} {kind_title(kind, cut_end(tool, 40))}",
                href=f"#{site_name(site)}",
            ),
        ),
        hint_box(cut_end(site["hint"], 300) if site["hint"] is not None else None, limits),
        heat(probe["sites"][best][:TOP_TOKENS], probe, limits),
        legend(probe),
        cls="card",
    )


def result_section(evaluation: Mapping[str, Any] | None, logs: Mapping[str, Any] | None) -> Html:
    """The verdict with its reasons, every chart, and every number with its interval.

    An evaluation on the workshop's tasks, which are not the user's, has a section of its own.
    """
    if (evaluation is None or not evaluation["own_tasks"]) and logs is not None:
        return el("div", el("p", f"{ON_LOGS} {logs['verdict']['sentence']}"), cls="verdict nothing")
    if evaluation is not None and not evaluation["own_tasks"]:
        return el("div", el("p", with_code(NOT_ON_LOGS)), cls="verdict")
    if evaluation is None:
        return el(
            "div",
            el(
                "p",
                with_code(
                    "Nobody knows yet: this run was not evaluated. `recompose evaluate` writes"
                    " evaluation.json into its folder; run `recompose report` again afterwards."
                ),
            ),
            cls="verdict",
        )
    return tasks_section(evaluation)


def tasks_section(evaluation: Mapping[str, Any]) -> Html:
    """An evaluation on tasks: the verdict with its reasons, every chart and every number."""
    verdict = evaluation["verdict"]
    box = el(
        "div",
        el("p", verdict["sentence"]),
        el("ul", [el("li", reason) for reason in verdict["reasons"]]),
        cls=f"verdict {verdict['claim']}",
    )
    claims = [
        el("li", claim.text, cls="bad" if claim.against else None if claim.holds else "quiet")
        for claim in evaluation["claims"]
    ]
    rows = evaluation["rows"]
    charts = [
        chart
        for chart in (
            # success stands at the top of the page
            _differences(evaluation["paired"]),
            *(_counts(rows, name) for name in COLUMNS[3:]),
            *_families(rows, evaluation["family_titles"]),
        )
        if chart is not None
    ]
    notes = [el("p", with_code(text), cls="note") for text in evaluation["notes"]]
    about = fact_list([(name, str(value)) for name, value in evaluation["about"].items()])
    return join(
        box,
        el("ul", claims, cls="claims") if claims else None,
        notes,
        about,
        el("div", charts, cls="grid") if charts else None,
        _rows(rows),
        _paired(evaluation["paired"]),
    )


def _success(rows: Sequence[Mapping[str, Any]]) -> Html | None:
    drawn = _drawn(rows, "success")
    return interval_chart(SUCCESS_TITLE, drawn, low=0.0, high=1.0) if drawn else None


def _counts(rows: Sequence[Mapping[str, Any]], name: str) -> Html | None:
    """A count per episode, from zero to the largest bound."""
    drawn = _drawn(rows, name)
    most = max((high for *_, high in drawn), default=0.0)
    return interval_chart(name.replace("_", " "), drawn, low=0.0, high=most) if most > 0 else None


def _families(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[Html]:
    """One chart per family: the share of episodes with the mistake, where it was possible."""
    groups = [
        {"name": row["name"], **row["families"]}
        for row in rows
        if isinstance(row.get("families"), Mapping)
    ]
    charts = [(measure, title, _drawn(groups, measure)) for measure, title in titles.items()]
    return [
        interval_chart(f"{title}, where possible", drawn, low=0.0, high=1.0)
        for _, title, drawn in charts
        if drawn
    ]


def _drawn(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[str, float, float, float]]:
    """The rows that hold a measure and both of its bounds."""
    keys = [f"{name}{end}" for end in ("", *ENDS)]
    return [
        (str(r["name"]), *(r[key] for key in keys))
        for r in rows
        if all(is_number(r.get(key)) for key in keys)
    ]


def _differences(paired: Sequence[Mapping[str, Any]]) -> Html | None:
    drawn = [
        (f"{p['a']} − {p['b']}", p["difference"], p["low"], p["high"])
        for p in paired
        if p.get("metric", "success") == "success"
    ]
    if not drawn:
        return None
    reach = max(max(abs(low), abs(high)) for _, _, low, high in drawn) or 1.0
    return interval_chart("paired differences in success", drawn, low=-reach, high=reach, zero=True)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Every number of every row with its interval, one table per group (e.g. families)."""
    groups = list(
        dict.fromkeys(
            key for row in rows for key, value in row.items() if isinstance(value, Mapping)
        )
    )
    plain = [
        {key: value for key, value in row.items() if not isinstance(value, Mapping)} for row in rows
    ]
    tables = [_row_table(plain, caption="every measure, with its 95 % interval where it has one")]
    for group in groups:
        inner = [
            {
                "name": row["name"],
                **row.get(group, {}),
            }
            for row in rows
        ]
        tables.append(_row_table(inner, caption=GROUPS.get(group, group)))
    return join(tables)


def _row_table(rows: Sequence[Mapping[str, Any]], *, caption: str) -> Html:
    """One line per measure and one column per row of the evaluation: there are few rows, and too
    many measures for the width of a page."""
    names = list(
        dict.fromkeys(
            [
                *(c for c in COLUMNS if any(c in row for row in rows)),
                *(key for row in rows for key in row),
            ]
        )
    )
    names = [n for n in names if not (n.endswith(ENDS) and n.rsplit("_", 1)[0] in names)]
    lines = [
        [MEASURE_TITLES.get(name, name.replace("_", " ")), *(_value(row, name) for row in rows)]
        for name in names
        if name != "name"
    ]
    return table(
        lines,
        head=["measure", *(cut_end(str(row["name"]), 60) for row in rows)],
        numbers=range(1, len(rows) + 1),
        caption=caption,
    )


def _value(row: Mapping[str, Any], name: str) -> str:
    low, high = (row.get(f"{name}{end}") for end in ENDS)
    interval = f" [{_shown(low)}, {_shown(high)}]" if low is not None and high is not None else ""
    return _shown(row.get(name)) + interval


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _paired(paired: Sequence[Mapping[str, Any]]) -> Html:
    lines = [
        (
            f"{p['a']} − {p['b']}",
            p.get("metric", "success"),
            signed(p["difference"]),
            f"{signed(p['low'])} to {signed(p['high'])}",
            "no" if p["low"] <= 0 <= p["high"] else "yes",
        )
        for p in paired
    ]
    return table(
        lines,
        head=("difference", "of", "value", "interval", "excludes zero"),
        numbers=(2, 3),
        caption="paired over tasks",
    )
