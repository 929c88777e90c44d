"""Sessions as TRL's columns and as ATIF, which our own reader reads back."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli import sessions_rows
from composer_replication.cli.sessions_written import checked
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Segment, Session, Text, Turn, TurnUsage
from composer_replication.data import trl_export
from composer_replication.data.chat import to_chat
from composer_replication.data.session_export import trajectory
from composer_replication.data.trl_export import TrlRows
from composer_replication.report.data_card import DataCard, data_card
from tests.cli.test_ingest import MADE_UP_KEY, log_lines
from tests.cli.workspace import recompose
from tests.data.ingestion.reading import read_all

LOGS = Path(__file__).parent / "ingestion" / "other_agents"


def blocks_of(session: Session) -> list[tuple[str, str, Any]]:
    """What was said, called and answered, in order, whatever turn it stands in."""
    rows: list[tuple[str, str, Any]] = []
    for turn in session.turns:
        role = {"tool": "user"}.get(turn.role, turn.role)
        if turn.text:
            rows.append((role, "text", turn.text))
        rows += [(role, call.name, (call.id, dict(call.arguments))) for call in turn.calls]
        rows += [("tool", r.call_id, (r.text, r.is_error)) for r in turn.results]
    return rows


def reread(session: Session, folder: Path) -> Session:
    path = folder / "trajectory.json"
    path.write_text(json.dumps(trajectory(session)), "utf-8")
    (result,) = read_all(path)
    (again,) = result.sessions
    return again


def all_sessions() -> list[Session]:
    return [
        session
        for path in sorted(LOGS.rglob("*"))
        if path.is_file()
        for result in read_all(path)
        for session in result.sessions
    ]


def test_every_format_goes_to_atif_and_back(tmp_path: Path) -> None:
    sessions = all_sessions()
    assert len(sessions) >= 10
    for session in sessions:
        check_round_trip(session, tmp_path)


@pytest.mark.real
def test_real_sessions_go_to_atif_and_back(traces_dir: Path, tmp_path: Path) -> None:
    sessions = [s for result in read_all(traces_dir) for s in result.sessions]
    assert len(sessions) >= 18
    for session in sessions:
        check_round_trip(session, tmp_path)


def check_round_trip(session: Session, folder: Path) -> None:
    again, calls = reread(session, folder), session.calls()
    expected = [
        row for row in blocks_of(session) if row[0] != "tool" or row[1] in calls
    ]  # ATIF has no place for the result of a call that is not in the log
    assert sorted(map(repr, blocks_of(again))) == sorted(map(repr, expected)), session.id
    assert [t.author for t in again.turns if t.role == "assistant"] == [
        t.author for t in session.turns if t.role == "assistant"
    ]
    assert (again.cwd, again.tools) == (session.cwd, session.tools)
    # turns compare without their usage
    assert [(t.context_tokens, t.usage or TurnUsage()) for _, t in again.assistant_turns()] == [
        (t.context_tokens, t.usage or TurnUsage()) for _, t in session.assistant_turns()
    ]


def test_a_row_is_a_message_with_the_context_it_was_written_in() -> None:
    for session in all_sessions():
        wrong = next(index for index, _ in session.assistant_turns())
        rows = [json.loads(row.text) for row in TrlRows(session, barred={wrong})]
        written = [
            turn
            for index, turn in session.assistant_turns()
            if index != wrong and (turn.text or turn.calls)
        ]
        assert [row["completion"][0]["content"] for row in rows] == [t.text for t in written]
        for row in rows:
            assert row["prompt"] and row["completion"][0]["role"] == "assistant"
            for message in (*row["prompt"], *row["completion"]):
                assert set(message) <= {"role", "content", "tool_calls", "name"}
                for call in message.get("tool_calls", ()):
                    assert isinstance(call["function"]["arguments"], dict)


def test_the_size_of_the_rows_is_known_before_they_are_written() -> None:
    for session in all_sessions():
        rows = TrlRows(session)
        lines = [f"{row.text}\n".encode() for row in rows]
        assert rows.size == (len(lines), sum(map(len, lines)))


def test_a_message_is_made_into_text_and_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [Turn(role="user", author="human", blocks=(Text("Go on with the work."),))]
    turns += [Turn(role="assistant", author="m", blocks=(Text(f"step {n}"),)) for n in range(50)]
    session = replace(
        all_sessions()[0], turns=tuple(turns), segments=(Segment(start=0, end=51),), tools=()
    )
    made: list[Turn] = []
    monkeypatch.setattr(trl_export, "to_chat", lambda turn: made.append(turn) or to_chat(turn))
    rows = TrlRows(session)
    assert len(list(rows)) == len(list(rows)) == 50
    texts = list(rows.texts())
    assert len(made) == 51 and len(texts) == 52  # the tools are a text, too


def test_more_rows_than_allowed_are_refused_with_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    assert recompose("sites", cwd=tmp_path).code == 0
    monkeypatch.setattr(sessions_rows, "EVERY_S", 0.0)
    argv = ("sessions", "--write", "rows.jsonl")
    refused = recompose(*argv, "--max-gb", "0.000001", cwd=tmp_path)
    assert refused.code == 1 and "MB of text" in refused.err and "--max-gb" in refused.err
    assert not (tmp_path / "rows.jsonl").exists()
    done = recompose(*argv, cwd=tmp_path)
    rows = (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()
    assert done.code == 0 and f"writing {len(rows)} rows with" in done.out
    assert f"row {len(rows)} of {len(rows)}, " in done.out and "MB | eta=" in done.out


def test_the_verb_leaves_mistakes_out_and_writes_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    refused = recompose("sessions", "--write", "rows.jsonl", cwd=tmp_path)
    assert refused.code and "recompose sites" in refused.err
    assert recompose("sites", cwd=tmp_path).code == 0
    done = recompose("sessions", "--write", "rows.jsonl", cwd=tmp_path)
    assert done.code == 0 and "messages of 1 session to" in done.out
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]
    sites = (tmp_path / "recompose" / "sites.jsonl").read_text("utf-8").splitlines()
    texts = [json.dumps(row) for row in rows]
    assert sites and rows and not any(MADE_UP_KEY in text for text in texts)
    assert recompose("sessions", "--write", "rows.jsonl", cwd=tmp_path).code
    done = recompose("sessions", "--write", "atif", "--form", "atif", cwd=tmp_path)
    (document,) = (tmp_path / "atif").iterdir()
    assert json.loads(document.read_text("utf-8"))["schema_version"] == "ATIF-v1.7"


def test_a_parquet_card_says_who_wrote_what_was_left_out_and_how_it_is_split() -> None:
    card = data_card(
        DataCard(
            sessions=3,
            splits={"train": 1200, "test": 30},
            split_by="repository",
            authors={"a`<script>\n# b": 1230},
            formats={"codex": 3},
            left_out={"mistake: edit_not_read": 4},
        )
    )
    front = card.split("---\n")[1]
    assert "  - split: test\n    path: data/test.parquet" in front
    assert "1,200 rows in `train`, 30 rows in `test`. Split by repository" in card
    assert "- mistake: edit_not_read: 4" in card
    (written_by,) = [line for line in card.splitlines() if "(1,230 rows)" in line]
    assert written_by.startswith("`a'") and "\n# b" not in card


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    assert recompose("sites", cwd=tmp_path).code == 0
    refused = recompose("sessions", "--write", "set", "--form", "parquet", cwd=tmp_path)
    assert refused.code == 1 and "composer-replication[parquet]" in refused.err
    assert not (tmp_path / "set").exists()


def test_a_secret_that_was_overlooked_does_not_leave() -> None:
    turn = Turn(role="user", author="human", blocks=(Text(f"export API_KEY={MADE_UP_KEY}"),))
    session = all_sessions()[0]
    leaking = replace(session, turns=(turn, *session.turns[1:]))
    with pytest.raises(DataError, match="would leave"):
        checked(trajectory(leaking), leaking)
