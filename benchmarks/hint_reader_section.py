"""The part of docs/benchmarks.md on a reader model beside the rules."""

from __future__ import annotations

from typing import Any


def hint_reader_section(part: dict[str, Any], goals: dict[str, Any]) -> str:
    """Precision and recall on the labelled calls, for the rules and for readers."""
    from page import markdown, provenance  # page imports this module

    def shown(value: float | None) -> str:
        return "none" if value is None else f"{value:.2f}"

    rows = [
        [who, shown(n["precision"]), shown(n["recall"]), str(n["found"]), str(n["unlabelled"])]
        for who, n in part["rows"].items()
    ]
    text = (
        "On the labelled calls of the public sessions (tests/labels/sites.json). The rules were"
        " corrected on these labels, so their numbers are on the data they were tuned on. The"
        " stand-in names every call whose result is marked as an error, without asking a model. Its"
        " row shows the value of distinguishing errors from mistakes. A real reader is not"
        " measured: it"
        " needs a model."
    )
    return "\n\n".join(
        [
            "## A reader's mistakes",
            provenance(part),
            text,
            markdown(["who names them", "precision", "recall", "named", "unlabelled"], rows),
        ]
    )
