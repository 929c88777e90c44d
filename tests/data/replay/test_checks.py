"""The null test tells teachers that look at the turn from teachers that always say the same;
leaving one family out shows who carries the pairs."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from composer_replication.core.site import Answer
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.data.replay.agree import AnsweredTurn, weigh_answers
from composer_replication.data.replay.checks import leave_one_out, null_test, shuffle_answers

WEIGH = partial(weigh_answers, min_families=3)
TWO = partial(weigh_answers, min_families=2)


def read(path: str) -> Turn:
    return Turn(role="assistant", author="m", blocks=(ToolCall("c", "Read", {"file_path": path}),))


def answer(family: str, turn: Turn, *, place: str) -> Answer:
    return Answer(site_id=place, teacher=f"t-{family}", family=family, turn=turn)


def place(number: int, turns_by_family: dict[str, Turn]) -> AnsweredTurn:
    name = f"s{number // 4}:{number % 4}"
    answers = tuple(answer(family, turn, place=name) for family, turn in turns_by_family.items())
    return AnsweredTurn(
        session_id=f"s{number // 4}",
        turn=number % 4,
        student_turn=Turn(role="assistant", author="m", blocks=(Text("Done."),)),
        answers=answers,
    )


LOOKING = [place(n, {family: read(f"{n}.py") for family in "abc"}) for n in range(40)]
HABIT = [place(n, {family: read("README.md") for family in "abc"}) for n in range(40)]


def test_teachers_that_look_lose_their_pairs_when_their_answers_are_dealt_anew() -> None:
    result = null_test(LOOKING, weigh=WEIGH, seed=7)
    assert result.pairs == 40 and result.null_pairs < 2 and result.passed is True
    assert result.rate == 1.0 and result.null_rate < 0.05


def test_teachers_that_always_say_the_same_do_not_and_are_told_so() -> None:
    result = null_test(HABIT, weigh=WEIGH, seed=7)
    assert result.pairs == 40 == result.null_pairs and result.passed is False


def test_half_a_habit_is_too_much() -> None:
    mixed = [
        habit if n % 4 else looking
        for n, (habit, looking) in enumerate(zip(HABIT, LOOKING, strict=True))
    ]
    assert null_test(mixed, weigh=TWO, seed=7).passed is False
    rare = [
        looking if n % 4 else habit
        for n, (habit, looking) in enumerate(zip(HABIT, LOOKING, strict=True))
    ]
    assert null_test(rare, weigh=WEIGH, seed=7).passed is True


def test_too_little_says_nothing() -> None:
    assert null_test(LOOKING[:8], weigh=WEIGH, seed=7).passed is None
    assert null_test([], weigh=WEIGH, seed=7).rate == 0.0


def test_every_teacher_keeps_its_answers_and_none_stays_at_its_place() -> None:
    dealt = shuffle_answers(LOOKING, seed=3)
    for family in "abc":
        before = [a.turn for p in LOOKING for a in p.answers if a.family == family]
        after = [a.turn for p in dealt for a in p.answers if a.family == family]
        assert Counter(map(str, before)) == Counter(map(str, after))
        assert all(first != second for first, second in zip(before, after, strict=True))
    for old, new in zip(LOOKING, dealt, strict=True):
        assert {a.site_id for a in new.answers} == {
            a.site_id for a in old.answers
        } and new.student_turn is old.student_turn
        read_paths = {a.turn.calls[0].arguments["file_path"] for a in new.answers}
        # of other sessions only
        assert not read_paths & {f"{n}.py" for n in range(40) if f"s{n // 4}" == old.session_id}
    assert shuffle_answers(LOOKING, seed=3) == dealt != shuffle_answers(LOOKING, seed=4)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_places_of_one_session_can_be_dealt_too(count: int) -> None:
    places = LOOKING[: min(count, 4)]
    moved = [a.turn for p in shuffle_answers(places, seed=1) for a in p.answers if a.family == "a"]
    is_same = [
        moved_place == p.answers[0].turn for moved_place, p in zip(moved, places, strict=True)
    ]
    assert not any(is_same) if len(places) > 1 else all(is_same)


def test_one_family_left_out_shows_who_carries_the_pairs() -> None:
    places = [
        place(
            0, {"a": read("x"), "b": read("x"), "c": read("x")}
        ),  # remains whichever family is left out
        place(1, {"a": read("x"), "b": read("x"), "c": read("y")}),  # needs a and b
        # two against two: each side waits for the other to go
        place(2, {"a": read("x"), "b": read("x"), "c": read("y"), "d": read("y")}),
    ]
    report = {item.family: item for item in leave_one_out(places, weigh=TWO)}
    assert {f: (r.pairs, r.same, r.changed, r.new, r.lost) for f, r in report.items()} == {
        "a": (2, 1, 0, 1, 1),
        "b": (2, 1, 0, 1, 1),
        "c": (3, 2, 0, 1, 0),
        "d": (3, 2, 0, 1, 0),
    }
