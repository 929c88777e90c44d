"""Write a Session as a Claude Code log: the inverse of `ingest`, for sessions that we generate.

    path = write_claude_code(session, Path("logs"))
    # for cwd "/workshop/train/7-0": logs/-workshop-train-7-0/5e0c2d54-....jsonl

The layout is that of 2.1.284: one record per content block of a message; results as user records
whose parent is the record with their call; and an attachment "prompt_snapshot" with the system
prompt and the tools, which logs contain since about 2.1.267 (older logs have no place for tools).
Ids and times are derived from the session's id and a given start, so that the bytes are always the
same.

A log has no field for sampled ids and log-probs, tags of assistant messages, events and the
outcome: they are lost. A session that a log cannot represent (several segments, subagents,
pictures, blocks of unknown types, a system prompt in mid-session) is refused with the reason.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.files import atomic_writer
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    Block,
    Segment,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.ingestion.authorship import Authorship, authorship

VERSION = "2.1.284"
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SECONDS_PER_RECORD = 7
_NAMESPACE = uuid.UUID("c2a5a0a3-6a57-4d0b-8f43-0e6a2e6f7d91")
_NOT_IN_A_FOLDER_NAME = re.compile(r"[^A-Za-z0-9]")


def write_claude_code(
    session: Session, folder: Path, *, start: datetime = START, branch: str = "main"
) -> Path:
    """Write `<folder>/<project>/<session id>.jsonl` and return its path; the project is the
    session's folder with dashes.

    Raises DataError, before anything is written, if the session names no folder (`cwd`) or if a
    log cannot represent it.
    """
    text = "".join(
        _json_line(record, session)
        for record in claude_code_records(session, start=start, branch=branch)
    )
    path = folder / _NOT_IN_A_FOLDER_NAME.sub("-", session.cwd) / f"{log_id(session.id)}.jsonl"
    with atomic_writer(path) as stream:
        stream.write(text)
    return path


def claude_code_records(
    session: Session, *, start: datetime = START, branch: str = "main"
) -> Iterator[dict[str, Any]]:
    """Yield the records of a session's log in order; raises DataError like `write_claude_code`."""
    _check_session(session)
    log = _RecordBuilder(session, start=start, branch=branch)
    for number, turn in enumerate(session.turns):
        where = f"{session.id}, turn {number}"
        if turn.role == "system" or (number == 0 and session.tools):
            yield log.snapshot(turn if turn.role == "system" else None, where=where)
        if turn.role == "assistant":
            yield from log.assistant(turn, number=number, where=where)
        elif turn.role == "tool":
            yield log.result(turn, where=where)
        elif turn.role == "user":
            yield log.user(turn, where=where)


def log_id(session_id: str) -> str:
    """The id of a session in its log: unchanged if it is a UUID, as in Claude Code, else a UUID
    derived from it.

    >>> log_id("5E0C2D54-93F0-5F4A-9E0B-0A8B1F4B7C11"), log_id("w1") == log_id("w1") != log_id("w2")
    ('5e0c2d54-93f0-5f4a-9e0b-0a8b1f4b7c11', True)
    """
    try:
        return str(uuid.UUID(session_id))
    except ValueError:
        return str(uuid.uuid5(_NAMESPACE, session_id))


def call_id_of(session_id: str, call_id: str) -> str:
    """A call id in the API's form, different in every session: a reader would take an id that it
    knows from another file for a copy.

    >>> call_id_of("w1", "c0").startswith("toolu_01")
    True
    >>> call_id_of("w1", "c0") == call_id_of("w2", "c0")
    False
    """
    return f"toolu_01{uuid.uuid5(_NAMESPACE, f'{session_id}/call/{call_id}').hex[:22]}"


