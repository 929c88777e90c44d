"""Windows: whole messages, no result without its call, every needed position once, nothing beyond the budget."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.trace import Text, ToolCall, ToolResult, Turn
from composer_replication.tokens.window import Plan, Window, head_positions, later_starts, run_starts, windows
from tests.tokens.students import long_turns, turn_lists


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    tokens = tuple(draw(st.lists(st.integers(1, 60), min_size=1, max_size=30)))
    positions = st.integers(0, len(tokens) - 1)
    head = tuple(sorted(draw(st.sets(positions, max_size=2))))
    starts = tuple(sorted({0, *draw(st.sets(positions))}))
    return Plan(overhead=sum(tokens[p] for p in head) + draw(st.integers(0, 10)), tokens=tokens, head=head, starts=starts)


@settings(max_examples=300, deadline=None)
@given(plan=plans(), max_tokens=st.integers(20, 400), data=st.data())
def test_every_needed_position_is_covered_once_or_given_back(plan: Plan, max_tokens: int, data: st.DataObject) -> None:
    positions = st.integers(0, len(plan.tokens) - 1)
    needed = sorted(data.draw(st.sets(positions)))
    extra = data.draw(st.dictionaries(positions, st.integers(0, 30)))
    pending = list(needed)
    for window in windows(plan, needed=needed, extra=extra, max_tokens=max_tokens):
        if isinstance(window, int):
            assert window == pending.pop(0)
            latest = max(s for s in plan.starts if s <= window)
            assert plan.cost(latest, window + 1) + extra.get(window, 0) > max_tokens
            continue
        assert window.start in plan.starts
        assert plan.cost(window.start, window.end) <= max_tokens
        covered = [p for p in pending if p < window.end]
        assert covered and covered[0] >= window.start and covered[-1] == window.end - 1
        for position in covered:
            assert plan.cost(window.start, position + 1) + extra.get(position, 0) <= max_tokens
        pending = pending[len(covered) :]
    assert pending == []


def test_up_to_half_the_budget_stands_before_the_first_needed_message() -> None:
    plan = Plan(overhead=10, tokens=(10,) * 40, head=(0,), starts=tuple(range(40)))
    made = list(windows(plan, needed=[20, 24, 39], extra={}, max_tokens=200))
    assert made == [Window(head=(0,), start=12, end=25), Window(head=(0,), start=31, end=40)]
    assert made[0] == Window(head=(0,), start=12, end=25) and Window(head=(0,), start=12, end=25).positions == (0, *range(12, 25))


def test_a_target_whose_hint_does_not_fit_beside_the_others_gets_its_own_window() -> None:
    plan = Plan(overhead=0, tokens=(10,) * 20, head=(), starts=tuple(range(20)))
    assert list(windows(plan, needed=[3, 9], extra={}, max_tokens=100)) == [Window(head=(), start=0, end=10)]
    assert list(windows(plan, needed=[3, 9], extra={9: 45}, max_tokens=100)) == [
        Window(head=(), start=0, end=4),
        Window(head=(), start=5, end=10),
    ]


def test_a_short_session_is_one_window_and_ends_with_what_is_needed() -> None:
    plan = Plan(overhead=5, tokens=(5, 5, 5, 5), head=(0,), starts=(0, 1, 3))
    assert list(windows(plan, needed=[1], extra={}, max_tokens=100)) == [Window(head=(0,), start=0, end=2)]


@settings(max_examples=100, deadline=None)
@given(turns=turn_lists())
def test_no_run_begins_between_a_call_and_its_result(turns: list[Turn]) -> None:
    made = {call.id: p for p, turn in enumerate(turns) for call in turn.calls}
    for start in range(len(turns)):
        lacking = [r for turn in turns[start:] for r in turn.results if r.call_id in made and made[r.call_id] < start]
        assert (start in run_starts(turns)) == (not lacking)


def test_a_result_whose_call_is_in_no_log_stands_in_nobody_s_way() -> None:
    turns = [*long_turns(1), Turn(role="tool", author="environment", blocks=(ToolResult("lost", "x"),))]
    assert len(turns) - 1 in run_starts(turns)


def test_the_head_is_system_then_the_first_human_or_the_summary() -> None:
    system = Turn(role="system", author="harness", blocks=(Text("s"),))
    reminder = Turn(role="user", author="harness", blocks=(Text("r"),), tag="reminder")
    human, other = (Turn(role="user", author="human", blocks=(Text(t),)) for t in "ab")
    summary = replace(reminder, tag="compact_summary")
    reply = Turn(role="assistant", author="m", blocks=(ToolCall("c", "Read", {}),))
    assert head_positions([system, reminder, human, reply, other]) == (0, 2)
    assert head_positions([summary, reply, human]) == (0,)
    assert head_positions([reminder, reply]) == (0,)
    assert head_positions([reply]) == ()


def test_later_starts_keep_what_is_needed() -> None:
    plan = Plan(overhead=0, tokens=(1,) * 9, head=(), starts=(0, 2, 4, 6, 8))
    made = later_starts(plan, Window(head=(), start=2, end=9), keep=[7, 6])
    assert [window.start for window in made] == [4, 6]
