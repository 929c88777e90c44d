"""Which turns are asked about, what the asker receives, and what its answers lead to; without torch
or a real teacher."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.core.site import Anchor, Answer, Preference
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.replay.ask import NoResult, failed_turns, follows_error, replay

MODEL = "tiny"


def call(call_id: str, name: str) -> Turn:
    return Turn(role="assistant", author=MODEL, blocks=(ToolCall(call_id, name, {}),))


def result(call_id: str, *, error: bool = False) -> Turn:
    return Turn(role="tool", author="environment", blocks=(ToolResult(call_id, "words", error),))


def words(text: str) -> Turn:
    return Turn(role="assistant", author=MODEL, blocks=(Text(text),))


def session(*turns: Turn, copied: int = 0) -> Session:
    return Session(
        id="s1",
        source=SourceRef(file="f"),
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        copied=copied,
    )


GO = Turn(role="user", author="human", blocks=(Text("go"),))
PARALLEL = Turn(
    role="assistant", author=MODEL, blocks=(ToolCall("c1", "read", {}), ToolCall("c2", "reed", {}))
)


def told_by(turn: Turn, *, families: str = "abc") -> tuple[Answer, ...]:
    return tuple(Answer(site_id="x", teacher=f"t-{f}", family=f, turn=turn) for f in families)


def test_a_pair_keeps_the_sessions_own_message_and_says_who_agreed() -> None:
    recorded = session(GO, call("c1", "list"), result("c1"), words("Done."))
    better = replace(call("x", "search"), author="t-a")
    asked = list(
        replay(
            [recorded],
            lambda s, turn: told_by(better if turn == 1 else words("Done.")),
            min_families=3,
        )
    )
    assert [asked_turn.outcome for asked_turn in asked] == ["pair", "agreed"] and [
        asked_turn.turn for asked_turn in asked
    ] == [
        1,
        3,
    ]
    pair, anchor = asked[0].result, asked[1].result
    assert (
        isinstance(pair, Preference)
        and pair.rejected is None
        and pair.rejected_turn(recorded) is recorded.turns[1]
    )
    assert pair.chosen == better and pair.teachers == ("t-a", "t-b", "t-c")
    prices = {"t-a": 0.0, "t-b": 0.0, "t-c": 0.0}
    expected = {
        "tier": "exact",
        "families": ["a", "b", "c"],
        "of": 3,
        "own_family_left_out": 0,
        "evidence": [],
        "usd": prices,
    }
    assert pair.evidence == expected
    assert anchor == Anchor(
        session_id="s1", turn=3, reason="agreed", teachers=("t-a", "t-b", "t-c")
    )
    assert len(asked[0].answers) == 3


def test_errors_are_found_by_call_id_and_looked_for_before_the_turn_only() -> None:
    """The error of the second parallel call comes first; the message after them follows an error,
    the next one does not."""
    recorded = session(
        GO, PARALLEL, result("c2", error=True), result("c1"),
        call("c3", "read"), result("c3"), words("Done."),
    )  # fmt: skip
    assert failed_turns(recorded) == {1}
    assert [follows_error(recorded, n) for n in (1, 4, 6)] == [False, True, False]
    searching = told_by(call("x", "search"))
    asked = list(replay([recorded], lambda s, turn: searching, min_families=3))
    assert [(asked_turn.turn, asked_turn.outcome) for asked_turn in asked] == [
        (1, "pair"),
        (4, "after_error"),
        (6, "pair"),
    ]
    same = list(replay([recorded], lambda s, turn: told_by(s.turns[turn]), min_families=3))
    assert [(asked_turn.turn, asked_turn.outcome) for asked_turn in same] == [
        (1, "erred"),
        (4, "agreed"),
        (6, "agreed"),
    ]


def test_nobody_is_asked_about_copied_silent_or_interrupted_messages() -> None:
    interrupt = Turn(
        role="user",
        author="harness",
        blocks=(Text("[Request interrupted by user]"),),
        tag="interrupt",
    )
    silent = Turn(role="assistant", author=MODEL, blocks=())
    recorded = session(
        GO, words("a"), words("b"), silent, words("c"), interrupt, words("d"), copied=2
    )
    were_asked: list[int] = []

    def ask(asked: Session, turn: int) -> tuple[Answer, ...]:
        were_asked.append(turn)
        return told_by(asked.turns[turn])

    asked = list(replay([recorded], ask, min_families=3))
    assert were_asked == [2, 6]
    assert [result.outcome for result in asked] == [
        "copied",
        "agreed",
        "no_text_or_call",
        "interrupted",
        "agreed",
    ]
    assert asked[0].result == NoResult(session_id="s1", turn=1, reason="copied")


def test_an_action_that_raises_an_error_is_preferred_to_nothing() -> None:
    better = call("c9", "other")
    recorded = session(GO, call("c1", "look"), result("c1"), words("Done."))
    tried: list[tuple[int, Turn]] = []

    def fails(asked: Session, turn: int, message: Turn) -> bool:
        tried.append((turn, message))
        return True

    asked = list(
        replay(
            [recorded],
            lambda s, turn: told_by(better if turn == 1 else words("Done.")),
            min_families=3,
            fails=fails,
        )
    )
    assert [asked_turn.outcome for asked_turn in asked] == ["chosen_fails", "agreed"]
    # only what would otherwise become a pair
    assert [(turn, message.calls[0].name) for turn, message in tried] == [(1, "other")]


def test_the_maker_of_the_traces_model_has_no_say_unless_told_otherwise() -> None:
    """By default: three models agree, but two of them are of the author's own family."""
    recorded = replace(
        session(GO, call("c1", "list")),
        turns=(GO, replace(call("c1", "list"), author="claude-opus-4-5")),
    )
    better = call("x", "search")
    family_answers = tuple(
        Answer(site_id="x", teacher=t, family=f, turn=better)
        for t, f in (("kimi", "moonshot"), ("sonnet", "anthropic"))
    )
    assert [
        result.outcome for result in replay([recorded], lambda s, t: family_answers, min_families=2)
    ] == ["too_few_families"]
    assert [
        result.outcome
        for result in replay(
            [recorded], lambda s, t: family_answers, min_families=2, family_of=lambda a: ""
        )
    ] == ["pair"]