class _RecordBuilder:
    """Builds records one after the other; each names the one before it as its parent."""

    def __init__(self, session: Session, *, start: datetime, branch: str) -> None:
        self.session, self.start, self.branch = session, start, branch
        self.session_id = log_id(session.id)
        self.parent: str | None = None
        self.num_records = 0
        self.record_of_call: dict[str, str] = {}  # call id -> the record that holds the call

    def snapshot(self, turn: Turn | None, *, where: str) -> dict[str, Any]:
        """Record the system prompt and the tools; the prompt must be one text, because a reader
        joins its parts."""
        if turn is not None and (
            self.num_records
            or turn.author != HARNESS
            or not _is_one_text(turn.blocks)
            or not turn.text
        ):
            raise _unsupported(
                "a system message that is not one text of the agent program at the very beginning",
                where,
            )
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "schema": {"input_schema": dict(tool.parameters)},
            }
            for tool in self.session.tools
        ]
        prompt = [] if turn is None else [turn.text]
        payload = {
            "type": "prompt_snapshot",
            "systemPrompt": prompt,
            "tools": tools,
            "cliPrefix": "claude",
        }
        return self._record("attachment", attachment=payload)

    def assistant(self, turn: Turn, *, number: int, where: str) -> Iterator[dict[str, Any]]:
        """Yield one record per block, each with the message's id and the usage of the request."""
        if not turn.blocks:
            raise _unsupported("an assistant message without any block", where)
        if any(block in turn.blocks[:index] for index, block in enumerate(turn.blocks)):
            raise _unsupported("a message that holds the same block twice", where)
        message: dict[str, Any] = {
            "model": turn.author,
            "id": self._api_id("msg", number),
            "type": "message",
            "role": "assistant",
            "stop_reason": "tool_use" if turn.calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": turn.context_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": len(turn.sampled.ids) if turn.sampled is not None else 0,
            },
        }
        request_id = self._api_id("req", number)
        for block in turn.blocks:
            record = self._record(
                "assistant",
                message={**message, "content": [_content(block, where)]},
                requestId=request_id,
            )
            if isinstance(block, ToolCall):
                self.record_of_call[block.id] = record["uuid"]
            yield record

    def result(self, turn: Turn, *, where: str) -> dict[str, Any]:
        """Record the result of one call, as a child of the record with the call."""
        if (
            len(turn.blocks) != 1
            or not isinstance(turn.blocks[0], ToolResult)
            or turn.author != ENVIRONMENT
        ):
            raise _unsupported(
                "a tool message that is not exactly one result of the environment", where
            )
        result = turn.blocks[0]
        if result.images:
            raise _unsupported("a picture in a result", where)
        if result.call_id not in self.record_of_call:
            raise _unsupported(
                f"a result of a call {result.call_id!r} that no message before it holds", where
            )
        block: dict[str, Any] = {
            "tool_use_id": result.call_id,
            "type": "tool_result",
            "content": result.text,
        }
        if result.is_error is not None:
            block["is_error"] = result.is_error
        caller_uuid = self.record_of_call[result.call_id]
        outcome = f"Error: {result.text}" if result.is_error else {"type": "text"}
        message = {"role": "user", "content": [block]}
        return self._record(
            "user",
            parent=caller_uuid,
            message=message,
            toolUseResult=outcome,
            sourceToolAssistantUUID=caller_uuid,
        )

    def user(self, turn: Turn, *, where: str) -> dict[str, Any]:
        """Record a message of the human, or of the agent program if a reader will recognise it."""
        texts = [block.text for block in turn.blocks if isinstance(block, Text)]
        if len(texts) != len(turn.blocks) or not all(texts):
            raise _unsupported("a user message that is not text", where)
        expected = Authorship(turn.author or "", turn.tag)
        for is_meta in (False, True):
            if all(authorship(text, is_meta=is_meta) == expected for text in texts):
                flags: dict[str, Any] = {"isMeta": True} if is_meta else {}
                content = (
                    texts[0]
                    if len(texts) == 1
                    else [{"type": "text", "text": text} for text in texts]
                )
                return self._record("user", message={"role": "user", "content": content}, **flags)
        raise _unsupported(
            f"a user message by {turn.author!r} with the tag {turn.tag!r}, which no reader could"
            " tell",
            where,
        )

    def _record(self, kind: str, *, parent: str | None = None, **fields: Any) -> dict[str, Any]:
        record_id = str(uuid.uuid5(_NAMESPACE, f"{self.session_id}/record/{self.num_records}"))
        time = (self.start + timedelta(seconds=SECONDS_PER_RECORD * self.num_records)).strftime(
            "%Y-%m-%dT%H:%M:%S.000Z"
        )
        record = {
            "parentUuid": parent or self.parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": self.session.cwd,
            "sessionId": self.session_id,
            "version": VERSION,
            "gitBranch": self.branch,
            "type": kind,
            **fields,
            "uuid": record_id,
            "timestamp": time,
        }
        self.parent = record_id
        self.num_records += 1
        return record

    def _api_id(self, prefix: str, number: int) -> str:
        return (
            f"{prefix}_01{uuid.uuid5(_NAMESPACE, f'{self.session_id}/{prefix}/{number}').hex[:22]}"
        )


def _check_session(session: Session) -> None:
    if not session.cwd:
        raise DataError(
            "the session names no folder",
            where=session.id,
            fix="give it one: replace(session, cwd='/work/project')",
        )
    if not session.turns:
        raise _unsupported("a session without a turn", session.id)
    if (
        session.segments != (Segment(start=0, end=len(session.turns)),)
        or session.copied
        or session.parent is not None
    ):
        raise _unsupported("rewinds, compactions, copied turns or a subagent", session.id)
    calls = [call.id for turn in session.turns for call in turn.calls]
    results = [result.call_id for turn in session.turns for result in turn.results]
    if len({*calls}) != len(calls) or len({*results}) != len(results):
        raise _unsupported("two calls or two results with one id", session.id)


def _is_one_text(blocks: tuple[Block, ...]) -> bool:
    return len(blocks) == 1 and isinstance(blocks[0], Text)


def _content(block: Block, where: str) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if isinstance(block, ToolCall):
        return {
            "type": "tool_use",
            "id": block.id,
            "name": block.name,
            "input": dict(block.arguments),
        }
    raise _unsupported(f"a block {type(block).__name__} in an assistant message", where)


def _json_line(record: Mapping[str, Any], session: Session) -> str:
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        line.encode("utf-8")
    # NaN, a lone surrogate, or a type that JSON cannot express
    except (ValueError, TypeError, RecursionError) as error:
        raise _unsupported(f"a value that is not JSON text: {error}", session.id) from error
    return line + "\n"


def _unsupported(content: str, where: str) -> DataError:
    return DataError(
        f"a Claude Code log has no place for {content}",
        where=where,
        fix="keep this session in sessions.jsonl",
    )
