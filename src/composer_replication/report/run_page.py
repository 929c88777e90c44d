"""The page of one run: whether it worked, then channels, data, sites token by token, rollouts and
settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.answers_section import ANSWERS, answers_section
from composer_replication.report.charts import Line, axis_label, is_constant, line_chart
from composer_replication.report.explanations import CHANNELS, STATUSES
from composer_replication.report.headline import TOY_TITLE, evaluation_sentences
from composer_replication.report.html import Child, Html, document, el, join, table, with_code
from composer_replication.report.judged_section import (
    hacks_section,
    refused_table,
    session_block,
)
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.logs_section import logs_section
from composer_replication.report.packed_list import half_for_answers, with_less
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
from composer_replication.report.result_section import result_section, run_top, tasks_section
from composer_replication.report.run_view import state_text
from composer_replication.report.sites_section import MESSAGES, sites_section

COLOURS = {"policy": "c0", "lm_ce": "c3", "hint": "c1", "preference": "c2"}
# Metrics that say more than the loss; they replace it in the channel's chart if they exist.
BETTER = {"policy": ("policy/reward",), "preference": ("preference/margin",)}
LOSS = {
    "policy": "loss (near 0 by construction)",
    "lm_ce": "cross-entropy, nats per token",
    "hint": "divergence from the hinted model, nats per token",
    "preference": "DPO loss per pair",
}
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
    "tracker_lost",
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
    answers = answers_section(view["work"], half_for_answers(limits))
    evaluation = view["evaluation"]
    toy = evaluation if evaluation is not None and not evaluation["own_tasks"] else None
    parts: list[tuple[str, str, Html | None]] = [
        ("result", "Did it work?", result_section(evaluation, view["logs"])),
        ("logs", "On your own logs", logs_section(view["logs"], limits) if view["logs"] else None),
        ("toy", TOY_TITLE, None if toy is None else tasks_section(toy)),
        ("channels", "Channels", _channels(view)),
        ("replicas", "Replicas", replicas_section(view["replicas"]) if view["replicas"] else None),
        ("data", "Where the data went", _data(view)),
        ("sites", MESSAGES, _sites(view, folder_flags, with_less(limits, answers))),
        ("answers", ANSWERS, answers),
        (
            "samples",
            "Rollouts",
            _samples(view["samples"], limits) if view["samples"]["sessions"] else None,
        ),
        (
            "hacks",
            "Attempts to cheat",
            hacks_section(view["hack_attempts"], limits) if view["hack_attempts"] else None,
        ),
        (
            "refused",
            "Why evaluated episodes earned nothing",
            refused_table(view["refused"], limits) if view["refused"] else None,
        ),
        ("settings", "Settings, and how to run it again", _settings(view, limits)),
    ]
    shown_parts = [(anchor, title, body) for anchor, title, body in parts if body is not None]
    planned = view["steps_planned"]
    head = fact_list(
        [
            ("state", state_text(view["state"])),
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
            [
                el("p", with_code(sentence), cls="quiet" if number else "lead")
                for number, sentence in enumerate(evaluation_sentences(evaluation, view["logs"]))
            ],
            run_top(view, limits),
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
        sessions=view["work"]["session_ids"] if view["work"] else None,
    )


def _time(text: str | None) -> str:
    return (text or "").replace("T", " ").split(".")[0] + (
        " UTC" if text and text.endswith("+00:00") else ""
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
    others = {name: m["points"] for name, m in view["measures"].items() if name not in used}
    constant = [
        f"{name} {axis_label(points[0][1])}"
        for name, points in others.items()
        if is_constant(points)
    ]
    cards += [
        line_chart(name, [Line(name, "c0", points)])
        for name, points in others.items()
        if not is_constant(points)
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
        (
            el("p", f"The same in every step: {', '.join(constant)}.", cls="quiet")
            if constant
            else None
        ),
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
    return sites_section(
        [*rollout_sites, *imported_sites],
        rollouts=len(rollout_sites),
        probe=view["watched"],
        limits=limits,
        folder_flags=folder_flags,
    )


def _samples(samples: Mapping[str, Any], limits: PageLimits) -> Html:
    left = f"; {samples['left_out']} more in the file" if samples["left_out"] else ""
    return join(
        el("p", f"Some of the student's rollouts at step {samples['step']}{left}."),
        [session_block(session, limits) for session in samples["sessions"]],
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
