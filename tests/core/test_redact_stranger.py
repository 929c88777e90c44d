"""Recall on lists by somebody who had seen neither the rules nor the tests;
tests/core/stranger/README.md says what may be claimed."""

from __future__ import annotations

import pytest

from tests.core.stranger import Share, rows, score

FLOORS = {
    "dev": (0.99, 0.98),
    "sealed": (0.99, 0.98),
    "second": (0.99, 0.98),
    "third": (0.91, 0.84),
}
SIZES = {"dev": (175, 75), "sealed": (175, 75), "second": (190, 70), "third": (160, 60)}
"""List -> least share of the plain and of the wrapped texts that are cleaned.

`sealed` was .920 and .947 when it was opened, `second` .795 and .800; the rules were tuned on their
misses since then, so all of them are development data.
"""


@pytest.mark.parametrize("name", FLOORS)
def test_secrets_of_a_strangers_list_go(name: str) -> None:
    measured, (plain, wrapped) = score(name), FLOORS[name]
    assert (measured.plain.num, measured.wrapped.num) == SIZES[name]
    assert measured.plain.value >= plain, measured.left
    assert measured.wrapped.value >= wrapped, measured.left


def test_the_lists_hold_what_they_say() -> None:
    """Every secret stands in its text: a list whose pieces are not there would be clean without a
    rule."""
    assert [
        row["id"]
        for name in FLOORS
        for row in rows(name)
        if not all(piece in row["text"] for piece in row["secrets"])
    ] == []


def test_wilsons_interval() -> None:
    low, high = Share(161, 175).interval
    assert (low, high) == (0.870, 0.952)
