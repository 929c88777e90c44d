"""The table of the twins in docs/kinds.md, from its JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marked_part

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "kinds_twins.json"
PAGE = ROOT / "docs" / "kinds.md"
BEGIN, END = "<!-- twins -->", "<!-- /twins -->"
ROWS = ("before", "more_sft", "placebo", "after")


def render(value: Mapping[str, Any]) -> str:
    """The rate of each kind's mistake by row, and after - placebo; then the harm, and what the
    intervals exclude."""
    learned: list[str] = []
    open_kinds: list[str] = []
    for entry in value["paired"]:
        kind = entry.get("metric", "").removesuffix("_made")
        if (entry["a"], entry["b"]) == ("after", "placebo") and kind in views_of(value):
            (learned if entry["high"] < 0 else open_kinds).append(f"`{kind}`")
    summary = (
        f"`after - placebo` is below 0 by its whole interval for {', '.join(learned) or 'none'};"
        f" it is not resolved for {', '.join(open_kinds) or 'none'}."
    )
    return "\n".join([*_table(value, ""), "", *_table(value, "_control"), "", summary])


def views_of(value: Mapping[str, Any]) -> Counter[str]:
    """How many messages the hint channel trained on, by kind, over all seeds."""
    views: Counter[str] = Counter()
    for data in value["data"].values():
        views.update(data["views"])
    return views


def _table(value: Mapping[str, Any], suffix: str) -> list[str]:
    """One line per kind."""
    head = "mistake" if not suffix else "habit left out where it is right"
    columns = [head, *([] if suffix else ["sites"]), "tasks", *(f"`{name}`" for name in ROWS)]
    lines = [
        f"| {' | '.join(columns)} | `after - placebo` |",
        "|---" * (len(columns) + 1) + "|",
    ]
    differences = {
        entry.get("metric", ""): entry
        for entry in value["paired"]
        if (entry["a"], entry["b"]) == ("after", "placebo")
    }
    kinds = [name for name in value["rows"]["after"] if name != "success"]
    for kind in (name for name in kinds if name.endswith("_control") == bool(suffix)):
        shares = " | ".join(_share(value["rows"][name][kind]["made"]) for name in ROWS)
        entry = differences.get(f"{kind}_made")
        paired = (
            f"{_share(entry['difference'], sign=True)}"
            f" [{_share(entry['low'], sign=True)}, {_share(entry['high'], sign=True)}]"
            if entry
            else ""
        )
        n = value["rows"]["after"][kind]["n"]
        sites = "" if suffix else f"{views_of(value)[kind]} | "
        lines.append(f"| `{kind.removesuffix('_control')}` | {sites}{n} | {shares} | {paired} |")
    return lines


def _share(number: float, *, sign: bool = False) -> str:
    """Two digits without the leading zero.

    >>> _share(0.25), _share(-0.5, sign=True), _share(1.0)
    ('.25', '-.50', '1.00')
    """
    text = f"{number:+.2f}" if sign else f"{number:.2f}"
    return text.replace("0.", ".", 1) if abs(round(number, 2)) < 1 else text


def write_page() -> None:
    """Put the table of the committed JSON into docs/kinds.md."""
    marked_part.write(PAGE, BEGIN, END, render(json.loads(RESULTS.read_text("utf-8"))))
