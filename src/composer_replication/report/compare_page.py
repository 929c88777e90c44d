"""Runs side by side: success with intervals, curves on the same axes, and the settings that differ.

Runs that were evaluated apart have no paired interval between them, and the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.charts import (
    Line,
    fit_name,
    interval_chart,
    is_constant,
    line_chart,
)
from composer_replication.report.html import Child, Html, document, el, join, table, with_code
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.page import MAX_BYTES, fit_page, section, section_links
from composer_replication.report.result_section import SUCCESS_TITLE
from composer_replication.report.run_view import is_number, state_text

COLOUR_CLASSES = ("c0", "c1", "c2", "c3")
ROWS = ("before", "placebo", "after")
APART_NOTE = (
    "Each run was compared with its controls, not with the other runs: a difference between two"
    " runs has no paired interval here. `recompose evaluate A --against b=B` plays both on the"
    " same tasks."
)
CLAIM_TEXTS = {"better": "better", "worse": "worse", "nothing": "nothing is claimed"}
LOG_CLAIM_TEXTS = {
    "fewer": "fewer mistakes come back",
    "more": "more mistakes come back",
    "nothing": "nothing is claimed",
}
MOST_CURVES = 16
NAME_CHARS = 46  # of the name of a run; all of it is in its title
FIRST_CURVE = "rollouts/success"


def compare_page(views: Sequence[Mapping[str, Any]], *, max_bytes: int = MAX_BYTES) -> str:
    """The page of two or more `run_report`s."""
    return fit_page(lambda limits, note: _draw(views, limits, note), max_bytes=max_bytes)


def _draw(views: Sequence[Mapping[str, Any]], limits: PageLimits, note: str) -> str:
    parts = [
        ("runs", "The runs", _runs(views)),
        *([("curves", "Curves", _curves(views))] if any(map(_series, views)) else []),
        ("settings", "Settings that differ", _settings(views, limits)),
    ]
    return document(
        f"{len(views)} runs · recompose",
        el(
            "main",
            el("h1", f"{len(views)} runs side by side"),
            el("p", _sentence(views), cls="lead"),
            _picture(views),
            el("p", with_code(APART_NOTE), cls="quiet"),
            el("p", note, cls="note") if note else None,
            section_links([(anchor, title) for anchor, title, _ in parts]),
            [section(anchor, title, body) for anchor, title, body in parts],
        ),
        el(
            "footer",
            "Written by ",
            el("code", "recompose report"),
            " from ",
            [
                [", " if i else "", el("span", str(view["id"]), cls="name")]
                for i, view in enumerate(views)
            ],
            ".",
        ),
    )


def success_of(view: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of a run's evaluation that hold a success, by name.

    {} if it played the workshop, a toy, after a training on logs.
    """
    evaluation = view["evaluation"]
    rows = evaluation["rows"] if evaluation is not None and evaluation["own_tasks"] else ()
    return {str(row["name"]): row for row in rows if is_number(row.get("success"))}


def _name(view: Mapping[str, Any]) -> Html:
    """The name of a run, whose direction of writing must not turn the numbers beside it around."""
    return el("span", fit_name(str(view["id"]), NAME_CHARS), cls="name", title=str(view["id"]))


def _sentence(views: Sequence[Mapping[str, Any]]) -> Html:
    parts: list[Child] = ["Success on held-out tasks. "]
    for view in views:
        rows = success_of(view)
        ends = [
            f"{100 * rows[name]['success']:.0f} %" for name in ("before", "after") if name in rows
        ]
        logs = view["logs"]
        otherwise = "not evaluated"
        if logs is not None:
            otherwise = f"evaluated on logs: {str(logs['verdict']['sentence']).rstrip('.')}"
        parts += [_name(view), f": {' to '.join(ends) if ends else otherwise}"]
        parts.append("." if view is views[-1] else "; ")
    return join(parts)


