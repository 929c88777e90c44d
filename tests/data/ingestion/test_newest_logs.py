"""Logs of Claude Code 2.1.330: every prompt word for word, in the order in which it was sent,
checked against its hashes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.ingestion.requests import message_hash
from tests.data.ingestion.naive_counts import naive_counts
from tests.data.ingestion.reading import lines, new_log, read_text, seen, shape

LOGS = Path(__file__).parent / "newest_logs"
EDIT, FORK, SUBAGENT, ERRORS, COMPACTED = (
    next(LOGS.glob(f"{name}*.jsonl"))
    for name in ("8d6f2ec6", "2b2d4ea5", "4cd80f7c", "aaa8c746", "d17dfdea")
)
AGENT = next(LOGS.rglob("agent-*.jsonl"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def session_of(folder: Path, rows: list[dict[str, Any]]) -> Session:
    (session,) = read_text(folder, lines(rows)).sessions
    return session


def checked(session: Session) -> tuple[int, int]:
    return session.requests_verified, session.requests


@pytest.mark.parametrize("path", sorted(LOGS.rglob("*.jsonl")), ids=lambda path: path.stem[:13])
def test_every_prompt_is_verified_and_nothing_is_unknown(path: Path) -> None:
    (result,) = ingest(find_logs([path]))
    report = result.report.to_json()
    expected = naive_counts(path)
    assert {key: report[key] for key in expected} == expected
    assert (
        report["status"],
        report["damage"],
        report["unknown_types"],
        report["unknown_attachments"],
    ) == ("read", [], {}, {})
    (session,) = result.sessions
    asked = {row["id"] for row in rows_of(path) if row["type"] == "api-request"}
    answered = {
        row.get("requestRef") for row in rows_of(path) if row["type"] == "assistant"
    } & asked
    assert checked(session) == (len(answered), len(answered)) and report[
        "requests_verified"
    ] == report["requests"] == len(answered)
    assert (
        session.tools_origin == "log"
        and session.turns[0].text == "You are a coding agent. Read before you edit."
    )


def test_turns_stand_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    session = session_of(tmp_path, rows_of(EDIT))
    assert [word[:13] for word in shape(session)[:7]] == [
        "s:You are a c", "u:The test fa", "u:# Environme", "a:I read both", "t:1\tdef add(a",
        "t:import unit", "a:Edit",
    ]  # fmt: skip
    assert [(t.author, t.tag) for t in session.turns[1:3]] == [
        ("human", ""),
        ("harness", "reminder"),
    ]
    assert {tool.name for tool in session.tools} >= {"Read", "Edit", "Write", "Bash"}
    assert next(t for t in session.tools if t.name == "Edit").parameters["required"] == [
        "file_path",
        "old_string",
        "new_string",
    ]


def test_after_a_compaction_the_summary_stands_above_what_was_preserved(tmp_path: Path) -> None:
    session = session_of(tmp_path, rows_of(COMPACTED))
    beginnings = [
        word[:14]
        for word in seen(session, next(i for i, w in enumerate(shape(session)) if w == "a:three"))
    ]
    assert beginnings[:4] == [
        "s:You are a co",
        "u:This session",
        "u:Today's date",
        "a:two",
    ] and beginnings[4].startswith("t:import")
    assert session.turns[6].tag == "compact_summary" and "compaction" in [
        event.kind for event in session.events
    ]


def test_a_fork_knows_what_it_copied(tmp_path: Path) -> None:
    for name, path in (("a", EDIT), ("b", FORK)):
        (tmp_path / f"{name}.jsonl").write_text(
            path.read_text("utf-8") + ("\n" * 40_000 if name == "a" else ""), "utf-8"
        )
    original, forked = (s for result in ingest(find_logs([tmp_path])) for s in result.sessions)
    assert (checked(original), checked(forked)) == ((8, 8), (3, 3))
    assert forked.copied == 19 == len(original.turns)


def test_a_subagent_is_linked_and_verified() -> None:
    main, side = (s for result in ingest(find_logs([SUBAGENT, AGENT])) for s in result.sessions)
    assert (checked(main), checked(side)) == ((4, 4), (2, 2))
    assert side.parent is not None and (side.parent.session_id, side.turns[1].tag) == (
        main.id,
        "task",
    )
    assert side.parent.call_id in {c.id for t in main.turns for c in t.calls}


CHANGES = (
    "a word of the human",
    "a result",
    "the answer",
    "the system prompt",
    "a blob",
    "a blob is gone",
    "a request is gone",
    "more is kept than there is",
)


def changed(kind: str) -> list[dict[str, Any]]:
    """The edit's log with one change that was not in what was sent."""
    rows = rows_of(EDIT)
    if kind == "a word of the human":
        next(row for row in rows if row["type"] == "user")["message"]["content"] += "!"
    elif kind == "a result":
        next(row for row in rows if "tool_result" in json.dumps(row))["message"]["content"][0][
            "content"
        ] += "!"
    elif kind == "the answer":
        next(row for row in rows if row["type"] == "assistant")["message"]["content"][0][
            "text"
        ] += "!"
    elif kind == "the system prompt":
        next(row for row in rows if row["type"] == "api-request-shape")["shape"]["system"][0][
            "text"
        ] += "!"
    elif kind == "a blob":
        next(row for row in rows if row["type"] == "api-request-blob")["message"]["content"][0][
            "text"
        ] += "!"
    elif kind == "a blob is gone":
        rows.remove(next(row for row in rows if row["type"] == "api-request-blob"))
    elif kind == "a request is gone":
        rows.remove(next(row for row in rows if row["type"] == "api-request"))
    elif kind == "more is kept than there is":
        [row for row in rows if row["type"] == "api-request"][1]["keep"] = 99
    return rows


