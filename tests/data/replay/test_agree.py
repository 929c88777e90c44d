"""When answers agree: each family has one vote, actions are compared, and some turns are no
evidence whatever the answers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from composer_replication.core.site import Answer
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.data.replay.actions import ComparisonContext, canonical_action
from composer_replication.data.replay.agree import TIERS, Agreement, Judge, agree


def act(name: str, *, message_text: str = "", **arguments: Any) -> Turn:
    blocks = (
        *([Text(message_text)] if message_text else []),
        ToolCall(f"id-{message_text}-{name}", name, arguments),
    )
    return Turn(role="assistant", author="student", blocks=blocks)


def say(*texts: str) -> Turn:
    return Turn(role="assistant", author="student", blocks=tuple(Text(w) for w in texts))


def answers(*family_turns: tuple[str, Turn]) -> tuple[Answer, ...]:
    """One answer per (family, turn); the n-th answer is by the model `family-n`."""
    return tuple(
        Answer(site_id="s:1:-", teacher=f"{family}-{n}", family=family, turn=turn)
        for n, (family, turn) in enumerate(family_turns)
    )


LIST, SEARCH, TEST = act("list_files"), act("search", text="depth"), act("run_tests")


def weigh(student_turn: Turn, family_turns: Sequence[tuple[str, Turn]], **more: Any) -> Agreement:
    return agree(student_turn, answers(*family_turns), **{"min_families": 3, **more})


def test_three_families_that_do_another_thing_make_a_pair() -> None:
    verdict = weigh(LIST, [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)])
    assert verdict.outcome == "pair" and verdict.chosen is not None
    assert (
        verdict.chosen.turn == SEARCH
        and verdict.families == ("a", "b", "c")
        and verdict.teachers == ("a-0", "b-1", "c-2")
    )


def test_as_many_families_for_the_student_as_against_it_are_no_pair() -> None:
    tied = [("a", SEARCH), ("b", SEARCH), ("c", LIST), ("d", LIST)]
    assert weigh(LIST, tied, min_families=2).outcome == "no_consensus"
    assert weigh(LIST, [*tied, ("e", SEARCH)], min_families=2).outcome == "pair"


def test_models_of_one_family_are_one_vote() -> None:
    three_of_one = [("a", SEARCH), ("a", SEARCH), ("a", SEARCH), ("b", TEST)]
    assert weigh(LIST, three_of_one).outcome == "no_consensus"
    assert weigh(LIST, [*three_of_one, ("c", SEARCH)]).outcome != "pair"
    student_votes = [("a", LIST), ("a", LIST), ("b", SEARCH), ("c", TEST)]
    assert weigh(LIST, student_votes).outcome == "no_consensus"
    assert weigh(LIST, [*student_votes[1:], ("d", LIST)]).families == ("a", "d")


def test_a_family_whose_models_are_divided_has_no_vote() -> None:
    divided = [("a", SEARCH), ("a", TEST), ("b", SEARCH), ("c", SEARCH)]
    assert weigh(LIST, divided).outcome == "none"
    assert weigh(LIST, divided, min_families=2).families == ("b", "c")
    # two of its three models
    assert weigh(LIST, [("a", SEARCH), *divided]).families == ("a", "b", "c")


def test_actions_are_compared_and_not_the_words_beside_them_or_the_order() -> None:
    first = act("edit", message_text="I change it.", path="a.py", old="1", new="2")
    second = Turn(
        role="assistant",
        author="x",
        blocks=(ToolCall("y", "edit", {"new": "2", "path": "a.py", "old": "1"}),),
    )
    assert canonical_action(first) == canonical_action(second)
    assert weigh(first, [("a", second), ("b", second), ("c", second)]).outcome == "agreed"
    assert canonical_action(act("edit", path="a.py", old="2", new="1")) != canonical_action(second)
    parallel = Turn(role="assistant", author="x", blocks=(*LIST.blocks, *SEARCH.blocks))
    assert (
        canonical_action(parallel)
        == canonical_action(
            Turn(role="assistant", author="y", blocks=(*SEARCH.blocks, *LIST.blocks))
        )
        != canonical_action(LIST)
    )
    assert (
        canonical_action(say("All  done.\n"))
        == canonical_action(say("All", "done."))
        != canonical_action(say("Done."))
    )
    assert canonical_action(act("set", n=1)) != canonical_action(act("set", n="1"))


@pytest.mark.parametrize(
    ("turns", "outcome"),
    [
        ([LIST, LIST, LIST], "agreed"),
        ([LIST, LIST, SEARCH], "agreed"),
        ([LIST, LIST, SEARCH, SEARCH], "no_consensus"),  # another action has as many
        ([LIST, SEARCH, TEST], "no_consensus"),
        ([say("Done."), SEARCH, TEST], "no_consensus"),
        ([SEARCH, SEARCH, LIST], "none"),
        ([SEARCH, SEARCH, TEST], "none"),
        # two rivals with as many: nobody knows which
        ([SEARCH, SEARCH, SEARCH, TEST, TEST, TEST], "none"),
    ],
)
def test_what_two_of_three_are_worth(turns: list[Turn], outcome: str) -> None:
    verdict = weigh(LIST, list(zip("abcdef", turns, strict=False)))
    assert verdict.outcome == outcome and verdict.chosen is None
    assert verdict.reason == ("outvoted" if outcome == "none" else "")
    if outcome == "agreed":
        assert verdict.families == tuple("abc"[: sum(turn is LIST for turn in turns)])


def test_after_an_error_only_agreement_with_the_student_counts() -> None:
    against, beside, divided = [SEARCH] * 3, [LIST, LIST, SEARCH], [LIST, SEARCH, TEST]
    results = [
        weigh(LIST, list(zip("abc", votes, strict=True)), after_error=True)
        for votes in (against, beside, divided)
    ]
    assert [r.outcome for r in results] == ["none", "agreed", "none"]
    assert [r.reason for r in results] == ["after_error", "", "after_error"]


def test_a_turn_that_raised_an_error_is_never_an_anchor_but_may_lose_a_pair() -> None:
    wrong = act("read_file", path="a.py")
    for turns in ([wrong] * 3, [wrong, SEARCH, TEST]):
        for after in (False, True):
            verdict = weigh(
                wrong, list(zip("abc", turns, strict=True)), erred=True, after_error=after
            )
            assert (verdict.outcome, verdict.reason) == ("none", "erred")
    assert weigh(wrong, [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)], erred=True).outcome == "pair"


def test_the_students_own_family_has_no_say() -> None:
    votes = [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)]
    verdict = weigh(LIST, votes, student_family="c")
    assert (verdict.outcome, verdict.reason, verdict.num_own_family, verdict.num_families) == (
        "none",
        "outvoted",
        1,
        2,
    )
    assert weigh(LIST, votes, student_family="c", min_families=2).families == ("a", "b")
    alone = weigh(LIST, votes[:2], student_family="a")
    assert (alone.outcome, alone.reason) == ("none", "too_few_families")
    assert weigh(LIST, []).reason == "too_few_families"


def test_silence_is_no_action() -> None:
    assert weigh(say(""), [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)]).reason == "no_text_or_call"
    # nobody said anything against it
    assert weigh(LIST, [("a", say("")), ("b", say(" ")), ("c", say(""))]).outcome == "no_consensus"


def bash(command: str) -> Turn:
    return act("Bash", command=command)


def test_looser_tiers_are_looked_at_where_the_stricter_gave_nothing() -> None:
    votes = [
        ("a", bash("pytest -x tests/a.py")),
        ("b", bash("pytest -q tests/a.py")),
        ("c", bash("pytest tests/a.py -v")),
    ]
    student_turn = bash("cat tests/a.py")
    assert weigh(student_turn, votes).outcome == "no_consensus"
    verdict = weigh(student_turn, votes, tiers=("exact", "target"))
    assert (verdict.outcome, verdict.tier) == ("pair", "target") and verdict.families == (
        "a",
        "b",
        "c",
    )
    divided = [*votes[:2], ("c", bash("tox -e unit"))]
    assert weigh(student_turn, divided, tiers=("exact", "target")).outcome != "pair"
    assert weigh(student_turn, divided, tiers=("exact", "target", "intent")).tier == "intent"
    exact = [(family, bash("pytest tests/a.py")) for family in "abc"]
    assert weigh(student_turn, exact, tiers=TIERS).tier == "exact"


def test_a_student_that_did_the_same_sort_of_thing_loses_no_pair_at_that_tier() -> None:
    votes = [
        ("a", bash("pytest -x tests/a.py")),
        ("b", bash("pytest -q tests/a.py")),
        ("c", bash("pytest tests/a.py -v")),
    ]
    verdict = weigh(bash("pytest tests/a.py"), votes, tiers=("exact", "target"))
    assert (verdict.outcome, verdict.tier) == ("agreed", "target")


def test_of_like_answers_the_commonest_is_chosen() -> None:
    rare, common = bash("pytest -x tests/a.py"), bash("pytest -q tests/a.py")
    verdict = weigh(
        LIST, [("a", rare), ("b", common), ("c", common)], tiers=("exact", "target"), min_families=3
    )
    assert verdict.chosen is not None and verdict.chosen.turn == common


def test_parallel_calls_are_compared_as_sets() -> None:
    parallel = Turn(role="assistant", author="x", blocks=(*SEARCH.blocks, *TEST.blocks))
    turned = Turn(role="assistant", author="x", blocks=(*TEST.blocks, *SEARCH.blocks))
    assert weigh(LIST, [("a", parallel), ("b", turned), ("c", parallel)]).outcome == "pair"
    assert weigh(LIST, [("a", parallel), ("b", SEARCH), ("c", parallel)]).outcome == "none"


def test_edits_agree_where_the_file_would_read_the_same() -> None:
    scene = ComparisonContext(files={"a.py": "def f():\n    return 1\n"})
    ways = [
        ("1", "2"),
        ("return 1", "return 2"),
        ("def f():\n    return 1", "def f():\n    return 2"),
    ]
    votes = [
        (family, act("Edit", file_path="a.py", old_string=o, new_string=n))
        for family, (o, n) in zip("abc", ways, strict=True)
    ]
    assert (
        weigh(LIST, votes, comparison=scene).outcome == "pair"
        and weigh(LIST, votes).outcome == "no_consensus"
    )
    same = weigh(
        act("Edit", file_path="a.py", old_string="1\n", new_string="2\n"), votes, comparison=scene
    )
    assert same.outcome == "agreed" and same.num_families == 3


def judge_of(family: str, asked: list[tuple[Turn, Turn]]) -> Judge:
    def same(first: Turn, second: Turn) -> bool | None:
        asked.append((first, second))
        return True if {first.text[:4], second.text[:4]} == {"Look"} else None

    return Judge(family=family, same=same)


def test_a_judge_is_asked_last_and_never_one_of_a_family_at_the_table() -> None:
    votes = [("a", say("Look into a.py")), ("b", say("Look at it")), ("c", say("Look there"))]
    asked: list[tuple[Turn, Turn]] = []
    verdict = weigh(say("Done."), votes, tiers=("exact", "judge"), judge=judge_of("z", asked))
    assert (verdict.outcome, verdict.tier) == ("pair", "judge") and asked
    for family, own_family in (("a", ""), ("s", "s")):
        asked.clear()
        verdict = weigh(
            say("Done."),
            votes,
            tiers=("exact", "judge"),
            judge=judge_of(family, asked),
            student_family=own_family,
        )
        assert verdict.outcome == "no_consensus" and not asked
    assert weigh(say("Done."), votes, tiers=("judge",)).reason == "no_judge"
    undecided = Judge(family="z", same=lambda first, second: None)
    assert (
        weigh(say("Done."), votes, tiers=("exact", "judge"), judge=undecided).outcome
        == "no_consensus"
    )


def test_agreement_alone_can_be_too_little() -> None:
    votes = [("a", SEARCH), ("b", SEARCH), ("c", SEARCH)]
    assert weigh(LIST, votes, need_evidence=True).reason == "no_evidence"
    verdict = weigh(LIST, votes, need_evidence=True, evidence=("own_errored:unknown_tool",))
    assert verdict.outcome == "pair" and verdict.evidence == ("own_errored:unknown_tool",)
    assert weigh(SEARCH, votes, need_evidence=True).outcome == "agreed"  # an anchor claims nothing


def test_what_was_paid_to_whom_stands_on_the_verdict() -> None:
    paid_answers = (
        Answer(site_id="s", teacher="kimi", family="a", turn=SEARCH, usd=0.25),
        Answer(site_id="s", teacher="kimi", family="a", turn=SEARCH, usd=0.5),
        Answer(site_id="s", teacher="glm", family="b", turn=SEARCH, usd=0.125),
        Answer(site_id="s", teacher="opus", family="own", turn=LIST, usd=1.0),
    )
    record = agree(LIST, paid_answers, min_families=2, student_family="own").record()
    assert record == {
        "tier": "exact", "families": ["a", "b"], "of": 2, "own_family_left_out": 1, "evidence": [],
        "usd": {"kimi": 0.75, "glm": 0.125, "opus": 1.0},
    }  # fmt: skip
