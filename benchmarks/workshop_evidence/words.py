"""Pieces of the page: a difference or a ratio with its interval, the cost of an arm, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.channel_names import CHANNELS
from composer_replication.report.claims import OTHER, TARGETED
from composer_replication.report.evaluation_section import METRIC, signed

METRICS: Mapping[str, str] = {
    "targeted": TARGETED,
    "other": OTHER,
    "A_made": "A_made",
    "B_made": "B_made",
    "C_made": "C_made",
}


def pair_of(
    paired: Sequence[Mapping[str, Any]], a: str, b: str, metric: str = METRIC
) -> Mapping[str, Any] | None:
    """The entry a - b of a measure, or None if the two rows were not compared."""
    return next(
        (p for p in paired if (p["a"], p["b"], p.get("metric", METRIC)) == (a, b, metric)), None
    )


def difference_text(pair: Mapping[str, Any]) -> str:
    """A difference with its interval, e.g. "+0.270 [+0.190, +0.350]"."""
    return f"{signed(pair['difference'])} [{signed(pair['low'])}, {signed(pair['high'])}]"


def sign_of(pair: Mapping[str, Any]) -> int:
    """1 or -1 if the whole interval is above or below zero, else 0."""
    return 1 if pair["low"] > 0 else -1 if pair["high"] < 0 else 0


def ratio_text(pair: Mapping[str, Any] | None) -> str:
    """A ratio with its interval, e.g. "0.41 x [0.28, 0.58]"."""
    if pair is None or pair.get("ratio") is None:
        return "-"
    low, high = pair.get("ratio_low"), pair.get("ratio_high")
    bounds = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    return f"{pair['ratio']:.2f} x{bounds}"


def cost_of(arm: Mapping[str, Any]) -> dict[str, float]:
    """The mean CPU-seconds, steps and trained tokens of an arm's runs, and their largest KL."""
    runs = list(arm["runs"].values())
    tokens = {name: sum(run["tokens"][name] for run in runs) / len(runs) for name in CHANNELS}
    drift = [run["kl"] for run in runs if run["kl"] is not None]
    return {
        "cpu_s": sum(run["cpu_s"] for run in runs) / len(runs),
        "steps": sum(run["steps"] for run in runs) / len(runs),
        "kept": sum(run["kept"] for run in runs) / len(runs),
        **({"kl": max(drift)} if drift else {}),
        **{f"{name}_tokens": count for name, count in tokens.items()},
    }


def num_pairs_text(arm: Mapping[str, Any]) -> str:
    """How many pairs an arm on a set of pairs had, over its seeds, e.g. " (1783 pairs)"; "" for
    the other arms."""
    counts = [run["pairs"]["built"] for run in arm["runs"].values() if "pairs" in run]
    return f" ({sum(counts) / len(counts):.0f} pairs)" if counts else ""


def stops_of(arm: Mapping[str, Any]) -> str:
    """The runs that a rule stopped, e.g. "seed 11: kl after 20 steps, back to step 18"."""
    stopped = [(seed, run) for seed, run in sorted(arm["runs"].items()) if run["code"]]
    return "; ".join(
        f"seed {seed}: {run['rule'] or run['state']} after {run['steps']} steps, back to step"
        f" {run['kept']}"
        for seed, run in stopped
    )


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a "|" in a cell would end the cell, so it is escaped."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )
