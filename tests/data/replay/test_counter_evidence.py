"""Objective evidence: what an error, a human and an outcome say against a message, and what they do
not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.replay.counter_evidence import evidence_against

GO = Turn(role="user", author="human", blocks=(Text("go"),))
REFUSED = "The user doesn't want to proceed with this tool use. The tool use was rejected."


def after(name: str, text: str, *, error: bool | None = True, **arguments: str) -> Session:
    call = Turn(role="assistant", author="m", blocks=(ToolCall("c1", name, arguments),))
    result = Turn(role="tool", author="environment", blocks=(ToolResult("c1", text, error),))
    return Session(
        id="s",
        source=SourceRef(file=""),
        turns=(GO, call, result),
        segments=(Segment(start=0, end=3),),
    )


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (after("Read", "File does not exist.", file_path="a"), "own_errored:"),
        (after("Edit", REFUSED), "human_rejected:"),
        # a failing test is no mistake of the call that runs it
        (after("Bash", "Exit code 1\n1 failed, 3 passed in 0.1s", command="pytest -q"), ""),
        (after("Bash", "Sibling tool call errored", command="ls"), ""),
        (after("Read", "File does not exist.", error=False, file_path="a"), ""),
    ],
)
def test_only_the_models_own_mistakes_and_a_humans_no_speak_against_it(
    session: Session, expected: str
) -> None:
    evidence = evidence_against(session, 1)
    assert len(evidence) == bool(expected) and all(item.startswith(expected) for item in evidence)


def test_a_last_word_that_ends_a_failure() -> None:
    last_turn = Turn(role="assistant", author="m", blocks=(Text("Done."),))
    good = Session(
        id="s",
        source=SourceRef(file=""),
        turns=(GO, last_turn),
        segments=(Segment(start=0, end=2),),
        outcome=1.0,
    )
    assert evidence_against(good, 1) == () == evidence_against(replace(good, outcome=None), 1)
    assert evidence_against(replace(good, outcome=0.0), 1) == ("ended_in_failure",)
    longer = replace(
        good, turns=(GO, last_turn, GO, last_turn), segments=(Segment(start=0, end=4),), outcome=0.0
    )
    assert evidence_against(longer, 1) == ()


def test_a_result_is_found_by_call_id_and_not_by_place() -> None:
    calls = Turn(role="assistant", author="m", blocks=(ToolCall("c1", "Read", {}),))
    other_call = Turn(role="assistant", author="m", blocks=(ToolCall("c2", "Read", {}),))
    results = Turn(
        role="tool",
        author="environment",
        blocks=(ToolResult("c2", "File does not exist.", True), ToolResult("c1", "ok", False)),
    )
    session = Session(
        id="s",
        source=SourceRef(file=""),
        turns=(GO, calls, other_call, results),
        segments=(Segment(start=0, end=4),),
    )
    assert evidence_against(session, 1) == () and evidence_against(session, 2) != ()
