"""The gate skips exactly the answers that cannot change the result at a turn, under the tiers of
the settings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.site import Answer
from composer_replication.core.trace import Turn
from composer_replication.data.replay.agree import AnsweredTurn, Tier, action_key, weigh_answers
from composer_replication.data.replay.price_gate import (
    is_usable,
    judge_may_decide,
    matches_student,
    still_open,
    why_no_pair,
)
from tests.data.teachers.fake_teacher import calling

COMMANDS = ("pytest -x tests/a.py", "pytest -q tests/a.py", "tox -e unit", "cat tests/a.py", "ls")
"""The first two share a target, the third their intent."""
TIERS: tuple[tuple[Tier, ...], ...] = (
    ("exact",), ("target",), ("intent",), ("exact", "target"), ("target", "intent"),
    ("exact", "target", "intent"),
)  # fmt: skip


def bash(command: str) -> Turn:
    return calling("Bash", command=command)


def place(student_turn: Turn, *turns: Turn, **facts: object) -> AnsweredTurn:
    """A turn with one answer of each family a, b, c, ..."""
    answers = tuple(
        Answer(site_id="s:1:-", teacher=f, family=f, turn=turn)
        for f, turn in zip("abcdefgh", turns, strict=False)
    )
    return replace(
        AnsweredTurn(session_id="s", turn=1, student_turn=student_turn, answers=answers), **facts
    )


def comes_of(at: AnsweredTurn, tiers: Sequence[Tier], min_families: int) -> object:
    """What training uses of a verdict: the pair's chosen action at its tier, or None."""
    verdict = weigh_answers(at, min_families=min_families, tiers=tiers)
    return (
        None
        if verdict.chosen is None
        else (verdict.tier, action_key(verdict.tier)(verdict.chosen.turn))
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    student_command=st.sampled_from(COMMANDS),
    commands=st.lists(st.sampled_from(COMMANDS), max_size=3),
    left=st.integers(0, 2),
    min_families=st.integers(2, 4),
    tiers=st.sampled_from(TIERS),
    erred=st.booleans(),
)
def test_it_is_closed_exactly_where_no_further_answer_changes_what_comes_of_it(
    student_command: str,
    commands: list[str],
    left: int,
    min_families: int,
    tiers: tuple[Tier, ...],
    erred: bool,
) -> None:
    at = place(bash(student_command), *map(bash, commands), erred=erred)
    is_open = still_open(at, left=left, min_families=min_families, tiers=tiers)
    if at.answers and matches_student(at, at.answers[0], tiers=tiers):
        # the one rule that is a wager: who contradicts the student and the first teacher is rarely
        # right
        assert not is_open
        return
    ends = {
        comes_of(
            place(bash(student_command), *map(bash, (*commands, *more)), erred=erred),
            tiers,
            min_families,
        )
        for more in itertools.product(COMMANDS, repeat=left)
    }
    assert is_open == (len(ends) > 1), ends


def test_a_majority_that_the_last_answer_may_tie_is_not_settled() -> None:
    """Two against one, and one answer to come: at two against two there is no pair."""
    at = place(bash("ls"), bash("tox"), bash("tox"), bash("pytest"))
    assert still_open(at, left=1, min_families=2) and comes_of(at, ("exact",), 2) is not None
    assert (
        comes_of(
            replace(at, answers=(*at.answers, replace(at.answers[2], family="d"))), ("exact",), 2
        )
        is None
    )
    assert not still_open(replace(at, answers=at.answers[:2]), left=1, min_families=2)


def test_where_agreement_can_only_be_tied_the_looser_tier_settles_it() -> None:
    """Exactly, one answer equals the student's and two equal each other, so one more makes a tie.
    By target, five contradict the student."""
    runs = [bash(f"pytest -{option} tests/a.py") for option in "xxqsv"]
    at = place(bash("ls"), *runs[:2], bash("ls"), *runs[2:])
    assert not still_open(at, left=1, min_families=4, tiers=("exact", "target"))
    assert still_open(at, left=2, min_families=5, tiers=("exact", "target"))


def test_an_answer_is_used_that_is_as_sure_as_it_has_to_be() -> None:
    answer = Answer(site_id="s:1:-", teacher="a", family="a", turn=bash("ls"), confidence=0.5)
    assert is_usable(answer, min_confidence=0.5) and not is_usable(answer, min_confidence=0.51)
    assert is_usable(replace(answer, confidence=None), min_confidence=1.0) and not is_usable(
        replace(answer, problem="cut_off")
    )


def test_equal_answers_at_a_looser_tier_keep_it_open_and_agreement_at_every_tier_closes_it() -> (
    None
):
    first, second, similar = bash(COMMANDS[0]), bash(COMMANDS[1]), bash("pytest tests/a.py")
    assert not still_open(place(bash("ls"), first, second), left=1, min_families=3)
    assert still_open(
        place(bash("ls"), first, second), left=1, min_families=3, tiers=("exact", "target")
    )
    # another command, on the same file
    assert still_open(place(similar, first), left=2, min_families=3, tiers=("exact", "target"))
    assert still_open(place(similar, first), left=3, min_families=3) and not still_open(
        place(similar, first), left=3, min_families=3, tiers=("target",)
    )


def test_what_a_judge_may_put_together_counts_as_one_until_it_has_spoken() -> None:
    tiers: tuple[Tier, ...] = ("exact", "judge")
    student_turn, first, second, third = (calling(name) for name in ("own", "x", "y", "z"))
    assert still_open(place(student_turn, first, second), left=1, min_families=3, tiers=tiers)
    assert not still_open(place(student_turn, first, second), left=0, min_families=3, tiers=tiers)
    assert not still_open(
        place(student_turn, first, student_turn), left=1, min_families=3, tiers=tiers
    )
    options = {"min_families": 3, "need_evidence": False, "gaps": False}
    assert judge_may_decide(
        place(student_turn, first, second, third), **options
    ) and not judge_may_decide(place(student_turn, first, second, student_turn), **options)
    # two that are not the student's own
    assert not judge_may_decide(
        place(student_turn, first, second, third, student_family="a"), **options
    )
    assert not judge_may_decide(
        place(student_turn, first, second, third), **{**options, "need_evidence": True}
    )


def test_nobody_is_paid_where_no_answers_at_all_make_a_pair() -> None:
    plain, against, late = (
        place(bash("ls")),
        place(bash("ls"), evidence=("own_errored:x",)),
        place(bash("ls"), after_error=True),
    )
    few = {"num_families": 3, "min_families": 3}
    reasons = [
        why_no_pair(at, **few, need_evidence=need, gaps=False)
        for need in (True, False)
        for at in (plain, against, late)
    ]
    assert reasons == ["no_evidence", "", "after_error", "", "", "after_error"]
    assert (
        why_no_pair(against, num_families=2, min_families=3, need_evidence=True, gaps=False)
        == "too_few_families"
    )
    assert (
        why_no_pair(plain, **few, need_evidence=True, gaps=True) == ""
    )  # an environment may still measure that another message leads further
