"""What judges saw, on the page: attempts to cheat by kind, each such episode to be opened, and why
evaluated episodes earned nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.html import Html, el, join, plural, table
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.site_article import turn_block

SHOWN_REASON = 200


def session_block(
    session: Mapping[str, Any], limits: PageLimits, *, seen: Sequence[str] = ()
) -> Html:
    """A rollout that can be opened; what its judge saw and said stands above its turns."""
    outcome = "" if session["outcome"] is None else f", reward {session['outcome']:g}"
    place = f"{session['place']}: " if "place" in session else ""
    left = (
        el("p", plural(session["left_out"], "more turn"), cls="quiet")
        if session["left_out"]
        else None
    )
    above = el("ul", [el("li", cut_end(text, limits.chars)) for text in seen]) if seen else None
    reason = session["reason"]
    verdict = (
        el("p", f"The judge: {cut_end(reason, limits.chars)}", cls="quiet") if reason else None
    )
    turns = [turn_block(turn, limits.chars) for turn in session["turns"]]
    summary = el("summary", f"{place}{session['id']}{outcome}")
    return el("details", summary, above, verdict, turns, left)


def hacks_section(tried: Sequence[Mapping[str, Any]], limits: PageLimits) -> Html:
    """What episodes tried instead of their task, by kind, and each of them to read."""
    kinds = Counter(text.partition(":")[0] for row in tried for text in row["seen"])
    places = Counter(row["place"] for row in tried)
    return join(
        el(
            "p",
            f"{plural(len(tried), 'kept rollout')} tried something else than the task. Such a"
            " rollout earns nothing, even if its code is right. At most eight of a step are kept;"
            " rollouts/hack_attempts in the metrics is the mean of all.",
        ),
        el("p", "; ".join(f"{place}: {n}" for place, n in places.items()), cls="quiet"),
        table(kinds.most_common(), head=("attempt", "times")),
        [session_block(row, limits, seen=row["seen"]) for row in tried[: limits.rows]],
        el("p", f"and {len(tried) - limits.rows} more") if len(tried) > limits.rows else None,
    )


def refused_table(rows: Sequence[Mapping[str, str]], limits: PageLimits) -> Html:
    """Why evaluated episodes earned nothing, in the judge's words."""
    lines = [
        (row["row"], cut_end(row["task"], SHOWN_REASON), cut_end(row["reason"], SHOWN_REASON))
        for row in rows[: limits.rows]
    ]
    return join(
        table(lines, head=("row", "task", "the judge's reason")),
        el("p", f"and {len(rows) - limits.rows} more") if len(rows) > limits.rows else None,
    )
