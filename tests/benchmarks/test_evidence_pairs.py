"""The sets of pairs that the evidence compares: what a slip is, what is raw, what the null test
deals, and rows that are added later."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from benchmarks.workshop_evidence.arms import ARMS, settings_sha256
from benchmarks.workshop_evidence.merge import merged
from benchmarks.workshop_evidence.page import render
from benchmarks.workshop_evidence.pairs import (
    SETS,
    SLIPS,
    TEACHERS,
    noisy,
    null_pairs,
    raw_pairs,
    slipped,
)
from composer_replication.core.errors import DataError
from composer_replication.core.site import Answer
from composer_replication.core.teacher import Request
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.data.replay.agree import AnsweredTurn
from composer_replication.data.teachers.scripted import Scripted
from tests.benchmarks.test_evidence_page import Evidence, difference, evidence, row

__all__ = ["evidence"]
READ = Turn(
    role="assistant",
    author="t",
    blocks=(ToolCall("c0", "read_file", {"path": "a.py", "start": 1}),),
)
DONE = Turn(role="assistant", author="t", blocks=(Text("Done."),))
LIST = Turn(role="assistant", author="t", blocks=(ToolCall("c0", "list_files", {}),))


def request(about: str = "s1:3:-") -> Request:
    return Request(turns=(), about=about)


def test_every_slip_is_another_message_and_each_of_its_own_kind() -> None:
    turns = {slip: slipped(READ, request(), slip=slip) for slip in SLIPS}
    assert len({repr(turn.blocks) for turn in (*turns.values(), READ)}) == len(SLIPS) + 1
    assert (
        turns["empty"].blocks == () and turns["words"].text == "Done." and not turns["words"].calls
    )
    assert turns["unknown_tool"].calls[0].name == "open_read_file"
    assert (
        turns["misfitting"].calls[0].arguments == {"path": "a.py"}
        and turns["another"].calls[0].name == "list_files"
    )
    assert slipped(LIST, request(), slip="another").calls[0].name == "run_tests"
    assert slipped(DONE, request(), slip="unknown_tool").calls[0].name == "list_files"


def test_a_noisy_player_slips_at_its_share_and_always_at_the_same_places() -> None:
    def asked(name: str, share: float, seed: int = 7) -> list[bool]:
        teacher = noisy(
            Scripted("p", "p", lambda _: READ), name=name, family="f", share=share, seed=seed
        )
        replies = [asyncio.run(teacher.ask(request(f"s{n}:1:-"))).turn for n in range(400)]
        assert {turn.author for turn in replies} == {name}
        return [turn.blocks != READ.blocks for turn in replies]

    assert (
        not any(asked("a", 0.0))
        and all(asked("a", 1.0))
        and 0.24 < sum(asked("a", 0.3)) / 400 < 0.36
    )
    assert asked("a", 0.3) == asked("a", 0.3) != asked("b", 0.3) and asked("a", 0.3) != asked(
        "a", 0.3, seed=8
    )
    assert len({family for _, family, _, _ in TEACHERS}) == 4 and set(SETS) == {
        arm.pairs for arm in ARMS.values() if arm.pairs
    }


def place(number: int, student_turn: Turn, **answers: Turn) -> AnsweredTurn:
    turn_answers = tuple(
        Answer(site_id=f"s{number}:1:-", teacher=name, family=name, turn=turn)
        for name, turn in answers.items()
    )
    return AnsweredTurn(
        session_id=f"s{number}", turn=1, student_turn=student_turn, answers=turn_answers
    )


def test_raw_is_every_answer_that_is_another_action_however_many_agree() -> None:
    pairs = list(
        raw_pairs(
            [
                place(1, LIST, a=READ, b=READ, c=LIST, d=slipped(READ, request(), slip="empty")),
                place(2, DONE, a=DONE),
            ]
        )
    )
    assert [(pair.session_id, pair.teachers, bool(pair.chosen.blocks)) for pair in pairs] == [
        ("s1", ("a",), True),
        ("s1", ("b",), True),
        ("s1", ("d",), False),
    ]


def test_the_null_deals_answers_away_and_stops_at_the_number_asked_for() -> None:
    """Each place has its own file; a pair of the null test prefers the file of another
    place."""

    def reads(number: int) -> Turn:
        return Turn(
            role="assistant",
            author="t",
            blocks=(ToolCall("c0", "read_file", {"path": f"{number % 3}.py"}),),
        )

    places = [place(n, LIST, a=reads(n), b=reads(n), c=reads(n)) for n in range(12)]
    pairs = list(null_pairs(places, seed=3, min_families=3, num_pairs=9))
    assert len(pairs) == 9 and len({(p.session_id, str(p.chosen.blocks)) for p in pairs}) == 9
    assert any(pair.chosen.blocks != reads(int(pair.session_id[1:])).blocks for pair in pairs)
    assert list(null_pairs(places, seed=3, min_families=3, num_pairs=0)) == []


def parted(evidence: Evidence) -> tuple[Evidence, Evidence]:
    """The page without the arms of the pairs, and a later file that has them, `before` and
    `preference`."""
    pair_arms = {name for name, arm in ARMS.items() if arm.pairs}
    old, new = copy.deepcopy(evidence), copy.deepcopy(evidence)
    old["about"]["settings_sha256"], new["about"]["command"] = (
        settings_sha256(without=pair_arms),
        "python benchmarks/evidence.py --arms more",
    )
    del new["levels"]["2"]
    for part, keep in (
        (old, lambda name: name not in pair_arms),
        (new, lambda name: name in pair_arms | {"before", "preference"}),
    ):
        for numbers in part["levels"].values():
            numbers["arms"] = {name: arm for name, arm in numbers["arms"].items() if keep(name)}
            numbers["rows"] = [line for line in numbers["rows"] if keep(line["name"])]
            numbers["paired"] = [
                pair for pair in numbers["paired"] if keep(pair["a"]) and keep(pair["b"])
            ]
            numbers["weights_sha256"] = dict.fromkeys(
                (line["name"] for line in numbers["rows"]), "x"
            )
    return old, new


def test_added_rows_stand_beside_the_others_which_stay_as_they_are(evidence: Evidence) -> None:
    old, new = parted(evidence)
    merged_evidence = merged(old, new)
    assert [line["name"] for line in merged_evidence["levels"]["1"]["rows"]] == [
        line["name"] for line in evidence["levels"]["1"]["rows"]
    ]
    first = merged_evidence["levels"]["1"]
    assert (
        all(line in first["rows"] for line in old["levels"]["1"]["rows"])
        and merged_evidence["levels"]["2"] == old["levels"]["2"]
    )
    assert (
        first["paired"][: len(old["levels"]["1"]["paired"]) - 1]
        == old["levels"]["1"]["paired"][:-1]
    )
    compared = {(pair["a"], pair["b"]) for pair in first["paired"]}
    assert {
        ("pairs_curated", "pairs_raw"),
        ("pairs_curated", "before"),
        ("preference", "pairs_curated"),
    } <= compared
    assert (
        merged_evidence["about"]["settings_sha256"] == settings_sha256()
        and merged_evidence["about"]["command"] == old["about"]["command"]
    )
    page = render(merged_evidence)
    assert (
        "`pairs_curated` is not shown to differ from `pairs_raw`" in page
        and "python benchmarks/evidence.py --arms more" in page
    )
    assert "alder-1 (family alder) at 50%" in page and "alder" not in render(old)


def test_a_level_that_the_page_lacks_is_added_whole(evidence: Evidence) -> None:
    old, new = copy.deepcopy(evidence), copy.deepcopy(evidence)
    old["about"]["settings_sha256"] = new["about"]["settings_sha256"] = settings_sha256()
    del old["levels"]["2"]
    merged_evidence = merged(old, {**new, "levels": {"2": new["levels"]["2"]}})
    assert merged_evidence["levels"] == evidence["levels"]


def test_rows_can_be_added_one_after_the_other(evidence: Evidence) -> None:
    old, new = parted(evidence)
    first, second = copy.deepcopy(new), copy.deepcopy(new)
    for numbers, keep in (
        (first["levels"]["1"], ("before", "pairs_raw")),
        (second["levels"]["1"], ("before", "pairs_raw", "pairs_null")),
    ):
        numbers["arms"] = {name: arm for name, arm in numbers["arms"].items() if name in keep}
        numbers["rows"] = [line for line in numbers["rows"] if line["name"] in keep]
        numbers["paired"] = [
            pair for pair in numbers["paired"] if pair["a"] in keep and pair["b"] in keep
        ]
    merged_evidence = merged(merged(old, first), second)
    assert [note["rows"] for note in merged_evidence["about"]["added"]] == [
        ["pairs_raw"],
        ["pairs_null"],
    ]
    names = [line["name"] for line in merged_evidence["levels"]["1"]["rows"]]
    assert len(names) == len(set(names)) and {"pairs_raw", "pairs_null"} <= set(names)
    compared = [
        (pair["a"], pair["b"])
        for pair in merged_evidence["levels"]["1"]["paired"]
        if "metric" not in pair
    ]
    assert len(compared) == len(set(compared)) and ("pairs_null", "before") in compared


def test_a_difference_to_a_row_that_plays_otherwise_now_is_left_out(evidence: Evidence) -> None:
    old, new = parted(evidence)
    new_row = next(line for line in new["levels"]["1"]["rows"] if line["name"] == "preference")
    new_row |= row("preference", 0.07)
    compared = {(pair["a"], pair["b"]) for pair in merged(old, new)["levels"]["1"]["paired"]}
    assert ("preference", "pairs_curated") not in compared and (
        "pairs_curated",
        "pairs_raw",
    ) in compared


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda old, new: new["about"].update(seeds=[1, 2, 3]), "seeds is"),
        (
            lambda old, new: old["about"].update(settings_sha256="0" * 64),
            "no longer those of the page",
        ),
        (lambda old, new: new["levels"]["1"].update(student_sha256="f" * 64), "of another student"),
        (
            lambda old, new: new["levels"]["1"]["rows"][0].update(row("before", 0.2)),
            "plays otherwise",
        ),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(
    evidence: Evidence, spoil: Any, problem: str
) -> None:
    old, new = parted(evidence)
    spoil(old, new)
    with pytest.raises(DataError, match=problem):
        merged(old, new)


def test_pairs_that_an_arm_had_stand_in_its_row(evidence: Evidence) -> None:
    for run in evidence["levels"]["1"]["arms"]["pairs_raw"]["runs"].values():
        run["pairs"] = {"made": 40, "kept": 30, "built": 20}
    assert "is not what the student did (20 pairs)" in render(evidence)
    assert difference("a", "b", 0.0)["low"] < 0
