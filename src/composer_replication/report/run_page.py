"""The page of one run: whether it worked, then channels, data, sites token by token, rollouts and
settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.charts import Line, interval_chart, line_chart
from composer_replication.report.evaluation_section import signed
from composer_replication.report.explanations import CHANNELS, STATUSES
from composer_replication.report.html import Child, Html, document, el, join, plural, table
from composer_replication.report.logs_section import logs_section
from composer_replication.report.page import (
    MAX_BYTES,
    fact_list,
    fit_page,
    funnel,
    grouped_number,
    ingest_facts,
    rollout_funnels,
    section,
    section_links,
)
from composer_replication.report.replicas_section import replicas_section
from composer_replication.report.run_view import is_number
from composer_replication.report.sites_section import PageLimits, cut_end, sites_section, turn_block

COLOURS = {"policy": "c0", "lm_ce": "c3", "hint": "c1", "preference": "c2"}
# Metrics that say more than the loss; they replace it in the channel's chart if they exist.
BETTER = {"policy": ("policy/reward",), "preference": ("preference/margin",)}
LOSS = {
    "policy": "loss (near 0 by construction)",
    "lm_ce": "cross-entropy, nats per token",
    "hint": "divergence from the hinted model, nats per token",
    "preference": "DPO loss per pair",
}
COLUMNS = ("name", "n", "success", "targeted_mistakes_per_episode", "other_mistakes_per_episode")
ENDS = ("_low", "_high")
GROUPS = {
    "families": "families of mistakes: share of the episodes (n) in which each was possible",
    "cells": (
        "success by what a task holds: A = another name than the habit's, B = a file to be found"
    ),
    "kinds": "success by kind of task",
    "mistakes": "mistakes per episode, by kind",
}
NO_EVALUATION = (
    "No evaluation was run, so nothing is claimed about the trained model. A falling loss is not"
    " evidence of learning."
)
ON_LOGS = (
    "Evaluated only at held-out mistakes of your own logs (the section below); no tasks were"
    " played."
)
IMPORTED = (
    "training on them is context distillation, and the terms of the model that wrote a log may"
    " restrict it."
)
LOUD = (
    "starved",
    "dead",
    "clipped",
    "stopped",
    "lost",
    "handover_failed",
    "torn_line",
    "resume",
    "guard",
    "restored",
)


def run_page(view: Mapping[str, Any], *, folder_flags: str = "", max_bytes: int = MAX_BYTES) -> str:
    """The page of `run_report`.

    `folder_flags` are the flags with which `recompose show` reads the same folder.
    """
    return fit_page(
        lambda limits, note: _draw(view, folder_flags, limits, note), max_bytes=max_bytes
    )


def _draw(view: Mapping[str, Any], folder_flags: str, limits: PageLimits, note: str) -> str:
    parts: list[tuple[str, str, Html | None]] = [
        ("result", "Did it work?", _result(view["evaluation"], view["logs"])),
        ("logs", "On your own logs", logs_section(view["logs"], limits) if view["logs"] else None),
        ("channels", "Channels", _channels(view)),
        ("replicas", "Replicas", replicas_section(view["replicas"]) if view["replicas"] else None),
        ("data", "Where the data went", _data(view)),
        ("sites", "Sites", _sites(view, folder_flags, limits)),
        (
            "samples",
            "Rollouts",
            _samples(view["samples"], limits) if view["samples"]["sessions"] else None,
        ),
        ("settings", "Settings, and how to run it again", _settings(view, limits)),
    ]
    shown_parts = [(anchor, title, body) for anchor, title, body in parts if body is not None]
    planned = view["steps_planned"]
    head = fact_list(
        [
            ("state", view["state"]),
            ("steps", f"{view['steps']} of {planned}" if planned else view["steps"]),
            ("launches", view["attempts"]),
            ("seed", view["seed"]),
            ("started", _time(view["started"])),
            ("ended", _time(view["ended"])),
        ]
    )
    running = (
        "The run was still in progress when this page was written."
        if view["state"] == "running"
        else ""
    )
    return document(
        f"run {view['id']} · recompose",
        el(
            "main",
            el("h1", f"Run {view['id']}"),
            head,
            [el("p", text, cls="note") for text in (note, running) if text],
            section_links([(anchor, title) for anchor, title, _ in shown_parts]),
            [section(anchor, title, body) for anchor, title, body in shown_parts],
        ),
        el(
            "footer",
            "Written by ",
            el("code", "recompose report"),
            f" from {view['path']}. One file; it loads nothing and sends nothing.",
        ),
    )


def _time(text: str | None) -> str:
    return (text or "").replace("T", " ").split(".")[0] + (
        " UTC" if text and text.endswith("+00:00") else ""
    )


# ---- did it work ----


def _result(evaluation: Mapping[str, Any] | None, logs: Mapping[str, Any] | None) -> Html:
    if evaluation is None and logs is not None:
        return el("div", el("p", f"{ON_LOGS} {logs['verdict']['sentence']}"), cls="verdict nothing")
    if evaluation is None:
        return el(
            "div",
            el("p", NO_EVALUATION),
            el(
                "p",
                "`recompose evaluate` writes evaluation.json into the run's folder; run `recompose"
                " report` again afterwards.",
            ),
            cls="verdict",
        )
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
            _success(rows),
            _differences(evaluation["paired"]),
            *(_counts(rows, name) for name in COLUMNS[3:]),
            *_families(rows, evaluation["family_titles"]),
        )
        if chart is not None
    ]
    notes = [el("p", text, cls="note") for text in evaluation["notes"]]
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
    return (
        interval_chart("success on held-out tasks, with intervals", drawn, low=0.0, high=1.0)
        if drawn
        else None
    )


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
    tables = [_row_table(plain, caption="rows")]
    for group in groups:
        inner = [
            {
                "name": row["name"],
                **{f"{group} {key}": value for key, value in row.get(group, {}).items()},
            }
            for row in rows
        ]
        tables.append(_row_table(inner, caption=GROUPS.get(group, group)))
    return join(tables)


def _row_table(rows: Sequence[Mapping[str, Any]], *, caption: str) -> Html:
    names = list(
        dict.fromkeys(
            [
                *(c for c in COLUMNS if any(c in row for row in rows)),
                *(key for row in rows for key in row),
            ]
        )
    )
    names = [n for n in names if not (n.endswith(ENDS) and n.rsplit("_", 1)[0] in names)]
    lines = [[_value(row, name) for name in names] for row in rows]
    return table(
        lines,
        head=[n.replace("_", " ") for n in names],
        numbers=range(1, len(names)),
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


# ---- channels ----


def _channels(view: Mapping[str, Any]) -> Html:
    channels: Mapping[str, Any] = {
        name: c for name, c in view["channels"].items() if set(c["statuses"]) != {"off"}
    }
    off = [name for name in view["channels"] if name not in channels]
    if not channels:
        return el("p", "No step was taken.")
    lines = [
        [
            name,
            _statuses(c["statuses"]),
            grouped_number(c["tokens"]),
            *_ends(c["loss"]),
            *_ends(c["grad_norm"]),
            CHANNELS.get(name, ""),
        ]
        for name, c in channels.items()
    ]
    head = (
        "channel",
        "steps by status",
        "tokens",
        "loss, first",
        "last",
        "gradient, first",
        "last",
        "what it is",
    )
    norms = [
        Line(name, COLOURS.get(name, "c0"), c["grad_norm"]["points"])
        for name, c in channels.items()
    ]
    used = {key for names in BETTER.values() for key in names}
    cards = [card for name, c in channels.items() for card in _cards(name, c, view["measures"])]
    cards.append(
        line_chart(
            "gradient norm of each channel",
            norms,
            note="at the final hidden states: the influence of each channel",
            log=True,
        )
    )
    cards += [
        line_chart(name, [Line(name, "c0", m["points"])])
        for name, m in view["measures"].items()
        if name not in used
    ][:12]
    return join(
        table(lines, head=head, numbers=range(2, 7)),
        el("p", f"Off (weight 0): {', '.join(off)}.", cls="quiet") if off else None,
        el("p", view["clipped"]) if view.get("clipped") else None,
        el(
            "p",
            "Ticks on the axis mark steps in which the channel was starved or dead (red) or"
            " exhausted (grey).",
            cls="quiet",
        ),
        el("div", cards, cls="grid"),
        _lost(view.get("lost", ())),
        _events(view["events"]),
    )


def _statuses(statuses: Mapping[str, int]) -> Html:
    parts: list[Child] = []
    for name, count in statuses.items():
        parts += [
            " " if parts else "",
            el("span", f"{name} {count}", cls=f"status {name}", title=STATUSES.get(name)),
        ]
    return join(parts)


def _ends(points: Mapping[str, Any]) -> list[str]:
    return ["" if points[key] is None else f"{points[key]:.4g}" for key in ("first", "last")]


def _cards(name: str, channel: Mapping[str, Any], measures: Mapping[str, Any]) -> list[Html]:
    colour = COLOURS.get(name, "c0")
    better = [(key, measures[key]["points"]) for key in BETTER.get(name, ()) if key in measures]
    title, points = better[0] if better else (LOSS.get(name, "loss"), channel["loss"]["points"])
    return [
        line_chart(name, [Line(title, colour, points)], note=title, marks=channel["steps"]),
        line_chart(
            f"{name}: tokens per step",
            [Line("tokens", colour, channel["tokens_per_step"]["points"])],
        ),
    ]


def _lost(rows: Sequence[Mapping[str, Any]]) -> Html | None:
    if not rows:
        return None
    lines = [(row["what"], grouped_number(row["count"]), row["cost"]) for row in rows]
    caption = f"losses on the way, of {grouped_number(rows[0]['of'])} rollouts"
    return table(lines, head=("what", "how often", "what it cost"), numbers=(1,), caption=caption)


def _events(events: Sequence[Mapping[str, Any]]) -> Html | None:
    rows = [e for e in events if e["kind"] in LOUD]
    if not rows:
        return None
    shown_events = rows[-20:]
    lines = [
        (
            e["kind"],
            ", ".join(f"{k} {v}" for k, v in e.items() if k not in ("t", "kind", "attempt")),
        )
        for e in shown_events
    ]
    caption = "warnings and other events" + (
        f", the last {len(shown_events)} of {len(rows)}" if len(shown_events) < len(rows) else ""
    )
    return table(
        [(kind, cut_end(facts, 300)) for kind, facts in lines],
        head=("event", "facts"),
        caption=caption,
    )


# ---- data, sites, samples, settings ----


def _data(view: Mapping[str, Any]) -> Html:
    work = view["work"]
    if work is None:
        why = (
            view["out_of_date"]
            or "The work folder of this run (sessions.jsonl, sites.jsonl) is no longer there"
        )
        lost = f"{why}: the chain from logs to examples cannot be shown."
        return join(
            el("p", lost),
            el("div", rollout_funnels(view["chains"]), cls="grid") if view["chains"] else None,
        )
    stale = view["stale"]
    authors = ", ".join(
        f"{row['name']} ({grouped_number(row['of'])} messages)" for row in work["authors"][:6]
    )
    imported = work["origins"].get("trace", 0)
    return join(
        (
            el(
                "p",
                f"Not the data of this run: {', '.join(stale)} changed after the run. The counts"
                " below are those of the current files.",
                cls="note",
            )
            if stale
            else None
        ),
        funnel(work, rollouts=view["chains"]),
        (
            el(
                "p",
                f"Written by {authors}. ",
                (
                    f"{grouped_number(imported)} sessions are imported logs: {IMPORTED}"
                    if imported
                    else ""
                ),
            )
            if authors
            else None
        ),
        ingest_facts(work["ingest"]),
    )


def _sites(view: Mapping[str, Any], folder_flags: str, limits: PageLimits) -> Html | None:
    work, rollout_sites = view["work"], view["rollout_sites"]
    imported_sites = work["shown"] if work else []
    if not imported_sites and not rollout_sites:
        return None
    total = work["sites"] if work else 0
    return sites_section(
        [*rollout_sites, *imported_sites],
        total=total,
        rollouts=len(rollout_sites),
        probe=view["watched"],
        limits=limits,
        folder_flags=folder_flags,
    )


def _samples(samples: Mapping[str, Any], limits: PageLimits) -> Html:
    def session_block(session: Mapping[str, Any]) -> Html:
        outcome = "" if session["outcome"] is None else f", reward {session['outcome']:g}"
        left = (
            el("p", plural(session["left_out"], "more turn"), cls="quiet")
            if session["left_out"]
            else None
        )
        turns = [turn_block(turn, limits.chars) for turn in session["turns"]]
        return el("details", el("summary", f"{session['id']}{outcome}"), turns, left)

    left = f"; {samples['left_out']} more in the file" if samples["left_out"] else ""
    return join(
        el("p", f"Some of the student's rollouts at step {samples['step']}{left}."),
        [session_block(session) for session in samples["sessions"]],
    )


def _settings(view: Mapping[str, Any], limits: PageLimits) -> Html:
    versions = ", ".join(f"{name} {version}" for name, version in view["versions"].items())
    changed = [change.partition(": ") for change in view["changed_settings"]]
    inputs = [(i["path"], i["rows"], str(i["sha256"])[:16]) for i in view["inputs"]]
    values = [(key, *values_text.partition(" -> ")[::2]) for key, _, values_text in changed]
    return join(
        (
            el("p", "Settings that differ from the defaults:")
            if values
            else el("p", "Every setting has its default.")
        ),
        (
            table(
                [
                    (key, cut_end(old, 120), cut_end(new, 200))
                    for key, old, new in values[: limits.rows]
                ],
                head=("setting", "default", "this run"),
            )
            if values
            else None
        ),
        el("p", f"and {len(values) - limits.rows} more") if len(values) > limits.rows else None,
        el("h3", "Run it again"),
        el("pre", cut_end(view["command"], 2000)),
        _rerun(view["again"]),
        el("p", f"With {versions}; {view['platform']}; seed {view['seed']}.", cls="quiet"),
        table(inputs, head=("input", "rows", "sha256, first 16"), numbers=(1,)) if inputs else None,
        (
            el("p", "Checkpoints: ", ", ".join(str(c["step"]) for c in view["checkpoints"]), ".")
            if view["checkpoints"]
            else None
        ),
    )


def _rerun(commands: Sequence[Mapping[str, str]]) -> Html | None:
    """The commands of the other runs of the evaluation, and of the evaluation itself."""
    if not commands:
        return None
    lead = el(
        "p",
        "The runs with which it was compared, and the evaluation with this run's settings; its"
        " tasks and seed are listed above.",
    )
    return join(
        lead,
        [
            join(el("p", f"{command['name']}:"), el("pre", cut_end(command["command"], 2000)))
            for command in commands
        ],
    )
