"""What a teacher is shown: never too much, nothing from after the step, and mostly the same from
one step to the next."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.trace import (
    CLEARED_TEXT,
    Opaque,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.replay.prompt import PromptBudget, Prompts, estimate_message_tokens
from composer_replication.data.teachers.wire import LOST_CALL, NO_RESULT, chat_messages

BUDGET = PromptBudget(max_tokens=2900, head_tokens=290, tail_tokens=720)
FIX = Turn(role="user", author="human", blocks=(Text("Fix the test."),))


def exchange(number: int, *, chars: int = 900) -> list[Turn]:
    call = ToolCall(f"c{number}", "read", {"path": f"{number}.py"})
    result = ToolResult(call.id, f"<{number}>" + "x" * chars, False)
    return [
        Turn(role="assistant", author="m", blocks=(Thinking("hm"), Text(f"Step {number}."), call)),
        Turn(role="tool", author="environment", blocks=(result,)),
    ]


def session(turns: list[Turn], **fields: object) -> Session:
    segments = fields.get("segments") or (Segment(start=0, end=len(turns)),)
    assert isinstance(segments, tuple)
    return Session(id="s1", source=SourceRef(file="f"), turns=tuple(turns), segments=segments)


def long_session(count: int, *, chars: int = 900) -> Session:
    return session(
        [FIX, *(turn for number in range(count) for turn in exchange(number, chars=chars)), FIX]
    )


def test_a_context_that_fits_is_shown_whole_but_for_thinking() -> None:
    opaque = Turn(
        role="assistant", author="m", blocks=(Opaque("server_tool_use", "{}"), Thinking("hm"))
    )
    log = session([FIX, *exchange(0), opaque, FIX])
    prompt = Prompts(log, budget=BUDGET).at(4)
    assert (prompt.results_cut, prompt.messages_left_out, prompt.fits) == (0, 0, True)
    assert [turn.blocks for turn in prompt.turns] == [
        FIX.blocks,
        log.turns[1].blocks[1:],
        log.turns[2].blocks,
    ]


def test_a_long_context_keeps_head_and_tail_whole_and_names_old_results_by_length() -> None:
    log = long_session(20)
    prompt = Prompts(
        log, budget=PromptBudget(max_tokens=5800, head_tokens=290, tail_tokens=720)
    ).at(41)
    assert prompt.fits and prompt.tokens <= 5800 and prompt.turns[0] == FIX
    shown = {result.call_id: result.text for turn in prompt.turns for result in turn.results}
    assert (
        shown["c0"] == "[old result left out: 903 characters]"
        and shown["c19"] == log.turns[40].results[0].text
    )
    shown_whole = [name for name, text in shown.items() if text.startswith("<")]
    assert (
        shown_whole == [f"c{n}" for n in range(20 - len(shown_whole), 20)]
        and 720 <= len(shown_whole) * 366 <= 2160
    )
    assert (
        prompt.messages_left_out == 0
        and [turn.text for turn in prompt.turns if turn.text][1] == "Step 0."
    )


def test_where_that_is_not_enough_the_oldest_exchanges_go_and_are_counted() -> None:
    prompt = Prompts(long_session(150, chars=200), budget=BUDGET).at(301)
    assert (
        prompt.fits
        and prompt.tokens <= 2900
        and prompt.messages_left_out % 2 == 0
        and prompt.messages_left_out > 100
    )
    assert (
        prompt.turns[0] == FIX
        and prompt.turns[1].text == f"[{prompt.messages_left_out} earlier messages left out]"
    )
    assert prompt.turns[2].role == "assistant"
    messages = chat_messages(prompt.turns)
    assert not any(
        NO_RESULT in str(m["content"]) or LOST_CALL in str(m["content"]) for m in messages
    )


def test_no_result_stays_without_its_call_wherever_the_cut_falls() -> None:
    for count in range(40, 160, 3):
        prompt = Prompts(long_session(count, chars=230), budget=BUDGET).at(2 * count + 1)
        assert prompt.messages_left_out and prompt.turns[2].role == "assistant", count
        assert not any(LOST_CALL in str(m["content"]) for m in chat_messages(prompt.turns)), count


def test_one_huge_result_is_cut_in_its_middle() -> None:
    log = session([FIX, *exchange(0, chars=100_000), FIX])
    prompt = Prompts(log, budget=BUDGET).at(3)
    (result,) = prompt.turns[-1].results
    assert (
        prompt.fits
        and result.text.startswith("<0>xx")
        and result.text.endswith("xx")
        and "characters left out]" in result.text
    )
    huge = Turn(
        role="assistant", author="m", blocks=(ToolCall("w", "write", {"text": "y" * 50_000}),)
    )
    # its arguments are its own words, and are not cut at the end
    assert not Prompts(session([FIX, huge, FIX]), budget=BUDGET).at(2).fits


def test_neighbouring_steps_begin_with_the_same_messages() -> None:
    """The borders move in steps: most of 30 neighbouring prompts continue the one before them."""
    log = long_session(60)
    prompts = Prompts(log, budget=PromptBudget(max_tokens=13000, head_tokens=290, tail_tokens=2900))
    shown = [prompts.at(number) for number in range(61, 121, 2)]
    shared = [
        sum(estimate_message_tokens(a) for a, b in zip(x.turns, y.turns, strict=False) if a == b)
        for x, y in itertools.pairwise(shown)
    ]
    continued = sum(
        same >= 0.95 * before.tokens for same, before in zip(shared, shown, strict=False)
    )
    assert continued >= 24


def test_what_was_cleared_or_compacted_is_shown_as_the_student_saw_it() -> None:
    turns = [FIX, *exchange(0), *exchange(1), FIX]
    cleared = session(
        turns,
        segments=(
            Segment(start=0, end=3),
            Segment(start=3, end=6, context=((0, 3),), cleared=("c0",)),
        ),
    )
    assert Prompts(cleared, budget=BUDGET).at(5).turns[2].results[0].text == CLEARED_TEXT
    compacted = session(turns, segments=(Segment(start=0, end=3), Segment(start=3, end=6)))
    assert [
        t.text for t in Prompts(compacted, budget=BUDGET).at(5).turns if t.role == "assistant"
    ] == ["Step 1."]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=30),
    at=st.integers(0, 29),
    tail=st.integers(50, 400),
)
def test_never_over_the_budget_and_never_from_after_the_step(
    sizes: list[int], at: int, tail: int
) -> None:
    turns = [
        FIX,
        *(turn for number, chars in enumerate(sizes) for turn in exchange(number, chars=chars)),
    ]
    number = 1 + 2 * min(at, len(sizes) - 1)
    prompt = Prompts(
        session(turns), budget=PromptBudget(max_tokens=2000, head_tokens=100, tail_tokens=tail)
    ).at(number)
    assert (
        prompt.tokens == sum(map(estimate_message_tokens, prompt.turns))
        and (prompt.tokens <= 2000) == prompt.fits
        and prompt.fits
    )
    assert not any(
        turn.text == f"Step {number // 2}." or f"<{number // 2}>" in str(turn.results)
        for turn in prompt.turns
    )
    messages = chat_messages(prompt.turns)
    assert not any(NO_RESULT in str(m["content"]) for m in messages)


def test_the_protocol_gets_each_result_behind_its_call_and_gaps_are_said() -> None:
    two = Turn(
        role="assistant",
        author="m",
        blocks=(ToolCall("a", "read", {}), ToolCall("b", "read", {"x": 1})),
    )
    stray = Turn(
        role="tool",
        author="environment",
        blocks=(ToolResult("z", "of old"), ToolResult("b", "B", True)),
    )
    steer = Turn(role="user", author="human", blocks=(Text("faster"),))
    messages = chat_messages([two, steer, stray])
    assert [(m["role"], m["content"]) for m in messages] == [
        ("assistant", None), ("tool", NO_RESULT), ("tool", "B"), ("user", "faster"),
        ("user", f"{LOST_CALL}\nof old"),
    ]  # fmt: skip
    assert [m.get("tool_call_id") for m in messages[1:3]] == ["a", "b"]
    assert messages[0]["tool_calls"][1]["function"] == {"name": "read", "arguments": '{"x":1}'}


@pytest.mark.parametrize(
    ("text", "error", "shown"),
    [("", True, "[error]"), ("", None, "[no output]"), ("ok\n", False, "ok")],
)
def test_an_empty_result_is_not_an_empty_message(text: str, error: bool | None, shown: str) -> None:
    call = Turn(role="assistant", author="m", blocks=(ToolCall("a", "read", {}),))
    result = Turn(role="tool", author="environment", blocks=(ToolResult("a", text, error),))
    assert chat_messages([call, result])[1]["content"] == shown
