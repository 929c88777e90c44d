"""The section of a run's page on its replicas: rounds, traffic, who took part, how far apart they
were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.report.charts import Line, line_chart
from composer_replication.report.html import Html, el, join, table

SHOWN_ROUNDS = 40
_HEAD = ("round", "after step", "took part", "MB", "requests", "longest wait, s", "KL", "drift")


def replicas_section(view: Mapping[str, Any]) -> Html:
    """The values of `replicas_view` as tables and charts."""
    rounds = view["rounds"]
    points = [(facts["step"], facts) for facts in rounds]
    kl = [(step, facts["kl"]) for step, facts in points if facts["kl"] is not None]
    return join(
        [
            el("p", _summary(view)),
            table(
                [
                    (r["slot"], r["state"], r["took_part"], r["steps"], r["launches"])
                    for r in view["replicas"]
                ],
                head=("slot", "state", "rounds", "last step", "launches"),
                numbers=(0, 2, 3, 4),
                caption="the replicas",
            ),
            el(
                "div",
                line_chart(
                    "how far the replicas were apart: KL of each to the common weights, nats",
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
                numbers=(0, 1, 3, 4, 5, 6, 7),
                caption=f"rounds, the last {min(SHOWN_ROUNDS, len(rounds))} of {len(rounds)}",
            ),
        ]
    )


def _summary(view: Mapping[str, Any]) -> str:
    """What to look at first."""
    rounds = view["rounds"]
    size = sum(facts["bytes"] for facts in rounds) / 1e6
    missed = sum(facts["missed"] for facts in rounds)
    refused = sum(len(facts["refused"]) for facts in rounds)
    diverged = view["diverged"]
    apart = "in every round all replicas had the same weights, bit for bit"
    if diverged:
        apart = f"the replicas' weights DIFFERED after rounds {diverged}"
    stalls = f"; rounds that stalled: {view['stalls']}" if view["stalls"] else "; no round stalled"
    return (
        f"{len(rounds)} rounds, {size:.2f} MB up and down; {apart}; {missed} moves came too late,"
        f" {refused} were refused{stalls}."
    )


def _row(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    kl = "" if facts["kl"] is None else f"{facts['kl']:.2g}"
    return (
        facts["round"],
        facts["step"],
        ", ".join(str(slot) for slot in facts["slots"]),
        f"{facts['bytes'] / 1e6:.2f}",
        facts["requests"],
        f"{facts['wait_s']:.2f}",
        kl,
        f"{facts['drift']:.2g}",
    )
