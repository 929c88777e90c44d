"""The audit page, which needs no training: the mistakes of an agent in the user's own logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.answers_section import ANSWERS, answers_section
from composer_replication.report.audit_top import (
    audit_top,
    cost_text,
    rules_section,
    stopped_section,
    where_section,
)
from composer_replication.report.audit_view import AuditView
from composer_replication.report.html import Html, document, el, join, table
from composer_replication.report.kind_titles import category_title, kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.packed_list import half_for_answers, with_less
from composer_replication.report.page import (
    MAX_BYTES,
    bar_table,
    fit_page,
    funnel,
    grouped_number,
    ingest_facts,
    section,
    section_links,
)
from composer_replication.report.reader_view import reader_section, reader_total
from composer_replication.report.sites_section import (
    MESSAGES,
    site_link,
    sites_section,
)


def audit_page(
    work: Mapping[str, Any],
    *,
    view: AuditView | None = None,
    folder_flags: str = "",
    max_bytes: int = MAX_BYTES,
) -> str:
    """The page of `work_view`, led by the sentences of the audit.

    `folder_flags` are the flags with which `recompose show` reads the same folder.
    """
    return fit_page(
        lambda limits, note: _draw(work, view, folder_flags, limits, note), max_bytes=max_bytes
    )


def _draw(
    work: Mapping[str, Any],
    view: AuditView | None,
    folder_flags: str,
    limits: PageLimits,
    note: str,
) -> str:
    answers = answers_section(_of_chosen_sessions(work, view), half_for_answers(limits))
    sections = [
        *(_audited(view, limits) if view is not None else ()),
        ("kinds", "What goes wrong", _kinds(work, view, limits)),
        (
            "where",
            "Where it goes wrong",
            _where(work, limits) if view is None else where_section(view, limits),
        ),
        ("apart", "Not counted as mistakes", _apart(work, limits)),
        *(
            [("reader", "What a reader model says of them", reader_section(work["reader"]))]
            if work["reader"]
            else []
        ),
        (
            "funnel",
            "From logs to what could be trained on",
            join(funnel(work), ingest_facts(work["ingest"])),
        ),
        (
            "sites",
            MESSAGES,
            sites_section(
                _with_costs(work["shown"], view),
                probe=None,
                limits=with_less(limits, answers),
                folder_flags=folder_flags,
            ),
        ),
        *([("answers", ANSWERS, answers)] if answers is not None else []),
        ("next", "What to do next", _next_steps(work, folder_flags)),
    ]
    if lifts := _lifts(work["audit"] or {}):
        sections.insert(-1, ("lift", "Do hints change the model?", lifts))
    return document(
        "audit of agent logs · recompose",
        el(
            "main",
            el("h1", "What your agent does wrong"),
            el(
                "p",
                f"An audit of imported logs{_choice(view)}. Nothing was trained, and "
                + (reader_total(work["reader"]) if work["reader"] else "no model was asked")
                + (" to write it." if answers is not None and not work["reader"] else "."),
                cls="quiet",
            ),
            el("p", note, cls="note") if note else None,
            _headline(work) if view is None else audit_top(view),
            section_links([(anchor, title) for anchor, title, _ in sections]),
            [section(anchor, title, body) for anchor, title, body in sections],
        ),
        el(
            "footer",
            "Written by ",
            el("code", "recompose report"),
            f" from {work['path']}. One file; it loads nothing and sends nothing.",
        ),
        sessions=work["session_ids"],
    )


def _choice(view: AuditView | None) -> str:
    """Which sessions the audit is of, if it is not of all."""
    if view is None:
        return ""
    since = f", of sessions that ended on {view.since} or later" if view.since else ""
    return since + (f", of {view.project}" if view.project else "")


def _audited(view: AuditView, limits: PageLimits) -> list[tuple[str, str, Html]]:
    return [
        ("rules", "Rules that the counts support", rules_section(view)),
        ("stopped", "What people stopped", stopped_section(view.stopped, limits)),
    ]


def _of_chosen_sessions(work: Mapping[str, Any], view: AuditView | None) -> Mapping[str, Any]:
    """The work folder with the answers at turns of the sessions that the audit is of."""
    if view is None or not (view.since or view.project):
        return work
    answered = [row for row in work["answered"] if row["session"] in view.session_ids]
    return {**work, "answered": answered}


def _with_costs(
    shown: Sequence[Mapping[str, Any]], view: AuditView | None
) -> list[Mapping[str, Any]]:
    """The sites with their days and new tokens, where the audit knows them."""
    if view is None:
        return list(shown)
    if view.since or view.project:  # the audit is of some sessions: so is its list
        shown = [row for row in shown if row["site"]["id"] in view.site_spend]
    costs = {site: round(spend.new_tokens) for site, spend in view.site_spend.items()}
    return [
        {
            **row,
            "day": view.site_days.get(row["site"]["id"], "") or row.get("day", ""),
            "tokens": costs.get(row["site"]["id"], 0),
        }
        for row in shown
    ]


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
    return el("div", [el("div", el("b", value), label) for value, label in rows], cls="big")


def _kinds(work: Mapping[str, Any], view: AuditView | None, limits: PageLimits) -> Html:
    if not work["kinds"]:
        return el("p", "No mistaken message was found.")
    costs = {kind.kind: kind.spend for kind in view.kinds} if view is not None else {}
    columns = (
        ("title", "kind of mistake"),
        ("count", "times"),
        ("hinted", "with a hint"),
        *((("cost", "cost"),) if any(spend.tokens for spend in costs.values()) else ()),
        ("tools", "tools"),
    )
    rows = [
        {
            **row,
            "title": join(
                site_link(kind_title(row["name"]), kind=row["name"]),
                " ",
                el("code", cut_end(row["name"], 80)),
            ),
            "cost": cost_text(costs[row["name"]]) if row["name"] in costs else "–",
        }
        for row in work["kinds"]
    ]
    without = "" if work["hints_written"] else " No hints have been written yet."
    return join(
        el(
            "p",
            "A mistaken message is found by the id of the call that failed; the error that followed"
            " is its evidence. Commands and files call it a ",
            el("dfn", "site", title="the mistaken message, and the later evidence for it"),
            "; docs/glossary.md has all terms.",
            without,
        ),
        bar_table(rows, columns, limits=limits, caption="kinds of mistakes"),
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
        _rates(work["tools"], columns=tools, caption="per tool", unit="calls", limits=limits),
        _rates(
            work["repositories"],
            columns=places,
            caption="per repository",
            unit="calls",
            limits=limits,
        ),
        _rates(
            work["authors"], columns=authors, caption="per author", unit="messages", limits=limits
        ),
        el(
            "p",
            "The copied history of resumed sessions is counted once. Do not compare models by their"
            " rates: they had different tasks.",
            cls="quiet",
        ),
    )


def _rates(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Sequence[tuple[str, str]],
    caption: str,
    unit: str,
    limits: PageLimits,
) -> Html:
    """A table of the rows with mistakes, and one sentence that names the rows without any."""
    with_mistakes = [
        {**row, "rate": f"{100 * row['mistakes'] / row['of']:.1f}" if row["of"] else "–"}
        for row in rows
        if row["mistakes"]
    ]
    without_mistakes = [
        f"{cut_end(row['name'], 80)} ({grouped_number(row['of'])})"
        for row in rows
        if not row["mistakes"]
    ]
    more = (
        f", and {len(without_mistakes) - limits.rows} more"
        if len(without_mistakes) > limits.rows
        else ""
    )
    sentence = (
        f"Without a mistake ({unit}): {', '.join(without_mistakes[: limits.rows])}{more}."
        if without_mistakes
        else ""
    )
    return join(
        bar_table(with_mistakes, columns, limits=limits, count="mistakes", caption=caption),
        el("p", sentence, cls="quiet") if sentence else None,
    )


def _apart(work: Mapping[str, Any], limits: PageLimits) -> Html:
    if not work["apart"]:
        return el("p", "Nothing else looked like an error.")
    columns = (
        ("category", "category"),
        ("title", "kind"),
        ("count", "times"),
        ("why", "why it is kept apart"),
    )
    return join(
        el(
            "p",
            "What looks like an error in a log and is none, and what a person or a check said"
            " against a message: such words are too often about something else to count them. None"
            " of it is trained on by default.",
        ),
        bar_table(
            [
                {
                    **row,
                    "title": site_link(kind_title(row["kind"]), kind=row["kind"]),
                    "category": category_title(row["category"]),
                }
                for row in work["apart"]
            ],
            columns,
            limits=limits,
        ),
    )


def _lifts(audit: Mapping[str, Any]) -> Html | None:
    """The kinds of audit.json, each with the verdict that the caller added (cli/hint_gate.py); None
    if there are none."""
    kinds = [k for k in audit.get("kinds", ()) if isinstance(k, Mapping) and "verdict" in k]
    if not kinds:
        return None
    rows = []
    for kind in kinds:
        decision, message = (kind.get(name) or {} for name in ("decision", "message"))
        rows.append(
            [
                str(kind.get("kind", "")),
                str(kind.get("n", "")),
                *(_signed(decision.get(name)) for name in ("lift", "low", "high", "over_none")),
                str(kind.get("needed") or "–"),
                _signed(message.get("lift")),
                str(kind["verdict"]),
            ]
        )
    head = ("kind", "tried", "lift", "low", "high", "over no hint", "needed", "whole message", "")
    return join(
        el(
            "p",
            "Lift: how many nats further the right hint moves the log-odds of right against wrong,"
            " at the token that decides, than hints of other mistakes and neutral text; needed:"
            " mistakes for 80 % power. A kind is kept if the lower bound is"
            " above hints.min_lift and the mean over no hint above 0."
            f" Measured by recompose hints --audit on {audit.get('student', '')}.",
        ),
        table(rows, head=head, numbers=range(1, 8)),
    )


def _signed(value: object) -> str:
    return f"{value:+.3f}" if isinstance(value, (int, float)) else "–"


def _next_steps(work: Mapping[str, Any], folder_flags: str) -> Html:
    rows = [] if work["hints_written"] else [("recompose hints", "a short text per mistake")]
    rows += [
        (
            "recompose hints --audit",
            "measures whether a hint changes the model; needs PyTorch",
        )
    ]
    rows += [("recompose build && recompose train", "tokens, then a run; needs PyTorch")]
    lines = [f"{_with_flags(command, folder_flags):<60}  # {why}" for command, why in rows]
    return el("pre", "\n".join(lines))


def _with_flags(command: str, folder_flags: str) -> str:
    return " && ".join(part + folder_flags for part in command.split(" && "))