@pytest.mark.parametrize("kind", CHANGES)
def test_what_does_not_hash_to_what_the_log_says_is_not_verified_and_loses_no_turn(
    tmp_path: Path, kind: str
) -> None:
    original, session = session_of(tmp_path, rows_of(EDIT)), session_of(tmp_path, changed(kind))
    assert session.requests_verified == 0 < session.requests
    assert [t.calls for t in session.turns if t.role == "assistant"] == [
        t.calls for t in original.turns if t.role == "assistant"
    ]
    assert session.context(6)  # in the order of the log


def test_a_log_without_the_records_is_read_as_before(tmp_path: Path) -> None:
    session = session_of(
        tmp_path, [row for row in rows_of(EDIT) if not row["type"].startswith("api-request")]
    )
    assert checked(session) == (0, 0) and any(t.tag == "reminder" for t in session.turns)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"b":1e-7,"a":[60000,2.50,-0.0,1E5]}', '{"a":[60000,2.50,-0.0,1E5],"b":1e-7}'),
        ('"\\ud800 é \\u2028 \\u0007"', '"\\ud800 é \u2028 \\u0007"'),
    ],
)
def test_a_hash_is_of_the_letters_as_written(tmp_path: Path, text: str, canonical: str) -> None:
    """Numbers keep their digits, half of a surrogate pair stays an escape, keys are sorted."""
    import hashlib

    from composer_replication.data.ingestion.requests import _decode

    block = _decode(f'{{"type":"tool_use","id":"c","name":"n","input":{{"v":{text}}}}}'.encode())
    wanted = (
        f'{{"content":[{{"id":"c","input":{{"v":{canonical}}},"name":"n","type":"tool_use"}}],'
        '"role":"assistant"}'
    )
    assert (
        message_hash({"role": "assistant", "content": [block]})
        == hashlib.sha256(wanted.encode()).hexdigest()
    )


def test_the_same_words_sent_twice_are_two_turns(tmp_path: Path) -> None:
    """A hash names words, not a place."""
    rows = rows_of(EDIT)
    session = session_of(tmp_path, rows)
    texts = [t.text for t in session.turns if t.author == "human"]
    assert len(texts) == len(set(texts)) == 2
    again = json.loads(json.dumps(rows).replace(texts[1], texts[0]))
    name = {
        row["message"]["content"]: message_hash(row["message"])
        for row in rows
        if isinstance(row.get("message", {}).get("content"), str)
    }
    again = json.loads(
        json.dumps(again).replace(
            name["Which functions are there? Look, then stop."], name[texts[0]]
        )
    )
    session = session_of(tmp_path, again)
    assert (
        checked(session) == (8, 8)
        and [t.text for t in session.turns if t.author == "human"] == [texts[0]] * 2
    )


def test_a_hostile_log_costs_no_time(tmp_path: Path) -> None:
    log = new_log()
    log.human("Hi")
    log.act("There")
    rows = [json.loads(line) for line in log.text().splitlines()]
    request = {
        "type": "api-request",
        "sessionId": "one",
        "shapeHash": "x",
        "keep": 10**9,
        "tail": ["a"] * 5,
    }
    many = [{**request, "id": f"r{i}", "base": f"r{i - 1}", "keep": 5 * i} for i in range(3000)]
    odd = [
        {**request, "id": "r1", "base": "r1"},
        {**request, "id": "q", "keep": -5},
        {**request, "tail": [1]},
        {**request, "keep": "5"},
        {"type": "api-request"},
    ]
    rows[-1]["requestRef"] = "r2999"
    began = time.process_time()
    session = session_of(
        tmp_path,
        [
            *many,
            *odd,
            {"type": "api-request-blob", "message": [1]},
            {"type": "api-request-shape", "shape": 3},
            *rows,
        ],
    )
    assert time.process_time() - began < 5
    assert checked(session) == (0, 1) and shape(session) == ["u:Hi", "a:There"]
