"""The committed table of many replicas: what the page shows, and what the code gives again."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from benchmarks.diloco_scale import (
    PAGE,
    REPLICAS,
    RESULT,
    SIZES,
    render,
    rows_of,
)

pytestmark = pytest.mark.train


def test_the_page_has_the_committed_table() -> None:
    result = json.loads(RESULT.read_text("utf-8"))
    assert render(result) in PAGE.read_text("utf-8")
    assert {(row["size"], row["replicas"]) for row in result["rows"]} == {
        (size, n) for size in SIZES for n in REPLICAS
    }


def test_a_row_of_the_committed_table_comes_out_again() -> None:
    """The same seed, the same numbers: the table is this code's."""
    rows = json.loads(RESULT.read_text("utf-8"))["rows"]
    committed = [row for row in rows if (row["size"], row["replicas"]) == ("LoRA of 7B", 32)]
    for row, again in zip(committed, rows_of("LoRA of 7B", 32), strict=True):
        assert row["way"] == again["way"]
        assert row["sync_s"] == pytest.approx(again["sync_s"], rel=1e-6)
        assert row["dollars"] == pytest.approx(again["dollars"], rel=1e-6)
