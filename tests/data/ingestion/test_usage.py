"""Each message's time and tokens are read as its log reports them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.trace import Session, TurnUsage
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.ingestion.log_records import time_of

SECOND = 1_790_000_000.0  # 2026-09-21T14:13:20Z


def read(tmp_path: Path, records: list[dict[str, Any]]) -> Session:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    (result,) = ingest(find_logs([path]), settings=IngestSettings(), redactor=None)
    (session,) = result.sessions
    return session


def record(uuid: str, second: int, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": message["role"],
        "uuid": uuid,
        "parentUuid": None,
        "sessionId": "s1",
        "timestamp": f"2026-09-21T14:13:{20 + second}Z",
        "message": message,
        **more,
    }


def part(text: str, usage: dict[str, Any]) -> dict[str, Any]:
    block = {"type": "text", "text": text}
    return {"role": "assistant", "id": "m1", "model": "m", "content": [block], "usage": usage}


def test_the_last_report_of_a_message_counts_and_its_last_time(tmp_path: Path) -> None:
    early = {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 1}
    late = {
        **early,
        "cache_creation_input_tokens": 20,
        "cache_creation": {"ephemeral_1h_input_tokens": 15},
        "output_tokens": 90,
    }
    session = read(
        tmp_path,
        [
            record("u1", 0, {"role": "user", "content": "go"}),
            record("a1", 5, part("one", early), costUSD=0.25),
            record("a2", 9, part("two", late), costUSD=0.5),
        ],
    )
    human, answer = session.turns
    assert (human.written_at, answer.written_at) == (SECOND, SECOND + 9)
    assert answer.context_tokens == 30
    assert answer.usage == TurnUsage(
        output_tokens=90,
        cached_tokens=7,
        cache_write_tokens=20,
        hour_write_tokens=15,
        usd=0.5,
    )


@pytest.mark.parametrize("usage", [{}, {"output_tokens": None}, {"output_tokens": "many"}])
def test_a_report_that_is_missing_or_odd_is_no_number(tmp_path: Path, usage: Any) -> None:
    session = read(
        tmp_path,
        [record("u1", 0, {"role": "user", "content": "go"}), record("a1", 1, part("x", usage))],
    )
    turn = session.turns[1]
    assert turn.usage is None or turn.usage.output_tokens == 0


@pytest.mark.parametrize("timestamp", ["", None, "yesterday", "2026-13-40T00:00:00Z"])
def test_a_time_that_cannot_be_read_is_none(timestamp: str | None) -> None:
    assert time_of(timestamp) == 0.0


def test_codex_reports_each_request_with_its_time(tmp_path: Path) -> None:
    def line(second: int, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": f"2026-09-21T14:13:{20 + second}Z", "type": kind, "payload": payload}

    tokens = {"input_tokens": 900, "cached_input_tokens": 800, "output_tokens": 70}
    text = [{"type": "output_text", "text": "done"}]
    session = read(
        tmp_path,
        [
            line(0, "session_meta", {"id": "c1", "cwd": "/x", "timestamp": "t"}),
            line(1, "turn_context", {"model": "gpt-5.2-codex"}),
            line(2, "response_item", {"type": "message", "role": "user", "content": text}),
            line(4, "response_item", {"type": "message", "role": "assistant", "content": text}),
            line(5, "event_msg", {"type": "token_count", "info": {"last_token_usage": tokens}}),
        ],
    )
    (answer,) = (turn for turn in session.turns if turn.role == "assistant")
    assert (answer.written_at, answer.context_tokens) == (SECOND + 4, 900)
    assert answer.usage == TurnUsage(output_tokens=70, cached_tokens=800)
