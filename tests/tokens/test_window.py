"""Windows: whole messages, no result without its call, every needed position once, the budget spent
above the targets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.trace import Text, ToolCall, ToolResult, Turn
from composer_replication.tokens.window import (
    SHARED,
    SegmentCosts,
    Window,
    WindowTarget,
    earliest_start,
    head_positions,
    plan_windows,
    run_starts,
    shorter_windows,
    target_window,
    units_of,
)
from tests.tokens.students import long_turns, turn_lists


@st.composite
def plans(draw: st.DrawFn) -> SegmentCosts:
    tokens = tuple(draw(st.lists(st.integers(1, 60), min_size=1, max_size=30)))
    positions = st.integers(0, len(tokens) - 1)
    head = tuple(sorted(draw(st.sets(positions, max_size=2))))
    starts = tuple(sorted({0, *draw(st.sets(positions))}))
    bounds = [*starts, len(tokens)]  # turns between two starts stay together
    units = tuple(tuple(range(a, b)) for a, b in pairwise(bounds) for _ in range(a, b))
    overhead = sum(tokens[p] for p in head) + draw(st.integers(0, 10))
    return SegmentCosts(overhead=overhead, tokens=tokens, head=head, starts=starts, units=units)


@settings(max_examples=400, deadline=None)
@given(plan=plans(), max_tokens=st.integers(20, 400), data=st.data())
def test_every_needed_position_is_covered_once_or_given_back(
    plan: SegmentCosts, max_tokens: int, data: st.DataObject
) -> None:
    positions = st.integers(0, len(plan.tokens) - 1)
    needs = data.draw(
        st.dictionaries(positions, st.tuples(st.integers(0, 30), st.sets(positions)), max_size=5)
    )
    targets = {
        p: WindowTarget(extra=extra, wanted=tuple(w for w in wanted if w < p))
        for p, (extra, wanted) in needs.items()
    }
    trained = sorted(data.draw(st.sets(positions)) - set(targets))
    pending = sorted({*trained, *targets})
    for window in plan_windows(plan, trained=trained, targets=targets, max_tokens=max_tokens):
        if isinstance(window, int):
            pending.remove(window)
            latest = max(s for s in plan.starts if s <= window)
            assert (
                plan.cost(latest, window + 1) + targets.get(window, WindowTarget()).extra
                > max_tokens
            )
            continue
        assert window.start in plan.starts and window.covers[-1] == window.end - 1
        assert plan.cost(window.start, window.end, window.picked) <= max_tokens
        for position in window.covers:
            pending.remove(position)  # once, and only the needed turns
            assert window.start <= position < window.end
            cost = plan.cost(window.start, position + 1, window.picked)
            assert cost + targets.get(position, WindowTarget()).extra <= max_tokens
            if position in targets:
                alone = target_window(
                    plan, position, target=targets[position], max_tokens=max_tokens
                )
                assert alone is not None
                cost_in_window, cost_alone = (
                    plan.cost(w.start, position, w.picked) for w in (window, alone)
                )
                assert SHARED * cost_in_window >= (SHARED - 1) * cost_alone
                wanted = {
                    p for w in targets[position].wanted for p in plan.unit(w) if p < position
                } & set(alone.positions)
                assert wanted <= set(window.positions)
        for p in window.positions:
            if p not in window.head:  # calls and results stay together
                assert {q for q in plan.unit(p) if q < window.end} <= {
                    *window.positions,
                    *window.head,
                } or p in plan.head
    assert pending == []


def test_the_budget_is_spent_above_the_target_and_nothing_stands_behind_the_last_one() -> None:
    plan = SegmentCosts(overhead=10, tokens=(10,) * 40, head=(0,), starts=tuple(range(40)))
    (window,) = plan_windows(plan, trained=[], targets={30: WindowTarget(extra=20)}, max_tokens=200)
    assert window == Window(head=(0,), start=14, end=31, covers=(30,))  # 10 + 17 * 10 + 20 = 200
    assert isinstance(window, Window) and window.positions == (0, *range(14, 31))


def test_what_a_target_refers_to_is_taken_in_with_its_unit_and_costs_the_farthest_turns() -> None:
    units = tuple((p,) if p not in (4, 5, 6) else (4, 5, 6) for p in range(40))
    plan = SegmentCosts(
        overhead=10,
        tokens=(10,) * 40,
        head=(0,),
        starts=tuple(p for p in range(40) if p not in (5, 6)),
        units=units,
    )
    (window,) = plan_windows(
        plan, trained=[], targets={30: WindowTarget(wanted=(5,))}, max_tokens=200
    )
    assert isinstance(window, Window) and window.positions == (0, 4, 5, 6, *range(15, 31))
    large = replace(plan, tokens=(*plan.tokens[:5], 500, *plan.tokens[6:]))
    (without,) = plan_windows(
        large, trained=[], targets={30: WindowTarget(wanted=(5, 2))}, max_tokens=200
    )
    # a turn that can never fit takes no budget from the others
    assert isinstance(without, Window) and without.positions == (0, 2, *range(13, 31))


def test_of_the_turns_that_a_target_refers_to_the_nearest_are_kept() -> None:
    """There is room for two of three beside the target: the nearest ones, not the first ones of the
    session."""
    plan = SegmentCosts(overhead=0, tokens=(10,) * 31, head=(), starts=tuple(range(31)))
    window = target_window(plan, 30, target=WindowTarget(wanted=(2, 11, 20)), max_tokens=30)
    assert window is not None and window.positions == (11, 20, 30)


def test_targets_share_a_window_only_while_none_gives_up_more_than_an_eighth() -> None:
    plan = SegmentCosts(overhead=0, tokens=(10,) * 100, head=(), starts=tuple(range(100)))
    near = list(
        plan_windows(
            plan, trained=[], targets={50: WindowTarget(), 52: WindowTarget()}, max_tokens=200
        )
    )
    # 50 keeps 170 of 190 tokens
    assert near == [Window(head=(), start=33, end=53, covers=(50, 52))]
    # it would keep 160
    far = list(
        plan_windows(
            plan, trained=[], targets={50: WindowTarget(), 53: WindowTarget()}, max_tokens=200
        )
    )
    assert [w.covers for w in far if isinstance(w, Window)] == [(50,), (53,)]
    # all there is fits for both
    short = list(
        plan_windows(
            plan, trained=[], targets={3: WindowTarget(), 18: WindowTarget()}, max_tokens=200
        )
    )
    assert [w.covers for w in short if isinstance(w, Window)] == [(3, 18)]


def test_a_target_whose_hint_does_not_fit_beside_the_others_gets_its_own_window() -> None:
    plan = SegmentCosts(overhead=0, tokens=(10,) * 20, head=(), starts=tuple(range(20)))
    assert list(
        plan_windows(
            plan, trained=[], targets={3: WindowTarget(), 9: WindowTarget()}, max_tokens=100
        )
    ) == [Window(head=(), start=0, end=10, covers=(3, 9))]
    assert list(
        plan_windows(
            plan, trained=[], targets={3: WindowTarget(), 9: WindowTarget(extra=45)}, max_tokens=100
        )
    ) == [
        Window(head=(), start=0, end=4, covers=(3,)),
        Window(head=(), start=5, end=10, covers=(9,)),
    ]
    # the room of the earlier one counts as well
    plan = SegmentCosts(overhead=0, tokens=(10,) * 40, head=(), starts=tuple(range(40)))
    assert list(
        plan_windows(
            plan,
            trained=[],
            targets={30: WindowTarget(extra=45), 31: WindowTarget()},
            max_tokens=100,
        )
    ) == [
        Window(head=(), start=22, end=32, covers=(31,)),
        Window(head=(), start=26, end=31, covers=(30,)),
    ]


def test_trained_messages_have_half_the_budget_above_them_and_the_first_has_the_remainder() -> None:
    plan = SegmentCosts(overhead=10, tokens=(10,) * 40, head=(0,), starts=tuple(range(40)))
    windows = list(plan_windows(plan, trained=[20, 24, 39], targets={}, max_tokens=200))
    assert windows == [
        Window(head=(0,), start=6, end=25, covers=(20, 24)),
        Window(head=(0,), start=21, end=40, covers=(39,)),
    ]


def test_a_target_s_window_trains_the_messages_in_it_that_have_half_the_budget_above_them() -> None:
    plan = SegmentCosts(overhead=0, tokens=(10,) * 40, head=(), starts=tuple(range(40)))
    windows = list(
        plan_windows(plan, trained=[22, 28, 33], targets={35: WindowTarget()}, max_tokens=200)
    )
    assert windows == [
        Window(head=(), start=3, end=23, covers=(22,)),
        Window(head=(), start=16, end=36, covers=(28, 33, 35)),
    ]


def test_a_short_session_is_one_window_and_ends_with_what_is_needed() -> None:
    plan = SegmentCosts(overhead=5, tokens=(5, 5, 5, 5), head=(0,), starts=(0, 1, 3))
    assert list(plan_windows(plan, trained=[1], targets={}, max_tokens=100)) == [
        Window(head=(0,), start=0, end=2, covers=(1,))
    ]
    assert list(
        plan_windows(plan, trained=[0, 3], targets={1: WindowTarget()}, max_tokens=100)
    ) == [Window(head=(0,), start=0, end=4, covers=(0, 1, 3))]


def test_a_target_that_fits_nowhere_is_given_back() -> None:
    plan = SegmentCosts(overhead=5, tokens=(5, 90, 5), head=(0,), starts=(0, 1, 2))
    assert list(
        plan_windows(plan, trained=[2], targets={1: WindowTarget(extra=20)}, max_tokens=100)
    ) == [
        1,
        Window(head=(0,), start=0, end=3, covers=(2,)),
    ]


def test_before_counts_what_was_picked_once() -> None:
    plan = SegmentCosts(overhead=0, tokens=(10,) * 10, head=(), starts=tuple(range(10)))
    assert earliest_start(plan, 9, budget=50, room=50) == 5
    assert earliest_start(plan, 9, budget=50, room=50, picked=(1, 2)) == 7
    assert earliest_start(plan, 9, budget=50, room=50, picked=(8,)) == 5
    assert earliest_start(plan, 9, budget=50, room=50, picked=(0, 1, 2, 3, 4)) is None


@settings(max_examples=100, deadline=None)
@given(turns=turn_lists())
def test_no_run_begins_between_a_call_and_its_result(turns: list[Turn]) -> None:
    position_of_call = {call.id: p for p, turn in enumerate(turns) for call in turn.calls}
    units = units_of(turns)
    for start in range(len(turns)):
        lacking = [
            r
            for turn in turns[start:]
            for r in turn.results
            if r.call_id in position_of_call and position_of_call[r.call_id] < start
        ]
        assert (start in run_starts(turns)) == (not lacking)
        answers = [
            p
            for p, turn in enumerate(turns)
            for r in turn.results
            if r.call_id in {c.id for c in turns[start].calls}
        ]
        assert {start, *answers} <= set(units[start])
        assert all(units[p] == units[start] for p in units[start])


def test_a_result_whose_call_is_in_no_log_stands_in_nobody_s_way() -> None:
    turns = [
        *long_turns(1),
        Turn(role="tool", author="environment", blocks=(ToolResult("lost", "x"),)),
    ]
    assert len(turns) - 1 in run_starts(turns) and units_of(turns)[-1] == (len(turns) - 1,)


def test_the_head_is_system_then_the_first_human_or_the_summary() -> None:
    system = Turn(role="system", author="harness", blocks=(Text("s"),))
    reminder = Turn(role="user", author="harness", blocks=(Text("r"),), tag="reminder")
    human, second_human = (Turn(role="user", author="human", blocks=(Text(t),)) for t in "ab")
    summary = replace(reminder, tag="compact_summary")
    reply = Turn(role="assistant", author="m", blocks=(ToolCall("c", "Read", {}),))
    assert head_positions([system, reminder, human, reply, second_human]) == (0, 2)
    assert head_positions([summary, reply, human]) == (0,)
    assert head_positions([reminder, reply]) == (0,)
    assert head_positions([reply]) == ()


def test_later_starts_keep_what_is_needed_and_what_was_picked() -> None:
    plan = SegmentCosts(overhead=0, tokens=(1,) * 9, head=(), starts=(0, 2, 4, 6, 8))
    windows = list(
        shorter_windows(
            plan, Window(head=(), start=2, end=9, picked=(0, 3), covers=(7,)), keep=[7, 6]
        )
    )
    assert [window.start for window in windows] == [4, 6]
    assert windows[1].positions == (0, 3, 6, 7, 8)