def _picture(views: Sequence[Mapping[str, Any]]) -> Html | None:
    drawn = [
        (f"{view['id']}: {name}", row["success"], row["success_low"], row["success_high"])
        for view in views
        for name, row in success_of(view).items()
        if name in ROWS and all(is_number(row.get(f"success_{end}")) for end in ("low", "high"))
    ]
    if not drawn:
        return None
    chart = interval_chart(SUCCESS_TITLE, drawn, low=0.0, high=1.0)
    return el("div", chart, cls="picture alone")


def _runs(views: Sequence[Mapping[str, Any]]) -> Html:
    lines = []
    for view in views:
        rows = success_of(view)
        lines.append(
            [
                _name(view),
                state_text(view["state"]),
                view["steps"],
                str(view["seed"]),
                *(_success(rows.get(name)) for name in ROWS),
                _claim(view, rows),
            ]
        )
    head = ("run", "state", "steps", "seed", *ROWS, "claim")
    return table(lines, head=head, numbers=(2, 4, 5, 6), label="runs")


def _claim(view: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """What is claimed of success, else of the mistakes of the user's logs."""
    if rows:
        return CLAIM_TEXTS[view["evaluation"]["verdict"]["claim"]]
    if view["logs"] is None:
        return "not evaluated"
    return f"on logs: {LOG_CLAIM_TEXTS[view['logs']['verdict']['claim']]}"


def _success(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    low, high = row.get("success_low"), row.get("success_high")
    ends = f" [{low:.3f}, {high:.3f}]" if is_number(low) and is_number(high) else ""
    return f"{row['success']:.3f}{ends}"


def _curves(views: Sequence[Mapping[str, Any]]) -> Html:
    """Each measure of any run, one line per run."""
    series = [_series(view) for view in views]
    # the same in all steps of all runs: a picture would show nothing
    names = sorted(
        (
            name
            for name in dict.fromkeys(name for run_series in series for name in run_series)
            if not is_constant([p for run_series in series for p in run_series.get(name, ())])
        ),
        key=lambda name: name != FIRST_CURVE,
    )
    charts = [
        line_chart(
            name,
            [
                Line(
                    fit_name(str(view["id"]), NAME_CHARS),
                    COLOUR_CLASSES[i % len(COLOUR_CLASSES)],
                    run_series[name],
                )
                for i, (view, run_series) in enumerate(zip(views, series, strict=True))
                if name in run_series
            ],
        )
        for name in names[:MOST_CURVES]
    ]
    left = len(names) - len(charts)
    return join(
        el("div", charts, cls="grid"),
        el("p", f"and {left} more measures", cls="quiet") if left > 0 else None,
    )


def _series(view: Mapping[str, Any]) -> dict[str, Sequence[tuple[float, float]]]:
    channels = {
        f"{name}: {what}": channel[key]["points"]
        for name, channel in view["channels"].items()
        for key, what in (("loss", "loss"), ("tokens_per_step", "tokens per step"))
    }
    measures = {name: measure["points"] for name, measure in view["measures"].items()}
    return {name: points for name, points in {**measures, **channels}.items() if points}


def _settings(views: Sequence[Mapping[str, Any]], limits: PageLimits) -> Html:
    """The settings whose values are not the same in all runs."""
    changed = [dict(_parsed(change) for change in view["changed_settings"]) for view in views]
    defaults = {key: old for run in changed for key, (old, _) in run.items()}
    lines = [
        [key, *(cut_end(run[key][1] if key in run else old, 160) for run in changed)]
        for key, old in sorted(defaults.items())
        if len({run[key][1] if key in run else old for run in changed}) > 1
    ]
    if not lines:
        return el("p", "None: the runs differ at most in their data, seed and code.")
    head = ("setting", *(fit_name(str(view["id"]), NAME_CHARS) for view in views))
    left = len(lines) - limits.rows
    return join(
        table(lines[: limits.rows], head=head, label="settings that differ"),
        el("p", f"and {left} more", cls="quiet") if left > 0 else None,
    )


def _parsed(change: str) -> tuple[str, tuple[str, str]]:
    """A line of `changed_settings`: (key, (default, value)).

    >>> _parsed("train.steps: 20 -> 3")
    ('train.steps', ('20', '3'))
    """
    key, _, values = change.partition(": ")
    old, _, new = values.partition(" -> ")
    return key, (old, new)
