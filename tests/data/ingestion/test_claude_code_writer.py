"""A session written as a Claude Code log and ingested again is the same session; what a log cannot
hold is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import (
    Opaque,
    Parent,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.claude_code_writer import log_id, write_claude_code
from composer_replication.data.ingestion.find_logs import find_logs

ID = "2a1f9a5e-4c1b-4d63-9f0e-5d6b8a3c7e10"
TOOLS = (
    ToolSpec(
        name="zeta",
        description="Look é 日本.",
        parameters={"type": "object", "properties": {"p": {"type": "string"}}},
    ),
    ToolSpec(name="alpha"),
)
NO_TOOL = "<tool_use_error>Error: No such tool available: reed</tool_use_error>"
TURNS = (
    Turn(role="system", author="harness", blocks=(Text("Work on the files.\n\nThen say Done."),)),
    Turn(role="user", author="human", blocks=(Text("Set depth to 7."),)),
    Turn(
        role="assistant",
        author="m-1",
        blocks=(Thinking("Hm."), Text("Both."),
        ToolCall("t1", "zeta", {"p": "b", "a": [1, None, {"x": 1.5}]}), ToolCall("t2", "reed", {})),
        context_tokens=120,
    ),
    Turn(role="tool", author="environment", blocks=(ToolResult("t2", NO_TOOL, True),)),
    Turn(role="tool", author="environment", blocks=(ToolResult("t1", "line\nline\t€", False),)),
    Turn(role="user", author="harness",
    blocks=(Text("<system-reminder>Mind the tests.</system-reminder>"),), tag="reminder"),
    Turn(role="user", author="harness", blocks=(Text("one"), Text("two")), tag="meta"),
    Turn(role="assistant", author="m-2", blocks=(ToolCall("t3", "alpha", {}),), context_tokens=300),
    Turn(role="tool", author="environment", blocks=(ToolResult("t3", "", None),)),
    Turn(role="assistant", author="m-2", blocks=(Text("Done."),)),
)  # fmt: skip


def session(*turns: Turn, **more: Any) -> Session:
    turns = turns or TURNS
    fields: dict[str, Any] = {
        "id": ID,
        "tools": TOOLS,
        "tools_origin": "log",
        "cwd": "/home/dev/my.app",
        **more,
    }
    return Session(
        source=SourceRef(file="x"),
        turns=turns,
        segments=fields.pop("segments", (Segment(start=0, end=len(turns)),)),
        **fields,
    )


def read(path: Path) -> Session:
    (result,) = ingest(find_logs([path]), redactor=Redactor())
    assert (
        result.report.status == "read"
        and not result.report.raw.duplicates
        and not result.report.raw.odd_fields
    )
    (read_session,) = result.sessions
    return read_session


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_what_is_written_is_what_ingest_reads(tmp_path: Path) -> None:
    written = session()
    read_back = read(write_claude_code(written, tmp_path))
    assert read_back.turns == written.turns
    assert (read_back.tools, read_back.tools_origin, read_back.id, read_back.cwd) == (
        TOOLS,
        "log",
        ID,
        "/home/dev/my.app",
    )
    assert len(read_back.segments) == 1 and read_back.copied == 0 and not read_back.events


def test_without_a_system_message_the_tools_are_kept_and_without_tools_none_are_made_up(
    tmp_path: Path,
) -> None:
    read_back = read(write_claude_code(session(*TURNS[1:]), tmp_path))
    assert (
        read_back.turns == TURNS[1:]
        and read_back.tools == TOOLS
        and read_back.tools_origin == "log"
    )
    bare = read(write_claude_code(session(*TURNS[1:], tools=()), tmp_path / "bare"))
    # the reader's own word for tools seen in calls
    assert bare.turns == TURNS[1:] and bare.tools_origin == "reconstructed"


def test_the_records_are_laid_out_as_claude_code_does(tmp_path: Path) -> None:
    path = write_claude_code(session(), tmp_path)
    assert path.relative_to(tmp_path).as_posix() == f"-home-dev-my-app/{ID}.jsonl"
    rows = records(path)
    uuids = [row["uuid"] for row in rows]
    assert len(set(uuids)) == len(rows) and rows[0]["parentUuid"] is None
    assert all(row["parentUuid"] in uuids[:n] for n, row in enumerate(rows) if n)
    assert {row["sessionId"] for row in rows} == {ID} and {row["version"] for row in rows} == {
        "2.1.284"
    }
    assert all(a["timestamp"] < b["timestamp"] for a, b in pairwise(rows))
    first = [row for row in rows if row["type"] == "assistant" and row["message"]["model"] == "m-1"]
    assert [row["message"]["content"][0]["type"] for row in first] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert len({row["message"]["id"] for row in first}) == 1 and all(
        len(row["message"]["content"]) == 1 for row in first
    )
    results = {
        row["message"]["content"][0]["tool_use_id"]: row for row in rows if "toolUseResult" in row
    }
    assert (
        results["t2"]["parentUuid"] == results["t2"]["sourceToolAssistantUUID"] == first[3]["uuid"]
    )
    assert results["t2"]["message"]["content"][0]["is_error"] is True and results["t2"][
        "toolUseResult"
    ].startswith("Error: ")
    assert results["t1"]["parentUuid"] == first[2]["uuid"] and isinstance(
        results["t1"]["toolUseResult"], dict
    )
    assert "is_error" not in results["t3"]["message"]["content"][0]


def test_the_bytes_depend_on_the_session_alone(tmp_path: Path) -> None:
    first, second = (write_claude_code(session(), tmp_path / name).read_bytes() for name in "ab")
    assert first == second
    assert (
        write_claude_code(session(id="w1"), tmp_path).name
        == f"{log_id('w1')}.jsonl"
        != f"{ID}.jsonl"
    )


def assistant(*blocks: Any) -> Turn:
    return Turn(role="assistant", author="m", blocks=blocks)


HUMAN = TURNS[1]
CALL = assistant(ToolCall("c", "zeta", {}))
REFUSED: dict[str, tuple[Turn, ...]] = {
    "system message": (HUMAN, TURNS[0]),
    "without any block": (HUMAN, assistant()),
    "same block twice": (HUMAN, assistant(Text("a"), Text("a"))),
    "exactly one result": (HUMAN, CALL,
    Turn(role="tool", author="environment", blocks=(ToolResult("c", "x"), ToolResult("d", "y")))),
    "a picture": (HUMAN, CALL,
    Turn(role="tool", author="environment", blocks=(ToolResult("c", "x", images=("image/png",)),))),
    "that no message before it holds": (HUMAN,
    Turn(role="tool", author="environment", blocks=(ToolResult("c", "x"),))),
    "two calls or two results": (HUMAN, CALL, CALL),
    "user message that is not text": (HUMAN,
    Turn(role="user", author="human", blocks=(Opaque("image", "{}"),))),
    "which no reader could tell": (HUMAN,
    Turn(role="user", author="harness", blocks=(Text("<tool_use_error>x"),), tag="malformed_call")),
    "a block Opaque": (HUMAN, assistant(Opaque("server_tool_use", "{}"))),
    "not JSON text: Out of range": (HUMAN, assistant(ToolCall("c", "zeta", {"n": float("nan")}))),
    "surrogates not allowed": (HUMAN, assistant(Text("half \ud83d"))),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_a_log_has_no_place_for_is_refused_and_nothing_is_written(
    tmp_path: Path, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        write_claude_code(session(*REFUSED[reason]), tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_rewinds_copies_subagents_and_sessions_without_a_folder_are_refused(tmp_path: Path) -> None:
    split = (Segment(start=0, end=2), Segment(start=2, end=len(TURNS), context=((0, 1),)))
    for more in (
        {"segments": split},
        {"copied": 2},
        {"parent": Parent(session_id="p", call_id=None)},
    ):
        with pytest.raises(DataError, match="rewinds, compactions, copied turns or a subagent"):
            write_claude_code(session(**more), tmp_path)
    with pytest.raises(DataError, match="names no folder"):
        write_claude_code(session(cwd=""), tmp_path)
    with pytest.raises(DataError, match="without a turn"):
        write_claude_code(replace(session(), turns=(), segments=()), tmp_path)
    sampled = replace(TURNS[-1], sampled=Sampled((1, 2), (-0.1, -0.2)))
    path = write_claude_code(session(*TURNS[:-1], sampled), tmp_path)
    assert records(path)[-1]["message"]["usage"]["output_tokens"] == 2 and read(path).turns == TURNS
