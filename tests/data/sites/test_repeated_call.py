"""Reading again what is in view and cannot have changed is a mistake."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.trace import (
    HARNESS,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    Turn,
)
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.detectors import answered_calls
from composer_replication.data.sites.repeats import UNCHANGED, canonical_arguments
from tests.data.sites.builder import (
    bash,
    calls,
    failed,
    find,
    human,
    random_segments,
    results,
    session,
)

READ: dict[str, Any] = {"file_path": "a.py"}


def repeats(*turns: Turn, **more: Any) -> list[tuple[int, str | None]]:
    return [
        (s.turn, s.call_id)
        for s in find(session(human("x"), *turns, **more), detectors=("repeated_call",), signals=())
    ]


def read(call_id: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return call_id, "Read", READ | more


def test_the_second_equal_call_is_the_site() -> None:
    assert repeats(
        calls(read("a")), results(("a", "1")), calls(read("b")), results(("b", "1"))
    ) == [(3, "b")]


def test_arguments_are_equal_whatever_their_order_and_description() -> None:
    first = ("a", "Grep", {"pattern": "x", "path": "."})
    second = ("b", "Grep", {"path": ".", "pattern": "x", "description": "again"})
    assert repeats(calls(first), results(("a", "1")), calls(second), results(("b", "1"))) == [
        (3, "b")
    ]


def test_an_agent_that_says_the_file_is_unchanged_is_evidence_too() -> None:
    assert repeats(
        calls(read("a")),
        results(("a", "1")),
        calls(read("b")),
        results(("b", "File unchanged since last read.")),
    ) == [(3, "b")]


def test_reading_calls_and_read_only_commands_in_between_change_nothing() -> None:
    between = (calls(bash("g", "git status && grep x y 2>/dev/null | head")), results(("g", "ok")))
    assert repeats(
        calls(read("a")), results(("a", "1")), *between, calls(read("b")), results(("b", "1"))
    ) == [(5, "b")]


REMINDER = Turn(
    role="user", author=HARNESS, blocks=(Text("a.py was modified by a linter"),), tag="reminder"
)


@pytest.mark.parametrize(
    "between",
    [
        (calls(("e", "Edit", {"file_path": "a.py"})), results(("e", "ok"))),
        (calls(bash("e", "go generate ./...")), results(("e", "ok"))),
        (calls(bash("e", "echo x > a.py")), results(("e", "ok"))),
        (calls(bash("e", "sed -i s/a/b/ a.py")), results(("e", "ok"))),
        (calls(bash("e", "cat $(mktemp)")), results(("e", "ok"))),
        (calls(bash("e", "git branch new")), results(("e", "ok"))),
        (calls(("e", "Task", {"prompt": "fix"})), results(("e", "ok"))),
        (human("I changed it, look again"),),
        (REMINDER,),
        (replace(REMINDER, role="system"),),
    ],
)
def test_anything_that_could_have_changed_the_answer_makes_it_no_repeat(
    between: tuple[Turn, ...],
) -> None:
    assert (
        repeats(
            calls(read("a")), results(("a", "1")), *between, calls(read("b")), results(("b", "1"))
        )
        == []
    )


def test_another_answer_other_arguments_or_an_empty_answer_is_no_repeat() -> None:
    assert (
        repeats(calls(read("a")), results(("a", "1")), calls(read("b")), results(("b", "2"))) == []
    )
    assert (
        repeats(
            calls(read("a")), results(("a", "1")), calls(read("b", offset=2)), results(("b", "1"))
        )
        == []
    )
    assert (
        repeats(calls(read("a")), results(("a", " ")), calls(read("b")), results(("b", " "))) == []
    )


def test_a_call_made_again_after_a_sibling_or_a_human_cancelled_it_is_no_repeat() -> None:
    cancelled = "<tool_use_error>Sibling tool call errored</tool_use_error>"
    assert (
        repeats(calls(read("a")), failed("a", cancelled), calls(read("b")), failed("b", cancelled))
        == []
    )
    assert (
        repeats(
            calls(read("a")),
            failed("a", cancelled),
            calls(read("b")),
            results(("b", cancelled, False)),
        )
        == []
    )


def test_twice_in_one_message_is_no_repeat_for_the_first_answer_was_not_in_view() -> None:
    assert repeats(calls(read("a"), read("b")), results(("a", "1"), ("b", "1"))) == []


def test_tools_that_do_not_only_read_may_be_called_again() -> None:
    poll = ("BashOutput", {"bash_id": "1"})
    assert (
        repeats(calls(("a", *poll)), results(("a", "1")), calls(("b", *poll)), results(("b", "1")))
        == []
    )
    assert (
        repeats(
            calls(bash("a", "make")),
            results(("a", "1")),
            calls(bash("b", "make")),
            results(("b", "1")),
        )
        == []
    )


def test_an_answer_that_left_the_context_may_be_asked_for_again() -> None:
    turns = (
        human("x"),
        calls(read("a")),
        results(("a", "1")),
        calls(read("b")),
        results(("b", "1")),
    )

    def with_segments(*segments: Segment) -> list[str | None]:
        log = Session(id="s1", source=SourceRef(file="a"), turns=turns, segments=segments)
        return [s.call_id for s in find(log, detectors=("repeated_call",), signals=())]

    assert with_segments(Segment(start=0, end=5)) == ["b"]
    assert with_segments(Segment(start=0, end=3), Segment(start=3, end=5, context=((0, 1),))) == []
    assert with_segments(Segment(start=0, end=3), Segment(start=3, end=5, context=((0, 3),))) == [
        "b"
    ]
    assert (
        with_segments(
            Segment(start=0, end=3), Segment(start=3, end=5, context=((0, 3),), cleared=("a",))
        )
        == []
    )


def test_copied_turns_are_not_sites_but_may_be_repeated() -> None:
    turns = (calls(read("a")), results(("a", "1")), calls(read("b")), results(("b", "1")))
    assert repeats(*turns, copied=3) == [(3, "b")]
    assert repeats(*turns, copied=4) == []


# the rule read plainly, call by call --------------------------------------------------------------


def slow_repeats(log: Session) -> list[str]:
    """For each answered call, look back through its context turn by turn: the plain rule, in
    quadratic time."""
    refs = log.calls()
    order = {call_id: i for i, call_id in enumerate(refs)}

    def same(first: ToolCall, second: ToolCall) -> bool:
        return first.name == second.name and canonical_arguments(first) == canonical_arguments(
            second
        )

    site_ids: list[str] = []
    for ref, result, _ in answered_calls(log):
        if ref.call.name != "Read" or not result.text.strip():
            continue
        cleared = log.segment_of(ref.turn).cleared
        for index in reversed(log.context_indices(ref.turn)):
            turn = log.turns[index]
            if turn.role in ("user", "system") or any(c.name != "Read" for c in turn.calls):
                break
            again = [c for c in turn.calls if c.id not in cleared and same(c, ref.call)]
            earlier = next((refs[c.id] for c in again if order[c.id] < order[ref.call.id]), None)
            if (
                earlier is None
                or earlier.result is None
                or earlier.result_turn is None
                or earlier.result_turn >= ref.turn
            ):
                continue
            unchanged = earlier.result.text == result.text or result.text.startswith(UNCHANGED)
            if unchanged and not is_error(earlier.call, earlier.result):
                site_ids.append(ref.call.id)
            break
    return site_ids


@given(st.integers(1, 18), st.randoms(use_true_random=False))
def test_one_pass_finds_what_the_plain_rule_finds(steps: int, random: Any) -> None:
    turns: list[Turn] = [human("go")]
    waiting: list[tuple[str, str, bool | None]] = []
    number = 0
    for _ in range(steps):
        step = random.random()
        if step < 0.06:
            turns.append(human("wait"))
        elif step < 0.12:
            turns.append(
                calls(("edit", "Edit", {"file_path": "a"}), ("late", "Read", {"file_path": "a"}))
            )
        elif step < 0.2 and number:
            # an id used twice
            turns.append(
                calls((f"c{random.randrange(number)}", "Read", {"file_path": random.choice("ab")}))
            )
        else:
            requested = [
                (f"c{number + i}", "Read", {"file_path": random.choice("ab")})
                for i in range(random.choice([1, 1, 2]))
            ]
            number += len(requested)
            turns.append(calls(*requested))
            waiting += [
                (
                    m[0],
                    random.choice(["1", "1", "1", "2", " ", UNCHANGED[0]]),
                    random.choice([None, None, None, True]),
                )
                for m in requested
            ]
        random.shuffle(waiting)
        given_now = len(waiting) if random.random() < 0.8 else random.randint(0, len(waiting))
        if given_now:
            turns.append(results(*waiting[:given_now]))
            del waiting[:given_now]
    if random.random() < 0.1:
        random.shuffle(turns)  # a damaged log: results before their calls
    log = session(*turns, segments=random_segments(len(turns), random))
    assert [s.call_id for s in find(log, detectors=("repeated_call",), signals=())] == sorted(
        slow_repeats(log), key=list(log.calls()).index
    )


def test_work_grows_with_the_number_of_reads_not_with_its_square() -> None:
    """Counted in calls of Python and C functions: a clock would measure a busy machine too."""

    def work(count: int) -> int:
        turns = [human("x")]
        for i in range(count):
            turns += [
                calls((f"c{i}", "Read", {"file_path": f"src/f{i % (count - 100)}.py"})),
                results((f"c{i}", f"text {i % (count - 100)}")),
            ]
        log, events, before = session(*turns), Counter[str](), sys.getprofile()
        sys.setprofile(lambda frame, event, argument: events.update((event,)))
        try:
            sites = find(log, detectors=("repeated_call",), signals=())
        finally:
            sys.setprofile(before)
        assert len(sites) == 100
        return events["call"] + events["c_call"]

    assert work(2000) < 6 * work(500)  # 4 times as many; their square is 16 times as much
