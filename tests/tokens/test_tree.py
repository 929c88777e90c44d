"""The forest of rows: shared prefixes are held once, and every token sees exactly its own row up to
itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.errors import AlignmentError
from composer_replication.tokens.tree import _BLOCK, Forest, ForestBuilder, Pass

Row = tuple[int, ...]
rows_of_few_ids = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=9
)


def prefixes(rows: list[Row]) -> set[Row]:
    return {row[:n] for row in rows for n in range(1, len(row) + 1)}


def check_row(plan: Pass, number: int, row: Row, *, window: int | None = None) -> None:
    """A row's tokens, their positions, and the tokens that each of them sees."""
    below = plan.cached
    ids_K = torch.cat([below.ids_Q, plan.ids_Q]) if below is not None else plan.ids_Q
    places = plan.packed(number)
    assert ids_K[places].tolist() == list(row)
    assert plan.seen[0][places].tolist() == list(range(len(row)))
    mask_QK = plan.mask_QK(window=window)
    for position, place in enumerate(places.tolist()):
        if place >= plan.offset:
            first = 0 if window is None else max(0, position - window + 1)
            assert mask_QK[place - plan.offset].nonzero()[:, 0].tolist() == sorted(
                places[first : position + 1].tolist()
            )


def check_chains(plan: Pass) -> None:
    """Chains and intervals describe the same visible tokens."""
    mask_QK = torch.zeros(plan.size, plan.offset + plan.size, dtype=torch.bool)
    for chain in plan.chains:
        span = chain.span
        for query in range(span.start, span.end):
            for part in chain.above:
                shift = 0 if part.cached else plan.offset
                mask_QK[query, shift + part.start : shift + part.end] = True
            mask_QK[query, plan.offset + span.start : plan.offset + query + 1] = True
        ends = [part.depth + part.end - part.start for part in chain.above]
        # consecutive positions from the root on
        assert [part.depth for part in (*chain.above, span)] == [0, *ends]
    assert torch.equal(mask_QK, plan.mask_QK())


@settings(max_examples=150, deadline=None)
@given(rows_of_few_ids)
def test_each_row_is_there_and_sees_itself(rows: list[Row]) -> None:
    forest = Forest.grow(rows)
    plan = forest.over(range(len(rows)))
    assert plan.size == len(prefixes(rows)) == plan.cost.tokens
    assert plan.cost.pairs == int(plan.mask_QK().sum())
    check_chains(plan)
    for number, row in enumerate(rows):
        check_row(plan, number, row)
        check_row(plan, number, row, window=3)


@settings(max_examples=150, deadline=None)
@given(rows_of_few_ids, st.data())
def test_a_pass_over_some_rows_and_the_rest_on_its_cache(
    rows: list[Row], data: st.DataObject
) -> None:
    first = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    remaining = sorted(set(range(len(rows))) - set(first))
    forest = Forest.grow(rows)
    below = forest.over(first)
    above = forest.over(remaining, cached=below)
    assert below.size == len(prefixes([rows[i] for i in first])) and below.size + above.size == len(
        prefixes(rows)
    )
    for plan, numbers in ((below, first), (above, remaining)):
        check_chains(plan)
        for number in numbers:
            check_row(plan, number, rows[number])


@settings(max_examples=100, deadline=None)
@given(rows_of_few_ids)
def test_a_grower_knows_what_a_row_would_add(rows: list[Row]) -> None:
    grower, seen_blocks = ForestBuilder(), set()
    for row in rows:
        new = prefixes([row]) - seen_blocks
        assert grower.missing(row) == len(new)
        grower.add(row)
        seen_blocks |= new
        assert grower.tokens == len(seen_blocks) and grower.missing(row) == 0


@pytest.mark.parametrize("length", [_BLOCK - 1, _BLOCK, _BLOCK + 1, 3 * _BLOCK + 7])
def test_long_rows_part_where_they_differ(length: int) -> None:
    row = tuple(range(1, length + 1))
    for at in (1, length // 2, length - 1):
        other_row = (*row[:at], 0, *row[at + 1 :])
        assert Forest.grow([row, other_row]).over([0, 1]).size == 2 * length - at
    assert Forest.grow([row, row[: length // 2], row]).over([0, 1, 2]).size == length


def test_a_session_with_a_hint_and_a_pair() -> None:
    """Trunk 0-9, a mistake at 5-7 with a hint above it, a chosen answer in its place; the rejected
    one is the trunk's own turn."""
    trunk = tuple(range(10))
    teacher, chosen, rejected = (*trunk[:5], 20, 21, *trunk[5:8]), (*trunk[:5], 30, 31), trunk[:8]
    forest = Forest.grow([trunk, chosen, rejected, teacher])
    student = forest.over([0, 1, 2])
    hints = forest.over([3], cached=student)
    assert (student.size, hints.size) == (12, 5)
    # the trunk stays in one piece
    assert student.packed(2).tolist() == student.packed(0)[:8].tolist() == list(range(8))
    assert student.position_Q[student.packed(1)].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert hints.packed(3).tolist() == [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
    (chain,) = hints.chains
    assert [(part.start, part.end, part.cached) for part in chain.above] == [
        (0, 5, True)
    ] and chain.span.depth == 5


def test_what_has_no_place_is_an_error() -> None:
    with pytest.raises(AlignmentError, match="without a token"):
        Forest.grow([(1, 2), ()])
    forest = Forest.grow([(1, 2), (1, 3), (4,)])
    below = forest.over([0])
    above = forest.over([1], cached=below)
    with pytest.raises(AlignmentError, match="row 2 is not part of this pass"):
        above.packed(2)
    with pytest.raises(AlignmentError, match="one other pass only"):
        forest.over([2], cached=above)
    empty = forest.over([0], cached=below)
    assert (
        empty.size == 0
        and empty.packed(0).tolist() == [0, 1]
        and empty.cost == (0, 0)
        and len(empty.position_Q) == 0
    )
