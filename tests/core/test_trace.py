"""Session: what was in context at a step, which result belongs to which call, and which
contradictions are refused."""

from __future__ import annotations

import pytest
from hypothesis import given

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import (
    CLEARED_TEXT,
    Opaque,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from tests.core.sessions import sessions


def user(text: str) -> Turn:
    return Turn(role="user", author="human", blocks=(Text(text),))


def calling(*ids: str) -> Turn:
    return Turn(
        role="assistant",
        author="m",
        blocks=(Thinking("hm"), Text("now"), *(ToolCall(i, "T", {}) for i in ids)),
    )


def answer(call_id: str, text: str = "ok") -> Turn:
    return Turn(role="tool", author="environment", blocks=(ToolResult(call_id, text),))


def session(turns: tuple[Turn, ...], *segments: Segment, copied: int = 0) -> Session:
    all_segments = segments or (Segment(start=0, end=len(turns)),)
    return Session(
        id="s", source=SourceRef(file="f"), turns=turns, segments=all_segments, copied=copied
    )


PLAIN = (user("go"), calling("a", "b"), answer("b", "rb"), answer("a", "ra"), calling("c"))


def test_parts_of_a_turn() -> None:
    turn = Turn(
        role="assistant",
        author="m",
        blocks=(Thinking("t"), Text("x"), ToolCall("a", "T", {}), Opaque("o", "{}"), Text("y")),
    )
    assert turn.text == "x\ny"
    assert [c.id for c in turn.calls] == ["a"]
    assert turn.results == ()
    assert answer("a").results[0].is_error is None


def test_context_is_what_stands_before() -> None:
    plain_session = session(PLAIN)
    assert plain_session.context(0) == ()
    assert plain_session.context(4) == PLAIN[:4]


def test_context_of_a_later_segment_is_its_ranges_and_its_own_turns() -> None:
    two = session(PLAIN, Segment(start=0, end=2), Segment(start=2, end=5, context=((0, 1),)))
    assert two.context_indices(4) == (0, 2, 3)
    assert two.context_indices(1) == (0,)
    assert two.segment_of(2).start == 2


def test_cleared_results_read_as_cleared_after_the_clearing_only() -> None:
    two = session(
        PLAIN, Segment(start=0, end=4), Segment(start=4, end=5, context=((0, 4),), cleared=("b",))
    )
    assert [t.results[0].text for t in two.context(4) if t.results] == [CLEARED_TEXT, "ra"]
    assert two.turns[2].results[0].text == "rb"
    assert two.turn_in_view(2, at=3).results[0].text == "rb"
    assert two.context(3) == PLAIN[:3]


def test_calls_are_joined_by_id_under_parallel_calls() -> None:
    refs = session(PLAIN).calls()
    assert {
        i: (r.turn, r.result_turn, r.result.text if r.result else None) for i, r in refs.items()
    } == {
        "a": (1, 3, "ra"),
        "b": (1, 2, "rb"),
        "c": (4, None, None),
    }


def test_copied_turns_are_context_and_never_the_session_s_own() -> None:
    assert [i for i, _ in session(PLAIN).assistant_turns()] == [1, 4]
    assert [i for i, _ in session(PLAIN, copied=2).assistant_turns()] == [4]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((Segment(start=1, end=5),), "does not continue at turn 0"),
        ((Segment(start=0, end=4),), "end at turn 4"),
        ((Segment(start=0, end=6),), "does not continue"),
        ((Segment(start=0, end=3), Segment(start=2, end=5)), "does not continue at turn 3"),
        ((Segment(start=0, end=3), Segment(start=3, end=5, context=((2, 4),))), "is not before it"),
        (
            (Segment(start=0, end=3), Segment(start=3, end=5, context=((1, 2), (0, 2)))),
            "holds a turn twice",
        ),
        ((Segment(start=0, end=3), Segment(start=3, end=5, context=((1, 1),))), "is not before it"),
    ],
)
def test_segments_that_contradict_the_turns_are_refused(
    segments: tuple[Segment, ...], message: str
) -> None:
    with pytest.raises(SessionError, match=message):
        session(PLAIN, *segments)


def test_a_turn_that_is_not_there_and_unequal_samples_are_refused() -> None:
    with pytest.raises(SessionError, match="no turn 9"):
        session(PLAIN).context(9)
    with pytest.raises(SessionError, match="2 sampled ids but 1"):
        Sampled((1, 2), (0.0,))


@given(sessions())
def test_no_turn_sees_itself_or_what_came_later(drawn_session: Session) -> None:
    for index in range(len(drawn_session.turns)):
        context = drawn_session.context_indices(index)
        assert list(context) == sorted(set(context))
        assert all(i < index for i in context)
        assert len(drawn_session.context(index)) == len(context)
