"""The part of docs/benchmarks.md on the size of the pages and the time to open them."""

from __future__ import annotations

from typing import Any

TEXT = (
    "The pages of `recompose report` on synthetic sessions of one mistake each; with answers, three"
    " teachers at every site.\n\n"
    "- **In full**: the sites and answered turns whose messages are on the page. The others are"
    " rows of its lists, and the page says how many.\n"
    "- **Drawn**: the seconds that `report` takes.\n"
    "- **Times**: in a headless Chromium, the median of three new windows. The first two are from"
    " the address to the first paint and to usable lists. The others are from an input to the next"
    " painted frame, for the first search of a list (of the answers if there are any), the next"
    " one, and a filter."
)
NAMES = ("first paint", "usable", "first search", "next search", "filter")


def page_size_section(part: dict[str, Any], goals: dict[str, Any]) -> str:
    """Size and times of each page and number of sites, against the goals."""
    from page import markdown, provenance  # page imports this module

    goal = goals["page_size"]
    rows = []
    for row in part["rows"]:
        ms = row["ms"]
        met = row["kb"] <= goal["kb"] and ms.get("usable", 0.0) <= goal["usable_ms"]
        rows.append(
            [
                row["page"] + (", with answers" if row["answers"] else ""),
                f"{row['sites']:,}",
                f"{row['kb']:.0f}",
                f"{row['in_full']:,}",
                f"{row['drawn_s']:.1f}",
                *(f"{ms[name]:.0f}" if name in ms else "not measured" for name in NAMES),
                ("met" if met else "**missed**") if ms else "",
            ]
        )
    heads = ["page", "sites", "kB", "in full", "drawn, s", *(f"{name}, ms" for name in NAMES)]
    wanted = f"{goal['kb'] / 1000:g} MB, usable in {goal['usable_ms'] / 1000:g} s"
    table = markdown([*heads, f"goal: {wanted}"], rows)
    return "\n\n".join(["## The pages in a browser", provenance(part), TEXT, table])
