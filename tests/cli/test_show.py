"""`show`: the hint above the mistaken message, later turns in neither context, log text made
harmless, ids forgiven."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.cli.lookup import find_index
from composer_replication.cli.render_terminal import mask_text
from composer_replication.core.codec import read_hints, record_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.harmless import harmless
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Decision
from tests.cli.workspace import HOSTILE, fill, recompose, session


@pytest.fixture
def work(tmp_path: Path) -> Path:
    fill(tmp_path / "recompose", [session(), session("sess-bbbb")])
    return tmp_path


def test_a_site_shows_context_hint_mistake_and_later_turns_in_this_order(work: Path) -> None:
    result = recompose("show", "site", "s001", cwd=work)
    assert result.code == 0 and result.err == ""
    places = [
        result.out.index(text)
        for text in (
            "I look first.",
            "seen only by the teacher",
            "the mistaken message",
            "evidence",
        )
    ]
    assert places == sorted(places)
    assert result.out.index("Reminder: seen so far: a.py") < result.out.index('"file_path": "b.py"')
    for later in ("File does not exist.", "It was a.py all along."):
        block = result.out[: result.out.rindex(later)].splitlines()
        header = next(line for line in reversed(block) if line.startswith("["))
        assert "in neither context" in header
    header = next(
        line
        for line in result.out.splitlines()
        if "I look first." in line or line.startswith("[1]")
    )
    assert "in neither context" not in header


def test_the_json_of_a_site_has_the_same_content(work: Path) -> None:
    value = recompose("show", "site", "s001", "--json", cwd=work).value
    assert [t["turn"] for t in value["before"]] == [0, 1, 2]
    assert value["message"]["turn"] == 3 and value["message"]["place"] == "mistake"
    assert [(t["turn"], t["place"]) for t in value["after"]] == [(4, "evidence"), (5, "later")]
    assert value["left_out_after"] == 1 and value["left_out_before"] == 0
    assert value["hint"] == "Reminder: seen so far: a.py"


def test_what_is_left_out_is_counted(work: Path) -> None:
    result = recompose("show", "site", "s001", "--before", "1", "--after", "0", cwd=work)
    assert "2 earlier turns" in result.out and "I look first." not in result.out


@pytest.mark.parametrize(
    ("decision", "shown"),
    [
        (Decision(part="tool", wrong="Edit", right=("Read",)), "the tool Edit · right: Read"),
        (Decision(part="argument", wrong="path"), "the argument path · right: not known"),
        (Decision(part="argument", right=("a", "b")), "an argument is missing · right: a, b"),
        (Decision(part="value", argument="p"), "the value of p · right: not known"),
        (Decision(part="value", wrong="x", argument="p"), "x in p · right: not known"),
        (Decision(part="call"), "the whole call · right: not known"),
        (None, "not known · right: not known"),
    ],
)
def test_a_site_shows_what_was_wrong_and_what_counts_as_right(
    work: Path, decision: Decision | None, shown: str
) -> None:
    path = work / "recompose" / "hints.jsonl"
    hints = [replace(hint, decision=decision) for hint in read_hints(path)]
    write_lines(path, map(record_to_json, hints))
    assert f"wrong: {shown}" in recompose("show", "site", "s001", cwd=work).out


def test_a_site_without_a_hint_says_so(work: Path) -> None:
    (work / "recompose" / "hints.jsonl").unlink()
    assert "no hint" in recompose("show", "site", "s001", cwd=work).out


def test_a_session_shows_the_hint_above_the_mistaken_message(work: Path) -> None:
    out = recompose("show", "session", "s001", cwd=work).out
    assert (
        out.index("I look first.")
        < out.index("Reminder: seen so far: a.py")
        < out.index('"file_path": "b.py"')
    )
    assert "file_missing (mistake)" in out


@pytest.mark.parametrize("wanted", ["sess-b", "s002", "sess-bbbb"])
def test_a_session_is_found_by_id_beginning_or_place(work: Path, wanted: str) -> None:
    assert recompose("show", "session", wanted, "--json", cwd=work).value["id"] == "sess-bbbb"


def test_an_unknown_id_is_answered_with_the_nearest(work: Path) -> None:
    result = recompose("show", "session", "sess-bbba", cwd=work)
    assert result.code == 1 and "did you mean" in result.err and "sess-bbbb" in result.err


def test_an_ambiguous_beginning_lists_what_fits(work: Path) -> None:
    result = recompose("show", "session", "sess", cwd=work)
    assert result.code == 1 and "2 sessions begin" in result.err and "sess-aaaa" in result.err


def test_without_an_id_everything_is_listed(work: Path) -> None:
    assert [
        s["id"] for s in recompose("show", "session", "--json", cwd=work).value["sessions"]
    ] == ["sess-aaaa", "sess-bbbb"]
    names = [s["name"] for s in recompose("show", "site", "--json", cwd=work).value["sites"]]
    listed = recompose("show", "site", cwd=work).out
    assert len(names) == 2 and all(name in listed for name in names)


def test_escape_codes_and_markup_of_a_log_are_shown_not_obeyed(work: Path) -> None:
    fill(work / "recompose", [session(text=HOSTILE)])
    out = recompose("show", "session", "s001", cwd=work).out
    assert "[bold]markup[/bold]" in out and "\u241b[31mred" in out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_shortened_text_says_how_much_is_missing(work: Path) -> None:
    fill(work / "recompose", [session(text="word " * 2000)])
    assert "more characters (--full)" in recompose("show", "session", "s001", cwd=work).out
    full = recompose("show", "session", "s001", "--full", cwd=work).out
    assert full.count("word") == 2000 and "more characters" not in full
    assert (
        recompose("show", "session", "s001", "--json", cwd=work).value["turns"][0]["blocks"][0][
            "text"
        ]
        == "word " * 2000
    )


def test_before_the_stage_has_run_the_next_command_is_named(tmp_path: Path) -> None:
    result = recompose("show", "site", "s001", cwd=tmp_path)
    assert result.code == 1 and "recompose sites" in result.err


def test_an_unknown_noun_is_a_usage_error(work: Path) -> None:
    assert recompose("show", "sight", "s001", cwd=work).code == 2


def test_masks_are_marked_where_there_is_no_colour() -> None:
    pieces = [
        ("You ", "none"),
        ("call ", "hint"),
        ("Edit", "hint"),
        (".", "none"),
        ("Done", "lm_ce"),
    ]
    assert mask_text(pieces, colour=False).plain == "You {call |Edit}.[Done]"
    coloured = mask_text(pieces, colour=True)
    assert coloured.plain == "You call Edit.Done"
    assert {str(span.style).split(" bold")[0] for span in coloured.spans} == {
        "dim",
        "black on yellow",
        "black on green",
    }


@given(st.text(alphabet=st.characters(codec=None)))
def test_no_text_can_reach_the_terminal_as_a_command(text: str) -> None:
    clean = harmless(text)
    assert not [
        c
        for c in clean
        if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000
    ]
    assert harmless("plain, ünïcode 漢字\n\tok") == "plain, ünïcode 漢字\n\tok"


@pytest.mark.parametrize("noun", ["session", "site"])
@pytest.mark.parametrize(
    ("wanted", "what", "mend"),
    [
        ("e001", "the place of a record of another kind", "recompose show example e001"),
        ("zzz", "zzz", "list them: recompose show"),
    ],
)
def test_an_id_of_something_else_says_what_it_is_and_never_shows_another_record(
    noun: str, wanted: str, what: str, mend: str, work: Path
) -> None:
    result = recompose("show", noun, wanted, cwd=work)
    told = " ".join(result.err.replace("│", " ").split())
    assert result.code == 1 and result.out == ""
    assert f'no {noun} "{wanted}"' in told and what in told and f"{noun}s.jsonl" in told
    assert mend in told


@pytest.mark.parametrize("noun", ["session", "site"])
def test_the_name_of_an_answered_turn_leads_to_the_page_or_to_replay(noun: str, work: Path) -> None:
    result = recompose("show", noun, "a001", "-o", "recompose", cwd=work)
    told = " ".join(result.err.replace("│", " ").split())
    assert result.code == 1 and result.out == ""
    assert f'no {noun} "a001"' in told and "there is no answers.jsonl" in told
    assert "run first: recompose replay -o recompose" in told
    (work / "recompose" / "answers.jsonl").touch()
    told = " ".join(recompose("show", noun, "a001", cwd=work).err.replace("│", " ").split())
    assert "an answered turn of the page has such a name" in told
    assert "recompose report --audit --open, then add #a001 to its address" in told


def test_the_list_that_an_unknown_id_leads_to_is_of_the_same_folder(work: Path) -> None:
    (work / "recompose").rename(work / "other")
    result = recompose("show", "site", "zzz", "-o", "other", cwd=work)
    command = "recompose show -o other site"
    assert result.code == 1 and f"list them: {command}" in result.err
    assert recompose(*command.split()[1:], cwd=work).out.count("sess-aaaa") == 1


def test_a_noun_that_there_is_not_names_those_that_there_are(work: Path) -> None:
    result = recompose("show", "answer", "a001", cwd=work)
    assert result.code == 2 and '"session"' in result.err and '"pair"' in result.err


def test_a_place_past_the_end_is_not_found() -> None:
    with pytest.raises(DataError, match='no site "s009"'):
        find_index("s009", ["a", "b"], noun="site", file=Path("x"))


def test_what_people_read_has_readable_names_and_right_plurals(tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session("sess-a")])
    outs = {verb: recompose(verb, cwd=tmp_path).out for verb in ("report", "sites", "hints")}
    assert (
        " 1 mistaken message in 1 of 1 session" in outs["sites"]
        and "; 1 site in all" in (outs["sites"])
    )
    assert " 1 mistaken message in 1 of 1 session, 2 tool calls" in outs["report"]
    for out in outs.values():
        assert re.search(r"^file not there +file_missing ", out, re.MULTILINE), out
    shown = recompose("show", "session", "sess-a", cwd=tmp_path).out
    assert "Edit: file not there · file_missing (mistake)" in shown
    wrong = re.findall(r"\b1 (?:sessions|sites|hints|messages|calls|turns|files|mistakes)\b", shown)
    assert wrong == []
    assert "True" not in recompose("show", "site", cwd=tmp_path).out
