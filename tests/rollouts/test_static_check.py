"""The static check at every kind of site: the same mistake, another one, right, malformed, or
undecided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.errors import SiteError
from composer_replication.core.trace import ToolCall
from composer_replication.rollouts.chat_format import CUT, MALFORMED
from composer_replication.rollouts.static_check import Checked, SiteCheck
from tests.rollouts.logged import MISTAKES, TOOLS, assistant_turn, call, session, site

HALF = ToolCall("x", MALFORMED, {"text": "{"})


def checked(kind: str, *calls: ToolCall, origin: str = "log") -> tuple[str, str]:
    verdict = SiteCheck.of(session(kind, origin=origin), site(kind)).message(assistant_turn(*calls))
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize("kind", sorted(MISTAKES))
def test_the_call_that_failed_in_the_log_is_the_same_mistake_at_every_kind_of_site(
    kind: str,
) -> None:
    assert checked(kind, MISTAKES[kind][0]) == ("same", "same_call")
    assert checked(kind, MISTAKES[kind][0], origin="none") == ("same", "same_call")


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("unknown_tool", call("Cat", path="src/a.py"), ("same", "unknown_tool")),
        ("unknown_tool", call("Read", path="src/a.py"), ("ok", "checked")),
        ("unknown_tool", call("Bash", command="frobnicate"), ("ok", "checked")),
        ("unknown_tool", call("Read", file="src/a.py"), ("other", "bad_arguments")),
        ("unknown_tool", call("Read", path="src/nowhere.py"), ("undecided", "path_not_seen")),
        ("unknown_tool", HALF, ("malformed", "malformed_call")),
        ("bad_arguments", call("Read", limit="3"), ("same", "bad_arguments")),
        ("bad_arguments", call("Edit", path="src/a.py"), ("other", "bad_arguments")),
        ("bad_arguments", call("Cat", path="src/a.py"), ("other", "unknown_tool")),
        ("bad_arguments", call("Read", path="src/a.py"), ("ok", "checked")),
        ("bad_arguments", call("Bare", x=1), ("undecided", "schema_unknown")),
        (
            "file_missing",
            call("Edit", path="./src/MISTAKENWORD.py", old_string="x", new_string="y"),
            ("same", "same_call"),
        ),
        ("file_missing", call("Read", path="src/b.py"), ("ok", "checked")),
        ("file_missing", call("Read", path="/app/src"), ("ok", "checked")),
        ("file_missing", call("Read", path="src/nowhere.py"), ("undecided", "path_not_seen")),
        ("file_missing", call("Write", path="src/new.py", content="x"), ("ok", "checked")),
        # writing it is no repetition
        ("file_missing", call("Write", path="src/MISTAKENWORD.py", content="x"), ("ok", "checked")),
        ("file_missing", call("Bash", command="cat src/a.py"), ("undecided", "needs_running")),
        (
            "edit_not_read",
            call("Edit", path="src/b.py", old_string="other", new_string="z"),
            ("same", "same_call"),
        ),
        (
            "edit_not_read",
            call("Edit", path="src/a.py", old_string="x", new_string="z"),
            ("undecided", "needs_running"),
        ),
        ("edit_not_read", call("Read", path="src/b.py"), ("ok", "checked")),
        (
            "edit_no_match",
            call("Edit", path="src/a.py", old_string="MISTAKENWORD", new_string="z"),
            ("same", "same_call"),
        ),
        (
            "edit_no_match",
            call("Edit", path="src/a.py", old_string="x = 1", new_string="z"),
            ("undecided", "needs_running"),
        ),
        ("edit_no_match", call("Read", path="src/a.py"), ("ok", "checked")),
        ("shell_bad_option", call("Bash", command="ls -x"), ("undecided", "needs_running")),
        ("shell_bad_option", call("Read", path="src/a.py"), ("ok", "checked")),
        ("repeated_call", call("Read", path="src/b.py"), ("undecided", "needs_running")),
    ],
)
def test_what_another_call_is_at_a_site(
    kind: str, written: ToolCall, wanted: tuple[str, str]
) -> None:
    assert checked(kind, written) == wanted


def test_a_message_of_several_calls_is_what_its_worst_call_is() -> None:
    fine, unsure, wrong = (
        call("Read", path="src/a.py"),
        call("Read", path="nowhere"),
        call("Read", file="a"),
    )
    again = call("Cat")
    assert checked("unknown_tool", fine, fine) == ("ok", "checked")
    assert checked("unknown_tool", fine, unsure) == ("undecided", "path_not_seen")
    assert checked("unknown_tool", unsure, wrong, fine) == ("other", "bad_arguments")
    assert checked("unknown_tool", wrong, HALF) == ("malformed", "malformed_call")
    assert checked("unknown_tool", HALF, wrong, again) == ("same", "unknown_tool")


def test_silence_and_a_message_that_was_cut_off_are_undecided() -> None:
    check = SiteCheck.of(session(), site())
    assert (
        check.message(assistant_turn("I give up.")).outcome == "undecided"
        and check.message(assistant_turn("x")).reason == "no_call"
    )
    cut = replace(assistant_turn(call("Read", path="src/a.py"), HALF), tag=CUT)
    assert check.message(cut) == Checked(outcome="undecided", reason="cut_off")
    assert check.message(replace(assistant_turn(call("Cat")), tag=CUT)).outcome == "same"


def test_without_a_list_of_tools_only_what_the_log_saw_at_work_is_known() -> None:
    """No schema, no list: a name that worked exists, one that was refused does not, of any other
    nobody knows."""
    assert checked("unknown_tool", call("Cat", path="src/a.py"), origin="none") == (
        "undecided",
        "tools_unknown",
    )
    assert checked("unknown_tool", call("Reed", path="other"), origin="none") == (
        "same",
        "unknown_tool",
    )
    assert checked("unknown_tool", call("Read", path="src/b.py"), origin="none") == (
        "ok",
        "checked",
    )
    assert checked("unknown_tool", call("Read", path=3), origin="none") == (
        "undecided",
        "schema_unknown",
    )


def test_what_the_log_did_beside_the_mistake_and_what_worked_is_right() -> None:
    log = session()
    beside = replace(
        log.turns[5], blocks=(*log.turns[5].blocks, call("Read", "c4", path="src/zzz.py"))
    )
    results = replace(log.turns[6], blocks=(*log.turns[6].blocks, *answer("c4")))
    log = replace(log, turns=(*log.turns[:5], beside, results, log.turns[7]))
    verdict = SiteCheck.of(log, site()).message(assistant_turn(call("Read", path="src/zzz.py")))
    assert (verdict.outcome, verdict.reason) == ("ok", "same_call")


def answer(call_id: str) -> tuple[Any, ...]:
    from tests.rollouts.logged import answered

    return answered(call_id, "text").blocks


def test_a_file_that_was_missing_is_there_once_it_was_written() -> None:
    """Earlier refusals count until the file was written; at the site itself the log outweighs
    everything."""
    from tests.rollouts.logged import answered

    log = session("unknown_tool")
    tried = (
        assistant_turn(call("Read", "m1", path="src/new.py")),
        answered("m1", "File does not exist.", error=True),
    )
    wrote = (
        assistant_turn(call("Write", "m2", path="src/new.py", content="x")),
        answered("m2", "ok"),
    )

    def outcome(*before: Any) -> tuple[str, str]:
        moved = replace(site(), turn=5 + len(before), evidence=(6 + len(before),))
        turns = (*log.turns[:5], *before, *log.turns[5:])
        longer = replace(log, turns=turns, segments=(replace(log.segments[0], end=len(turns)),))
        verdict = SiteCheck.of(longer, moved).message(
            assistant_turn(call("Read", path="/app/src/new.py"))
        )
        return verdict.outcome, verdict.reason

    assert outcome(*tried) == ("other", "file_missing")
    assert outcome(*tried, *wrote) == ("ok", "checked")


def after(*commands: tuple[str, str], path: str) -> tuple[str, str]:
    """The verdict on a Read of a path, at an unknown-tool site after some shell lines."""
    from tests.rollouts.logged import answered

    log = session("unknown_tool")
    before = [
        t
        for i, (command, text) in enumerate(commands)
        for t in (assistant_turn(call("Bash", f"s{i}", command=command)), answered(f"s{i}", text))
    ]
    turns = (*log.turns[:5], *before, *log.turns[5:])
    longer = replace(log, turns=turns, segments=(replace(log.segments[0], end=len(turns)),))
    moved = replace(site(), turn=5 + len(before), evidence=(6 + len(before),))
    verdict = SiteCheck.of(longer, moved).message(assistant_turn(call("Read", path=path)))
    return verdict.outcome, verdict.reason


def test_a_path_is_right_until_a_line_removes_it_and_from_where_the_shell_stands() -> None:
    # it erased data.py once
    assert after(("ls", "data.py"), ("rm a.py", ""), path="data.py") == ("ok", "checked")
    assert after(("rm src/a.py", ""), path="src/a.py") == ("undecided", "path_not_seen")
    assert after(("mv src lib", ""), path="src/a.py") == ("undecided", "path_not_seen")
    assert after(("mv src lib", ""), path="lib") == ("ok", "checked")
    assert after(("cd src", ""), path="a.py") == ("ok", "checked")
    assert after(("cd src", ""), path="src/a.py") == ("undecided", "path_not_seen")
    assert after(("cd $X", ""), path="src/a.py") == ("undecided", "path_not_seen")
    assert after(("cd $X", ""), path="/app/src/a.py") == ("ok", "checked")


def test_a_path_that_was_looked_for_is_missing_as_one_that_was_guessed() -> None:
    explored = replace(site("file_missing"), kind="path_explored")
    check = SiteCheck.of(session("file_missing"), explored)
    again = check.message(assistant_turn(call("Grep", path="src/MISTAKENWORD.py")))
    assert (again.outcome, again.reason) == ("same", "same_call")
    assert check.message(assistant_turn(call("Read", path="src/b.py"))).outcome == "ok"
    assert check.message(assistant_turn(call("Bash", command="ls src"))).reason == "needs_running"


def test_a_site_of_another_session_is_refused() -> None:
    with pytest.raises(SiteError, match="belongs to session s1"):
        SiteCheck.of(session(name="s2"), site())
    assert {tool.name for tool in TOOLS} == {"Read", "Edit", "Write", "Bash", "Bare"}
