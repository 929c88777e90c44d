"""The cost model of a replay: in order is cheaper than every prompt for itself, the mistakes alone
are cheaper still."""

from __future__ import annotations

import pytest

from benchmarks.replay_cost import WHOLE, bill_of, row_of, table
from composer_replication.data.replay.prompt import estimate_message_tokens
from composer_replication.data.replay.steps import all_steps
from tests.data.replay.test_gather import talk


def test_in_order_each_message_is_billed_in_full_once() -> None:
    session = talk(steps=4)
    sizes = [estimate_message_tokens(turn) for turn in session.turns]
    bill = bill_of(session, all_steps(session), settings=WHOLE, cached=0.0)
    prefixes = [sum(sizes[:n]) for n in (1, 3, 5, 7)]
    assert (bill.calls, bill.sent, bill.in_order) == (4, sum(prefixes), prefixes[-1])
    tenth = bill_of(session, all_steps(session), settings=WHOLE, cached=0.1)
    assert tenth.in_order == pytest.approx(prefixes[-1] + 0.1 * sum(prefixes[:-1]))


def test_the_table_has_a_line_for_each_session_and_their_sum() -> None:
    rows = [
        row_of(talk(name, steps=6, errors=(2,)), sampled=2, cached=0.1) for name in ("s1", "s2")
    ]
    assert all(
        row.chosen.calls in (2, 3) and row.full.calls == 6 and row.chosen.sent < row.full.sent
        for row in rows
    )
    lines = table(rows, usd=2.0).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [
        "s1",
        "s2",
        "all",
    ] and "full, uncached $" in lines[4]
