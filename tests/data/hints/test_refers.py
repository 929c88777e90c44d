"""Which turns a hint or a mistaken call refers to: only those in view, calls together with their
results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.site import Site
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.refers import listed_names, refers_to
from composer_replication.data.hints.write import write_hints


def session(
    *steps: tuple[str, dict[str, Any], str, bool], cleared: tuple[str, ...] = ()
) -> Session:
    """A human's message, then a message and its result per step: (tool, arguments, result, is it an
    error)."""
    turns = [Turn(role="user", author="human", blocks=(Text("go"),))]
    for number, (tool, arguments, result, failed) in enumerate(steps):
        turns.append(
            Turn(role="assistant", author="m", blocks=(ToolCall(f"c{number}", tool, arguments),))
        )
        turns.append(
            Turn(
                role="tool",
                author="environment",
                blocks=(ToolResult(f"c{number}", result, is_error=failed),),
            )
        )
    segments = (Segment(start=0, end=len(turns), cleared=cleared),)
    return Session(
        id="s",
        source=SourceRef(file="f"),
        turns=tuple(turns),
        segments=segments,
        tools=(ToolSpec(name="Read"),),
        cwd="/app",
    )


def site(of: Session, *, kind: str) -> Site:
    """The last call of a session, as the mistake."""
    turn = len(of.turns) - 2
    call = of.turns[turn].calls[0]
    return Site(
        session_id="s",
        turn=turn,
        kind=kind,
        detector="d",
        evidence=(turn + 1,),
        call_id=call.id,
        tool=call.name,
    )


def turns_of(of: Session, kind: str, **more: Any) -> tuple[int, ...]:
    return refers_to(site_context(of, site(of, kind=kind)), **more)


READ = ("Read", {"file_path": "/app/a.py"}, "x = 1", False)
OTHER = ("Read", {"file_path": "/app/b.py"}, "y = 1", False)
EDIT = ("Edit", {"file_path": "/app/a.py", "old_string": "x"}, "done", False)
WRONG = (
    "Edit",
    {"file_path": "a.py", "old_string": "z"},
    "String to replace not found in file.",
    True,
)


def test_the_last_read_of_the_file_and_the_last_change_behind_it() -> None:
    assert turns_of(session(READ, OTHER, READ, OTHER, EDIT, OTHER, WRONG), "edit_no_match") == (
        5,
        6,
        9,
        10,
    )
    # changed before it was read: the read shows it
    assert turns_of(session(EDIT, READ, OTHER, WRONG), "edit_no_match") == (3, 4)
    assert turns_of(session(OTHER, WRONG), "edit_not_read") == ()


@pytest.mark.parametrize(
    "command", ["cat a.py", "cd /app && sed -n 1,20p a.py", "head -5 /app/a.py | grep x"]
)
def test_a_file_read_in_a_shell_was_read(command: str) -> None:
    assert turns_of(
        session(("Bash", {"command": command}, "x = 1", False), OTHER, WRONG), "edit_no_match"
    ) == (1, 2)


def test_what_failed_or_was_cleared_showed_nothing() -> None:
    failed = ("Read", {"file_path": "/app/a.py"}, "File does not exist.", True)
    assert turns_of(session(failed, OTHER, WRONG), "edit_no_match") == ()
    assert turns_of(session(READ, OTHER, WRONG, cleared=("c0",)), "edit_no_match") == ()


def test_the_earlier_failure_of_the_same_call() -> None:
    assert turns_of(session(READ, WRONG, OTHER, WRONG), "edit_no_match") == (1, 2, 3, 4)
    bad = ("Bash", {"command": "frob --x"}, "zsh: command not found: frob", True)
    elsewhere = ("Bash", {"command": "nope"}, "zsh: command not found: nope", True)
    again = ("Bash", {"command": "frob --y"}, "zsh: command not found: frob", True)
    assert turns_of(session(bad, elsewhere, OTHER, again), "shell_unknown_command") == (1, 2)


def test_a_repeated_call_refers_to_the_one_before() -> None:
    assert turns_of(session(READ, OTHER, READ), "repeated_call") == (1, 2)


def test_what_the_hint_lists_was_shown_by_the_last_call_that_showed_it() -> None:
    ls = ("Bash", {"command": "ls src"}, "cart.py\ntax.py", False)
    missing = ("Read", {"file_path": "/app/cart.py"}, "File does not exist.", True)
    log = session(ls, OTHER, missing)
    # folder and name apart
    assert turns_of(log, "file_missing", knows=("kind", "paths_seen"), names=["src/cart.py"]) == (
        1,
        2,
    )
    assert turns_of(log, "file_missing", knows=("kind",), names=["src/cart.py"]) == ()
    report = write_hints(log, [replace(site(log, kind="file_missing"))], settings=HintsSettings())
    assert "src/cart.py" in report.hints[0].text and report.hints[0].refers_to == (1, 2)


def test_arguments_of_calls_that_worked_refer_to_the_last_of_them() -> None:
    bad = ("Read", {"path": "/app/a.py"}, "InputValidationError: file_path is required", True)
    log = replace(
        session(READ, OTHER, ("Bash", {"command": "true"}, "", False), bad),
        tools_origin="reconstructed",
    )
    report = write_hints(log, [site(log, kind="bad_arguments")], settings=HintsSettings())
    assert report.hints[0].knows == ("kind", "call", "calls_seen") and set(
        report.hints[0].refers_to
    ) >= {3, 4}


def test_a_site_of_a_whole_message_refers_to_nothing_by_itself() -> None:
    log = session(READ, WRONG)
    assert refers_to(site_context(log, replace(site(log, kind="k"), call_id=None))) == ()


def test_names_are_the_words_that_the_template_does_not_hold() -> None:
    fixed = "Paths seen so far that exist: . Use one of these, or list the folder first."
    assert listed_names(
        "Paths seen so far that exist: src/a.py, b.md. Use one of these, or list the folder first.",
        fixed=fixed,
    ) == [
        "src/a.py",
        "b.md",
    ]
