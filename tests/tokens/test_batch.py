"""collate: rows, positions and counts; lengths decide attention; nothing is cut."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.tokens.batch import Counts, _targets, collate, count, micro_batches
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    TrainingExample,
)


def view(
    ids: tuple[int, ...], at: int, span: tuple[int, int], hint: tuple[int, ...], site: str = "s:1:c"
) -> HintView:
    return HintView(
        site_id=site,
        kind="bad_args",
        at=at,
        hint_ids=hint,
        span=span,
        target_ids=ids[span[0] : span[1]],
    )


IDS = (10, 11, 12, 13, 14, 15, 16, 17, 18)
FIRST = TrainingExample(
    id="a",
    session_id="s",
    ids=IDS,
    lm_spans=((1, 3), (7, 9)),
    hints=(view(IDS, 3, (4, 6), (90, 91)), view(IDS, 4, (4, 6), (92,), "s:2:c")),
)
SECOND = TrainingExample(id="b", session_id="t", ids=(20, 21, 22, 23), lm_spans=((2, 4),))
PAIR = PreferencePair(
    id="p", session_id="s", prefix_ids=(30, 31), chosen_ids=(32, 33, 34), rejected_ids=(35,)
)


def test_rows_targets_and_counts_of_a_worked_example() -> None:
    batch = collate([FIRST, SECOND], [PAIR], pad_id=0)
    assert batch.student.ids_BT.tolist() == [list(IDS), [20, 21, 22, 23, 0, 0, 0, 0, 0]]
    assert batch.student.lengths_B.tolist() == [9, 4]
    # the hint is inserted, the row ends with the target, and a view never holds another view's hint
    assert batch.teacher.ids_BT.tolist() == [
        [10, 11, 12, 90, 91, 13, 14, 15],
        [10, 11, 12, 13, 92, 14, 15, 0],
    ]
    assert batch.pair.ids_BT.tolist() == [[30, 31, 32, 33, 34], [30, 31, 35, 0, 0]]
    assert list(zip(batch.lm.row_N.tolist(), batch.lm.position_N.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (0, 7),
        (0, 8),
        (1, 2),
        (1, 3),
    ]
    assert batch.lm.ids_N.tolist() == [11, 12, 17, 18, 22, 23]
    assert batch.hint_student.position_N.tolist() == [4, 5, 4, 5]
    assert batch.hint_teacher.position_N.tolist() == [6, 7, 5, 6]
    assert (
        batch.hint_student.ids_N.tolist() == batch.hint_teacher.ids_N.tolist() == [14, 15, 14, 15]
    )
    assert batch.hint_teacher.item_N.tolist() == [0, 0, 1, 1]
    assert batch.response.ids_N.tolist() == [32, 33, 34, 35]
    assert batch.response.item_N.tolist() == [0, 0, 0, 1] and batch.num_pairs == 1
    assert batch.counts == Counts(
        lm_tokens=6,
        lm_spans=3,
        hint_tokens=4,
        hint_views=2,
        hint_weight=4.0,
        hint_view_weight=2.0,
        pair_tokens=4,
        chosen_tokens=3,
        pairs=1,
    )


def test_the_size_of_a_view_is_that_of_its_target_not_of_what_stands_between_its_parts() -> None:
    """Two calls with words between them: a mean over messages divides by the four tokens that are
    trained, not by the seven of the span."""
    parts = dataclasses.replace(
        view(IDS, 2, (2, 9), (90,)), target_ids=(12, 13, 17, 18), parts=((2, 4), (7, 9))
    )
    batch = collate(
        [
            dataclasses.replace(
                FIRST, lm_spans=(), hints=(parts, view(IDS, 4, (4, 6), (92,), "s:2:c"))
            )
        ],
        pad_id=0,
    )
    assert batch.hint_student.position_N.tolist() == [
        2,
        3,
        7,
        8,
        4,
        5,
    ] and batch.hint_student.item_N.tolist() == [0, 0, 0, 0, 1, 1]
    assert batch.hint_size_N.tolist() == [4, 4, 4, 4, 2, 2] and batch.counts.hint_tokens == 6


def test_actions_and_anchors_of_a_worked_example() -> None:
    """Two rollouts; the second message of the first has advantage 0, and so has all of the second
    rollout."""
    acts = (
        SampledMessage(span=(1, 3), logprobs=(-0.5, -0.25), advantage=0.75),
        SampledMessage(span=(4, 6), logprobs=(-1.0, -2.0), advantage=0.0),
    )
    example = dataclasses.replace(
        FIRST,
        lm_spans=(),
        actions=(*acts, SampledMessage(span=(8, 9), logprobs=(-4.0,), advantage=-1.5)),
        anchored=((6, 8),),
    )
    two = dataclasses.replace(
        SECOND,
        lm_spans=(),
        actions=(SampledMessage(span=(2, 4), logprobs=(-1.0, -1.0), advantage=0.0),),
        anchored=((1, 2),),
    )
    batch = collate([two, example], pad_id=0)
    assert list(
        zip(batch.action.row_N.tolist(), batch.action.position_N.tolist(), strict=True)
    ) == [(1, 1), (1, 2), (1, 8)]
    assert batch.action.ids_N.tolist() == [11, 12, 18] and batch.action.item_N.tolist() == [0, 0, 1]
    assert batch.sampled_logp_N.tolist() == [-0.5, -0.25, -4.0] and batch.advantage_N.tolist() == [
        0.75,
        0.75,
        -1.5,
    ]
    assert batch.anchor.ids_N.tolist() == [21, 16, 17] and batch.anchor.item_N.tolist() == [0, 1, 1]
    # policy_tokens: all sampled tokens of both rollouts, those with advantage 0 included
    expected = {
        "action_tokens": 3,
        "policy_tokens": 7,
        "rollouts": 1,
        "sampled_rollouts": 1,
        "anchor_tokens": 3,
        "anchors": 2,
    }
    assert (
        batch.counts
        == Counts(hint_tokens=4, hint_views=2, hint_weight=4.0, hint_view_weight=2.0, **expected)
        and len(batch.lm) == 0
    )


def test_the_first_items_of_targets_are_all_their_tokens() -> None:
    response = collate(
        [],
        [PAIR, dataclasses.replace(PAIR, id="q", chosen_ids=(40,), rejected_ids=(41, 42))],
        pad_id=0,
    ).response
    chosen = response.first(2)
    assert (
        chosen.ids_N.tolist() == [32, 33, 34, 40]
        and chosen.row_N.tolist() == [0, 0, 0, 1]
        and chosen.num_items == 2
    )


def test_a_token_is_predicted_one_position_before() -> None:
    batch = collate([FIRST], pad_id=0)
    hidden_BTD = batch.student.ids_BT[..., None].float()  # the hidden state at j holds the id at j
    assert batch.lm.predictors(hidden_BTD)[:, 0].tolist() == [10, 11, 16, 17]


def test_attention_comes_from_lengths_even_where_the_pad_id_is_text() -> None:
    """pad == eos == 18, which ends the first row."""
    batch = collate([FIRST, SECOND], pad_id=18)
    assert batch.student.attention_BT.tolist() == [[1] * 9, [1] * 4 + [0] * 5]


def test_what_is_empty_has_no_rows() -> None:
    batch = collate([SECOND], pad_id=0)
    assert len(batch.teacher) == len(batch.pair) == len(batch.hint_student) == batch.num_pairs == 0
    assert collate([], [PAIR], pad_id=0).counts == Counts(pair_tokens=4, chosen_tokens=3, pairs=1)


def test_a_target_that_differs_from_its_view_is_an_error() -> None:
    broken = dataclasses.replace(FIRST)
    object.__setattr__(broken.hints[0], "target_ids", (14, 99))  # past the constructor's check
    try:
        with pytest.raises(AlignmentError, match="same target ids"):
            collate([broken], pad_id=0)
    finally:
        object.__setattr__(broken.hints[0], "target_ids", (14, 15))


@pytest.mark.parametrize("span", [(0, 2), (2, 2), (3, 5)])
def test_a_span_that_leaves_its_row_is_an_error(span: tuple[int, int]) -> None:
    rows = collate([SECOND], pad_id=0).student
    with pytest.raises(AlignmentError, match="leaves its row"):
        _targets(rows, [(0, span)])


def test_moving_keeps_everything() -> None:
    batch = collate([FIRST], [PAIR], pad_id=0)
    moved = batch.to("meta")
    assert moved.student.ids_BT.device.type == moved.response.item_N.device.type == "meta"
    assert moved.counts == batch.counts and moved.response.num_items == 2


examples_of = st.lists(st.integers(2, 40), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(lengths=examples_of, pairs=st.integers(0, 5), micro_tokens=st.integers(45, 200))
def test_micro_batches_hold_everything_once_within_the_limit(
    lengths: list[int], pairs: int, micro_tokens: int
) -> None:
    examples = [
        TrainingExample(id=f"e{i}", session_id="s", ids=tuple(range(n)), lm_spans=((1, n),))
        for i, n in enumerate(lengths)
    ]
    sides = [
        dataclasses.replace(PAIR, id=f"p{i}", chosen_ids=tuple(range(1, 4 + i)))
        for i in range(pairs)
    ]
    parts = micro_batches(examples, sides, micro_tokens=micro_tokens)
    assert sorted(e.id for part, _ in parts for e in part) == sorted(e.id for e in examples)
    assert sorted(p.id for _, part in parts for p in part) == sorted(p.id for p in sides)
    for part, pair_part in parts:
        batch = collate(part, pair_part, pad_id=0)
        assert (
            batch.student.ids_BT.numel() <= micro_tokens
            and batch.pair.ids_BT.numel() <= micro_tokens
        )
    totals = [count(*part) for part in parts]
    assert sum(c.lm_tokens for c in totals) == count(examples).lm_tokens


def test_a_row_that_does_not_fit_is_named_never_cut() -> None:
    with pytest.raises(ConfigError, match=r"example a needs 9 tokens.*micro_tokens is 8"):
        micro_batches([FIRST], micro_tokens=8)
    with pytest.raises(ConfigError, match=r"pair p \(both sides\) needs 10 tokens"):
        micro_batches([], [PAIR], micro_tokens=9)
    long_hint = dataclasses.replace(FIRST, hints=(view(IDS, 3, (4, 6), tuple(range(50, 60))),))
    with pytest.raises(ConfigError, match="teacher row of s:1:c in example a needs 16"):
        micro_batches([long_hint], micro_tokens=12)