def test_with_evidence_asked_for_a_pair_needs_a_failure_or_a_measured_gap() -> None:
    flagged = Turn(
        role="tool", author="environment", blocks=(ToolResult("c1", "File does not exist.", True),)
    )
    better, measured = call("x", "search"), list[tuple[int, str]]()

    def gap(asked: Session, turn: int, chosen: Turn) -> float | None:
        measured.append((turn, chosen.calls[0].name))
        return {3: 2.0, 5: 0.0}[turn]

    recorded = session(
        GO, call("c1", "Read"), flagged, call("c2", "list"), result("c2"), call("c3", "list"),
        result("c3"), words("Done."),
    )  # fmt: skip
    asked = list(
        replay([recorded], lambda s, t: told_by(better), min_families=3, need_evidence=True)
    )
    assert [asked_turn.outcome for asked_turn in asked] == [
        "pair",
        "after_error",
        "no_evidence",
        "no_evidence",
    ]
    asked = list(
        replay(
            [recorded],
            lambda s, t: told_by(better if t < 7 else words("Done.")),
            min_families=3,
            need_evidence=True,
            gap=gap,
        )
    )
    assert [asked_turn.outcome for asked_turn in asked] == [
        "pair",
        "after_error",
        "no_evidence",
        "agreed",
    ]
    first = asked[0].result
    assert (
        isinstance(first, Preference)
        and first.evidence["evidence"] == ["own_errored:file_missing"]
        and measured == [(5, "search")]
    )


def test_a_measured_gap_stands_on_the_pair() -> None:
    recorded = session(GO, call("c1", "list"), result("c1"), words("Done."))
    better = call("x", "search")
    asked = list(
        replay(
            [recorded],
            lambda s, t: told_by(better),
            min_families=3,
            need_evidence=True,
            gap=lambda s, t, c: 1.5,
        )
    )
    assert [asked_turn.outcome for asked_turn in asked] == ["pair", "pair"]
    pair = asked[0].result
    assert isinstance(pair, Preference) and pair.evidence["evidence"] == ["gap:1.5"]
    assert asked[0].answered is not None and asked[0].answered.evidence == ("gap:1.5",)


def test_the_authors_family_is_left_out() -> None:
    recorded = session(GO, call("c1", "list"))
    asked = list(
        replay(
            [recorded],
            lambda s, t: told_by(call("x", "search")),
            min_families=3,
            family_of=lambda author: "c" if author == MODEL else "",
        )
    )
    assert [result.outcome for result in asked] == ["outvoted"]


def answered_by(*rows: tuple[str, str, Turn]) -> tuple[Answer, ...]:
    """Answers of (teacher, family, message)."""
    return tuple(Answer(site_id="x", teacher=t, family=f, turn=turn) for t, f, turn in rows)


def recorded_votes(answers: tuple[Answer, ...], *, family: str = "") -> tuple[dict, dict]:
    recorded = session(GO, call("c1", "list"))
    (turn,) = replay([recorded], lambda *_: answers, min_families=3, family_of=lambda _: family)
    record = turn.record()
    return record["votes"], record["no_votes"]


def test_the_record_of_a_turn_says_for_which_action_each_answer_voted_or_why_not() -> None:
    same, search, read = call("x", "list"), call("x", "search"), call("x", "read")
    nothing = Turn(role="assistant", author=MODEL, blocks=())
    votes, no_votes = recorded_votes(
        answered_by(
            ("a1", "a", same),
            ("b1", "b", search),
            ("c1", "c", read),
            ("d1", "d", search),
            ("e1", "e", search),  # of two models of one family that differ neither votes
            ("e2", "e", read),
            ("f1", "f", nothing),
            ("g1", "own", search),
        ),
        family="own",
    )
    assert votes == {"a1": 0, "b1": 1, "d1": 1, "c1": 2}
    assert no_votes == {"e1": "divided", "e2": "divided", "f1": "no_action", "g1": "own_family"}


def test_one_family_alone_is_not_weighed_and_the_minority_of_a_family_has_no_vote() -> None:
    search, read = call("x", "search"), call("x", "read")
    assert recorded_votes(answered_by(("a1", "a", search))) == ({}, {"a1": "not_weighed"})
    votes, no_votes = recorded_votes(
        answered_by(("a1", "a", search), ("a2", "a", search), ("a3", "a", read), ("b1", "b", read))
    )
    assert votes == {"a1": 1, "a2": 1, "b1": 2} and no_votes == {"a3": "divided"}
