"""The section of a run's page on its replicas: rounds, traffic, participation and drift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.report.charts import Line, line_chart
from composer_replication.report.html import Html, el, join, plural, table
from composer_replication.report.replicas_view import last_to_come

SHOWN_ROUNDS = 40
_HEAD = (
    *("round", "after step", "took part", "last to arrive", "MB", "requests", "longest wait, s"),
    *("KL", "drift"),
)
_MEANINGS = (
    "KL: the largest KL of a replica to the common weights, before it took them. Drift: the spread"
    " of the pseudo-gradients around their mean, divided by the norm of the mean; 0 = all equal,"
    " the square root of their number less one = nothing in common."
)


def replicas_section(view: Mapping[str, Any]) -> Html:
    """The values of `replicas_view` as tables and charts."""
    rounds = view["rounds"]
    points = [(facts["step"], facts) for facts in rounds]
    kl = [(step, facts["kl"]) for step, facts in points if facts["kl"] is not None]
    return join(
        [
            el("p", summary_text(view)),
            table(
                [
                    (
                        *(r["slot"], r["state"], r["took_part"], r["late"], r["refused"]),
                        *(f"{r['wait_s']:.2f}", r["steps"], r["launches"]),
                    )
                    for r in view["replicas"]
                ],
                head=(
                    *("slot", "state", "rounds", "too late", "refused", "waited, s"),
                    *("last step", "launches"),
                ),
                numbers=(0, 2, 3, 4, 5, 6, 7),
                caption="the replicas",
            ),
            el(
                "div",
                line_chart(
                    "drift of the replicas: KL of each to the common weights, nats",
                    [Line("largest KL", "c1", kl)],
                ),
                line_chart(
                    "the longest wait of a round, seconds",
                    [Line("wait", "c3", [(step, facts["wait_s"]) for step, facts in points])],
                ),
                cls="charts",
            ),
            table(
                [_row(facts) for facts in rounds[-SHOWN_ROUNDS:]],
                head=_HEAD,
                numbers=(0, 1, 3, 4, 5, 6, 7, 8),
                caption=f"rounds, the last {min(SHOWN_ROUNDS, len(rounds))} of {len(rounds)}",
            ),
            el("p", _MEANINGS),
        ]
    )


def summary_text(view: Mapping[str, Any]) -> str:
    """The section in one sentence.

    >>> wait = {"bytes": 2000000, "late": [], "refused": {}, "wait_s": 1.0}
    >>> view = {"rounds": [wait], "diverged": [], "stalls": [], "together": False}
    >>> summary_text({**view, "replicas": [{"slot": 2, "wait_s": 1.0}]})[:50]
    'replica 2 (this run has no records of the others):'
    """
    rounds, diverged = view["rounds"], view["diverged"]
    size = sum(facts["bytes"] for facts in rounds) / 1e6
    late = sum(len(facts["late"]) for facts in rounds)
    refused = sum(len(facts["refused"]) for facts in rounds)
    if not view["together"]:
        slot = view["replicas"][0]["slot"]
        who = f"replica {slot} (this run has no records of the others): "
        apart = "after every round its weights were the committed ones, bit for bit"
    elif diverged:
        who, apart = "", f"the replicas' weights DIFFERED after rounds {diverged}"
    else:
        who, apart = "", "after every round all replicas had the same weights, bit for bit"
    stalls = (
        f"rounds that waited five times as long as usual: {', '.join(map(str, view['stalls']))}"
        if view["stalls"]
        else "no round stalled"
    )
    return (
        f"{who}{plural(len(rounds), 'round')}, {size:.2f} MB up and down; {apart};"
        f" {plural(late, 'pseudo-gradient')} too late, {refused} refused; {stalls}."
    )


def _row(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    kl = "" if facts["kl"] is None else f"{facts['kl']:.2g}"
    return (
        facts["round"],
        facts["step"],
        ", ".join(str(slot) for slot in facts["slots"]),
        "" if (last := last_to_come(facts)) is None else last,
        f"{facts['bytes'] / 1e6:.2f}",
        facts["requests"],
        f"{facts['wait_s']:.2f}",
        kl,
        f"{facts['drift']:.2g}",
    )
