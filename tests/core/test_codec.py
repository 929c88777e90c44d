"""Sessions, sites, hints, answers, preferences and anchors on disk: reading returns what was
written, and damage is named by file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.core.codec import (
    encode_session,
    read_anchors,
    read_answers,
    read_hints,
    read_preferences,
    read_sessions,
    read_sites,
    record_to_json,
    turn_from_json,
    turn_to_json,
    write_sessions,
)
from composer_replication.core.errors import DataError, SessionError, SiteError
from composer_replication.core.jsonl import (
    atomic_writer,
    dumps,
    read_lines,
    write_json,
    write_lines,
)
from composer_replication.core.site import Anchor, Answer, Hint, Preference, Site
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from tests.core.sessions import sessions, turns

SITE = Site(
    session_id="s",
    turn=3,
    kind="unknown_tool",
    detector="d",
    evidence=(4,),
    call_id="c",
    tool="T",
    author="m",
    detail="x",
    flagged=True,
)
HINT = Hint(
    site_id="s:3:c", text="t", writer="w", kind="k", knows=("kind",), num_words=1, overlap=0.5
)
TURN = Turn(
    role="assistant", author="m", blocks=(Text("a"), ToolCall("c1", "Read", {"p": 1})), tag="t"
)


def small() -> Session:
    call = Turn(role="assistant", author="m", blocks=(ToolCall("c1", "Read", {}),))
    result = Turn(
        role="tool", author="environment", blocks=(ToolResult("c1", "ok", False, ("image/png",)),)
    )
    return Session(
        id="s",
        source=SourceRef(file="f"),
        turns=(call, result),
        segments=(Segment(start=0, end=2),),
    )


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(sessions(), max_size=3))
def test_what_is_written_is_what_is_read(tmp_path: Path, written: list[Session]) -> None:
    path = tmp_path / "sessions.jsonl"
    assert write_sessions(path, written) == len(written)
    assert list(read_sessions(path)) == written


@given(sessions())
def test_lines_are_json_in_utf8_and_one_a_turn(session: Session) -> None:
    encoded = list(encode_session(session))
    assert len(encoded) == 1 + len(session.turns)
    for line in encoded:
        assert "\n" not in line
        json.loads(line.encode("utf-8"))


@given(st.builds(list[str]).flatmap(turns))
def test_a_turn_on_its_own_survives(turn: Turn) -> None:
    again = turn_from_json(json.loads(dumps(turn_to_json(turn))))
    assert (again.role, again.author, again.blocks, again.tag) == (
        turn.role,
        turn.author,
        turn.blocks,
        turn.tag,
    )


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_file_cut_at_a_line_is_damaged_and_not_shorter(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "s.jsonl"
    write_sessions(path, [small(), small()])
    complete_lines = path.read_text("utf-8").splitlines()[:-cut]
    path.write_text("\n".join(complete_lines), "utf-8")
    if cut == 3:  # exactly the second session is gone, which nothing in the file can reveal
        assert len(list(read_sessions(path))) == 1
    else:
        with pytest.raises(SessionError, match="cut short"):
            list(read_sessions(path))


def lines_of(session: Session) -> list[Any]:
    return [json.loads(line) for line in encode_session(session)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v[0]["session"].__setitem__("schema", 99), "schema 99"),
        (lambda v: v[0]["session"].__delitem__("schema"), "schema None"),
        (lambda v: v[0]["session"].__delitem__("segments"), "not a session"),
        (lambda v: v[0]["session"].__setitem__("colour", 1), "not a session"),
        (
            lambda v: v[0]["session"].__setitem__("segments", [{"start": 1, "end": 2}]),
            "does not continue",
        ),
        (
            lambda v: v[0]["session"].__setitem__("segments", [{"start": 0, "end": 1}]),
            "end at turn 1",
        ),
        (lambda v: v[1].__setitem__(0, "q"), "not a session"),
        (lambda v: v[1].__setitem__(1, 40), "not a session"),
        (lambda v: v[1].__setitem__(2, ["z", "?"]), "unknown block letter"),
        (lambda v: v[2].__setitem__(2, ["r", 5, "to no call"]), "not a session"),
        (lambda v: v[2].__setitem__(2, ["r"]), "not a session"),
        (lambda v: v[2].__setitem__(2, 7), "not a session"),
    ],
)
def test_damage_is_a_named_error_with_its_place(
    tmp_path: Path, damage: Callable[[list[Any]], object], message: str
) -> None:
    values = lines_of(small())
    damage(values)
    path = tmp_path / "s.jsonl"
    write_lines(path, values)
    with pytest.raises(SessionError, match=message) as caught:
        list(read_sessions(path))
    if message != "unknown block letter" and "turn" not in message and "continue" not in message:
        assert f"{path}:1" in str(caught.value)


@pytest.mark.parametrize("content", ["[1]\n", '{"type":"user"}\n', "7\n"])
def test_another_file_is_not_a_sessions_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(DataError, match="not a sessions file"):
        list(read_sessions(path))


def test_a_bad_line_is_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_sessions(path, [small()])
    path.write_text(path.read_text("utf-8") + "\n{oops\n", "utf-8")
    with pytest.raises(DataError, match=r"line 5 is not JSON") as caught:
        list(read_sessions(path))
    assert f"{path}:5" in str(caught.value)
    with pytest.raises(DataError, match="no file"):
        list(read_lines(tmp_path / "gone"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_sessions(path, [small()])
    before = path.read_bytes()

    def broken():
        yield small()
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        write_sessions(path, broken())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.jsonl"]
    with atomic_writer(tmp_path / "new" / "x") as stream:
        stream.write("a")
    assert (tmp_path / "new" / "x").read_text() == "a"
    write_json(tmp_path / "j.json", {"é": 1})
    assert json.loads((tmp_path / "j.json").read_text("utf-8")) == {"é": 1}


def test_the_size_is_near_that_of_the_text() -> None:
    text = "def f(x):\n    return x\n" * 400
    turn = Turn(role="tool", author="environment", blocks=(ToolResult("c1", text),))
    session = Session(
        id="s", source=SourceRef(file="f"), turns=(turn,) * 20, segments=(Segment(start=0, end=20),)
    )
    stored = sum(len(line) + 1 for line in encode_session(session))
    assert stored < 1.1 * 20 * len(text)


def test_sites_hints_and_preferences_survive(tmp_path: Path) -> None:
    preference = Preference(
        session_id="s",
        turn=3,
        chosen=TURN,
        rejected=TURN,
        site_id="s:3:c",
        teachers=("a",),
        evidence={"k": 1},
    )
    session_preference = Preference(session_id="s", turn=3, chosen=TURN)
    for name, values, read in (
        ("sites", [SITE], read_sites),
        ("hints", [HINT], read_hints),
        ("pairs", [preference, session_preference], read_preferences),
    ):
        path = tmp_path / f"{name}.jsonl"
        write_lines(path, [record_to_json(v) for v in values])
        assert list(read(path)) == values
    assert record_to_json(SITE)["id"] == "s:3:c"
    assert (
        session_preference.rejected_turn(
            Session(
                id="s",
                source=SourceRef(file=""),
                turns=(TURN,) * 4,
                segments=(Segment(start=0, end=4),),
            )
        )
        is TURN
    )
    assert preference.rejected_turn(small()) is TURN


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (read_sites, {"session_id": "s", "trun": 3}, "unknown field 'trun'"),
        (read_sites, {"session_id": "s"}, "needs the field 'turn'"),
        (read_hints, {"site_id": "s"}, "needs the field"),
        (
            read_preferences,
            {"session_id": "s", "turn": 1, "chosen": {"role": "user"}},
            "not a turn",
        ),
        (
            read_preferences,
            {"session_id": "s", "turn": 1, "chosen": {"role": "user", "blocks": [["c", "1"]]}},
            "not a turn",
        ),
    ],
)
def test_odd_records_are_refused_by_name(
    tmp_path: Path, read: Callable[[Path], Iterator[object]], value: dict, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    write_lines(path, [value])
    with pytest.raises(DataError, match=message):
        list(read(path))


def test_a_site_whose_evidence_is_not_later_is_refused() -> None:
    with pytest.raises(SiteError, match="not later"):
        Site(session_id="s", turn=3, kind="k", detector="d", evidence=(3,))
    with pytest.raises(SiteError, match="unknown category"):
        replace(SITE, **{"category": "oops"})
    assert (
        Site(session_id="s", turn=3, kind="k", detector="d", evidence=(1,), category="recovery").id
        == "s:3:-"
    )


def test_answers_and_anchors_come_back_and_damage_is_named(tmp_path: Path) -> None:
    answers = [
        Answer(site_id="s:3:-", teacher="t-1", family="a", turn=TURN, usd=0.25),
        Answer(site_id="s:3:-", teacher="t-2", family="b", turn=TURN),
    ]
    anchors = [
        Anchor(session_id="s", turn=3, reason="agreed", teachers=("t-1", "t-2")),
        Anchor(session_id="s", turn=5, reason="no_consensus"),
    ]
    write_lines(tmp_path / "answers.jsonl", map(record_to_json, answers))
    write_lines(tmp_path / "anchors.jsonl", map(record_to_json, anchors))
    assert list(read_answers(tmp_path / "answers.jsonl")) == answers
    assert list(read_anchors(tmp_path / "anchors.jsonl")) == anchors
    # the cost is always written
    assert [row["usd"] for _, row in read_lines(tmp_path / "answers.jsonl")] == [0.25, 0.0]
    write_lines(tmp_path / "odd.jsonl", [record_to_json(anchors[0]) | {"reason": "because"}])
    with pytest.raises(DataError, match=r"unknown reason 'because'.*odd.jsonl:1"):
        list(read_anchors(tmp_path / "odd.jsonl"))
    write_lines(tmp_path / "short.jsonl", [{"session_id": "s", "turn": 3}])
    with pytest.raises(DataError, match="needs the field 'reason'"):
        list(read_anchors(tmp_path / "short.jsonl"))
    write_lines(tmp_path / "turn.jsonl", [record_to_json(answers[0]) | {"turn": {"blocks": 3}}])
    with pytest.raises(DataError, match="not a turn"):
        list(read_answers(tmp_path / "turn.jsonl"))
