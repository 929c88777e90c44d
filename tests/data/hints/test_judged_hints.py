"""The table of judged hints in docs/kinds.md is what tests/labels/hints/judged.jsonl says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    json.loads(line)
    for line in (ROOT / "tests/labels/hints/judged.jsonl").read_text("utf-8").splitlines()
]
SIGNALS = ("user_rejected", "user_interrupted", "user_corrected", "taken_back", "broke_check")


def table() -> list[str]:
    """One line per kind: how many hints both judges call good, at least one false."""
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in ROWS:
        kind = row["kind"]
        groups[f"`{kind}`" if kind in SIGNALS else "what a tool reports"].append(row)
        groups["all"].append(row)
    lines = []
    for name, rows in sorted(groups.items(), key=lambda item: -len(item[1])):
        both = Counter(row["A"] for row in rows if row["A"] == row["B"])
        false = sum("false" in (row["A"], row["B"]) for row in rows)
        cells = (name, len(rows), both["good"], both["weak"], both["false"], false)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def test_the_page_has_the_counts_of_the_labels() -> None:
    page = (ROOT / "docs/kinds.md").read_text("utf-8").splitlines()
    assert [line for line in table() if line not in page] == []


def test_the_page_has_the_judges_agreement() -> None:
    n = len(ROWS)
    agreed = sum(row["A"] == row["B"] for row in ROWS)
    a, b = (Counter(row[judge] for row in ROWS) for judge in "AB")
    by_chance = sum(a[verdict] * b[verdict] for verdict in a) / n**2
    kappa = (agreed / n - by_chance) / (1 - by_chance)
    page = (ROOT / "docs/kinds.md").read_text("utf-8")
    assert f"the same verdict on {agreed} of {n}, kappa {kappa:.2f}" in page
