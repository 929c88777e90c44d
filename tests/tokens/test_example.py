"""The constructors refuse every view that does not line up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.errors import AlignmentError
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    TrainingExample,
    TurnSpan,
    example_from_json,
    example_to_json,
    pair_from_json,
    pair_to_json,
)

STUDENT = (1, 2, 3, 4, 5, 6)
VIEW = HintView(site_id="s", kind="k", at=2, hint_ids=(9, 9), span=(4, 6), target_ids=(5, 6))
SPAN = TurnSpan(turn=0, role="user", start=0, end=6, body=(0, 0))
EXAMPLE = TrainingExample(
    id="e", session_id="s", ids=(*STUDENT, 7), lm_spans=((1, 3),), hints=(VIEW,), turns=(SPAN,)
)
PAIR = PreferencePair(id="p", session_id="s", prefix_ids=(1,), chosen_ids=(2,), rejected_ids=(3, 4))


def from_renderings(student: tuple[int, ...], teacher: tuple[int, ...], **change: Any) -> HintView:
    arguments = {
        "span": (4, 6),
        "at": 2,
        "hint_text": "9",
        "decode": lambda ids: " ".join(map(str, ids)),
        "site_id": "s",
        "kind": "k",
    }
    return HintView.from_renderings(student, teacher, **(arguments | change))


@given(
    student=st.lists(st.integers(0, 9), min_size=3, max_size=12),
    hint=st.lists(st.integers(10, 19), min_size=1, max_size=4),
    data=st.data(),
)
def test_an_insertion_is_accepted_and_any_other_change_is_not(
    student: list[int], hint: list[int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(1, len(student) - 1))
    at = data.draw(st.integers(1, begin))
    teacher = (*student[:at], *hint, *student[at:])
    view = from_renderings(
        tuple(student), teacher, span=(begin, len(student)), at=at, hint_text=str(hint[0])
    )
    example = TrainingExample(id="e", session_id="s", ids=tuple(student), hints=(view,))
    assert example.teacher_ids(view) == teacher and view.hint_ids == tuple(hint)
    position = data.draw(
        st.sampled_from([i for i in range(len(teacher)) if not at <= i < at + len(hint)])
    )
    changed = (*teacher[:position], 99, *teacher[position + 1 :])
    with pytest.raises(AlignmentError, match="not the student's with one insertion"):
        from_renderings(
            tuple(student), changed, span=(begin, len(student)), at=at, hint_text=str(hint[0])
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"at": 0}, "must stand above its target"),
        ({"at": 5}, "must stand above its target"),
        ({"span": (4, 4), "target_ids": ()}, "must stand above its target"),
        ({"hint_ids": ()}, "an empty hint"),
        ({"span": (3, 6)}, "does not hold 2 ids"),
    ],
)
def test_a_view_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AlignmentError, match=message):
        replace(VIEW, **change)


def test_renderings_that_do_not_end_with_the_target_or_lack_the_hint_are_refused() -> None:
    teacher = (1, 2, 9, 9, 3, 4, 5, 6)
    assert from_renderings(STUDENT, teacher) == VIEW
    with pytest.raises(AlignmentError, match="must end with its target"):
        from_renderings((*STUDENT, 7), (*teacher, 7))
    with pytest.raises(AlignmentError, match="hint's text is not in the inserted ids"):
        from_renderings(STUDENT, teacher, hint_text="8")
    with pytest.raises(AlignmentError, match="one insertion"):
        from_renderings(STUDENT, STUDENT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_spans": ((0, 2),)}, "has nothing before it"),
        ({"lm_spans": ((3, 4), (1, 2))}, "out of order"),
        ({"lm_spans": ((2, 2),)}, "out of order"),
        ({"lm_spans": ((6, 8),)}, "outside 1-7"),
        ({"lm_spans": ((3, 5),)}, "lm_ce would train on the mistaken message of s"),
        ({"ids": (1, 2, 3, 4, 6, 5, 7)}, "not what stands at 4-6"),
        ({"ids": STUDENT[:5]}, "not what stands at 4-6"),
    ],
)
def test_an_example_that_contradicts_its_views_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(AlignmentError, match=message):
        replace(EXAMPLE, **change)


def test_pairs_need_three_parts_and_two_sides() -> None:
    for change in ({"prefix_ids": ()}, {"chosen_ids": ()}, {"rejected_ids": ()}):
        with pytest.raises(AlignmentError, match="at least one token"):
            replace(PAIR, **change)
    with pytest.raises(AlignmentError, match="same tokens"):
        replace(PAIR, rejected_ids=(2,))


def test_json_there_and_back_and_what_is_no_example() -> None:
    assert example_from_json(example_to_json(EXAMPLE)) == EXAMPLE
    assert pair_from_json(pair_to_json(PAIR)) == PAIR
    with pytest.raises(AlignmentError, match=r"not an example.*recompose build"):
        example_from_json({"id": "e"})
    with pytest.raises(AlignmentError, match="not a pair"):
        pair_from_json({"id": "p"})
