"""When answers agree: families have votes, actions are compared, and some turns are no evidence whatever the answers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from composer_replication.core.site import Answer
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.data.replay.actions import canonical
from composer_replication.data.replay.agree import Verdict, agree


def act(name: str, *, words: str = "", **arguments: Any) -> Turn:
    blocks = (*([Text(words)] if words else []), ToolCall(f"id-{words}-{name}", name, arguments))
    return Turn(role="assistant", author="student", blocks=blocks)


def say(*words: str) -> Turn:
    return Turn(role="assistant", author="student", blocks=tuple(Text(w) for w in words))


def answers(*given: tuple[str, Turn]) -> tuple[Answer, ...]:
    """One answer per (family, turn); the n-th model of a family is called family-n."""
    return tuple(Answer(site_id="s:1:-", teacher=f"{family}-{n}", family=family, turn=turn) for n, (family, turn) in enumerate(given))


LIST, SEARCH, TEST = act("list_files"), act("search", text="depth"), act("run_tests")


def weigh(own: Turn, given: Sequence[tuple[str, Turn]], **more: Any) -> Verdict:
    return agree(own, answers(*given), **{"min_families": 3, **more})


def test_three_families_that_do_another_thing_make_a_pair() -> None:
    verdict = weigh(LIST, [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)])
    assert verdict.outcome == "pair" and verdict.chosen is not None
    assert verdict.chosen.turn == SEARCH and verdict.families == ("a", "b", "c") and verdict.teachers == ("a-0", "b-1", "c-2")


def test_models_of_one_family_are_one_vote() -> None:
    three_of_one = [("a", SEARCH), ("a", SEARCH), ("a", SEARCH), ("b", TEST)]
    assert weigh(LIST, three_of_one).outcome == "no_consensus"
    assert weigh(LIST, [*three_of_one, ("c", SEARCH)]).outcome != "pair"
    own = [("a", LIST), ("a", LIST), ("b", SEARCH), ("c", TEST)]
    assert weigh(LIST, own).outcome == "no_consensus"
    assert weigh(LIST, [*own[1:], ("d", LIST)]).families == ("a", "d")


def test_a_family_whose_models_are_divided_has_no_vote() -> None:
    divided = [("a", SEARCH), ("a", TEST), ("b", SEARCH), ("c", SEARCH)]
    assert weigh(LIST, divided).outcome == "none"
    assert weigh(LIST, divided, min_families=2).families == ("b", "c")
    assert weigh(LIST, [("a", SEARCH), *divided]).families == ("a", "b", "c")  # two of its three models


def test_actions_are_compared_and_not_the_words_beside_them_or_the_order() -> None:
    one = act("edit", words="I change it.", path="a.py", old="1", new="2")
    other = Turn(role="assistant", author="x", blocks=(ToolCall("y", "edit", {"new": "2", "path": "a.py", "old": "1"}),))
    assert canonical(one) == canonical(other)
    assert weigh(one, [("a", other), ("b", other), ("c", other)]).outcome == "agreed"
    assert canonical(act("edit", path="a.py", old="2", new="1")) != canonical(other)
    both = Turn(role="assistant", author="x", blocks=(*LIST.blocks, *SEARCH.blocks))
    assert canonical(both) == canonical(Turn(role="assistant", author="y", blocks=(*SEARCH.blocks, *LIST.blocks))) != canonical(LIST)
    assert canonical(say("All  done.\n")) == canonical(say("All", "done.")) != canonical(say("Done."))
    assert canonical(act("set", n=1)) != canonical(act("set", n="1"))


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ([LIST, LIST, LIST], "agreed"),
        ([LIST, LIST, SEARCH], "agreed"),
        ([LIST, LIST, SEARCH, SEARCH], "no_consensus"),  # another action has as many
        ([LIST, SEARCH, TEST], "no_consensus"),
        ([say("Done."), SEARCH, TEST], "no_consensus"),
        ([SEARCH, SEARCH, LIST], "none"),
        ([SEARCH, SEARCH, TEST], "none"),
        ([SEARCH, SEARCH, SEARCH, TEST, TEST, TEST], "none"),  # two rivals with as many: nobody knows which
    ],
)
def test_what_two_of_three_are_worth(given: list[Turn], outcome: str) -> None:
    verdict = weigh(LIST, list(zip("abcdef", given, strict=False)))
    assert verdict.outcome == outcome and verdict.chosen is None
    assert verdict.reason == ("outvoted" if outcome == "none" else "")
    if outcome == "agreed":
        assert verdict.families == tuple("abc"[: sum(turn is LIST for turn in given)])


def test_after_an_error_only_agreement_with_the_student_counts() -> None:
    against, beside, divided = [SEARCH] * 3, [LIST, LIST, SEARCH], [LIST, SEARCH, TEST]
    results = [weigh(LIST, list(zip("abc", given, strict=True)), after_error=True) for given in (against, beside, divided)]
    assert [r.outcome for r in results] == ["none", "agreed", "none"]
    assert [r.reason for r in results] == ["after_error", "", "after_error"]


def test_a_turn_that_raised_an_error_is_never_an_anchor_but_may_lose_a_pair() -> None:
    wrong = act("read_file", path="a.py")
    for given in ([wrong] * 3, [wrong, SEARCH, TEST]):
        for after in (False, True):
            verdict = weigh(wrong, list(zip("abc", given, strict=True)), erred=True, after_error=after)
            assert (verdict.outcome, verdict.reason) == ("none", "erred")
    assert weigh(wrong, [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)], erred=True).outcome == "pair"


def test_the_students_own_family_has_no_say() -> None:
    given = [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)]
    verdict = weigh(LIST, given, own_family="c")
    assert (verdict.outcome, verdict.reason, verdict.num_own_family, verdict.num_families) == ("none", "outvoted", 1, 2)
    assert weigh(LIST, given, own_family="c", min_families=2).families == ("a", "b")
    alone = weigh(LIST, given[:2], own_family="a")
    assert (alone.outcome, alone.reason) == ("none", "too_few_families")
    assert weigh(LIST, []).reason == "too_few_families"


def test_silence_is_no_action() -> None:
    assert weigh(say(""), [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)]).reason == "no_text_or_call"
    assert weigh(LIST, [("a", say("")), ("b", say(" ")), ("c", say(""))]).outcome == "no_consensus"  # nobody said anything against it
