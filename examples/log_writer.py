"""Write small logs in the layout of four eras of Claude Code, for the demonstration and for tests.

Only what a reader can meet in a real log is written; every id is derived from names, so the files
never change.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

NAMESPACE = uuid.UUID("6f1c2f0e-8a53-4f0e-9a57-0d6a3c1b7e11")
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Call:
    """A call and its result; `result` None = the log ends before the result."""

    tool: str
    arguments: Mapping[str, Any]
    result: str | list[dict[str, Any]] | None
    is_error: bool | None = None
    beside: str = ""  # text typed while the call ran, in the same record as its result


class LogWriter:
    """The records of one session, in order; `human` and `act` chain them as Claude Code does.

    >>> log = LogWriter("demo", version="2.1.30", cwd="/home/dev/inkwell")
    >>> _ = log.human("hi")
    >>> _ = log.act("hello")
    >>> [record["type"] for record in log.records]
    ['user', 'assistant']
    """

    def __init__(
        self,
        name: str,
        *,
        version: str,
        cwd: str,
        model: str = "claude-sonnet-4-5-20250929",
        branch: str = "main",
    ) -> None:
        self.name = name
        self.version = version
        self.cwd = cwd
        self.model = model
        self.branch = branch
        self.era = tuple(int(part) for part in version.split("."))
        self.session_id = self._uuid("session")
        self.records: list[dict[str, Any]] = []
        self.parent: str | None = None
        self.agent_id = ""
        self.context_tokens = 4000
        self._count = 0

    # ---- ids and envelopes -----------------------------------------------------------------------

    def _uuid(self, label: str) -> str:
        return str(uuid.uuid5(NAMESPACE, f"{self.name}/{label}"))

    def _short(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_01{uuid.uuid5(NAMESPACE, f'{self.name}/{prefix}/{self._count}').hex[:22]}"

    def _stamp(self) -> str:
        return (START + timedelta(seconds=7 * len(self.records))).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def record(
        self, kind: str, *, parent: str | bool | None = True, chain: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """Append a record with the envelope of its era; `parent` True = the last record of the
        chain."""
        row: dict[str, Any] = {
            "parentUuid": self.parent if parent is True else parent or None,
            "isSidechain": bool(self.agent_id),
            "userType": "external",
            "cwd": self.cwd,
            "sessionId": self.session_id,
            "version": self.version,
        }
        if self.era >= (1, 0, 60):
            row["gitBranch"] = self.branch
        if self.agent_id and self.era >= (2, 0, 0):
            row["agentId"] = self.agent_id
        row |= {
            "type": kind,
            **fields,
            "uuid": self._uuid(f"record {len(self.records)}"),
            "timestamp": self._stamp(),
        }
        self.records.append(row)
        if chain:
            self.parent = row["uuid"]
        return row

    def bare(self, kind: str, **fields: Any) -> None:
        """Append a record outside the chain (summary, snapshot, queue-operation)."""
        self.records.append({"type": kind, **fields})

    # ---- messages --------------------------------------------------------------------------------

    def human(self, text: str, **fields: Any) -> str:
        """A user message; returns its uuid."""
        return self.record("user", message={"role": "user", "content": text}, **fields)["uuid"]

    def injected(self, text: str, **fields: Any) -> None:
        """A user message that Claude Code injects, in the list form."""
        self.record(
            "user", message={"role": "user", "content": [{"type": "text", "text": text}]}, **fields
        )

    def snapshot(self) -> None:
        """The record of file backups before a prompt, from 2.0 on."""
        name = self._uuid(f"snapshot {len(self.records)}")
        self.bare(
            "file-history-snapshot",
            messageId=name,
            snapshot={"messageId": name, "trackedFileBackups": {}},
            isSnapshotUpdate=False,
        )

    def assistant(
        self, blocks: Sequence[dict[str, Any]], *, message_id: str = "", stop: str | None = None
    ) -> list[str]:
        """One API message, one record a block; returns the records' uuids."""
        message_id = message_id or self._short("msg")
        self.context_tokens += 350
        uuids: list[str] = []
        for place, block in enumerate(blocks):
            usage = {
                "input_tokens": 6,
                "cache_creation_input_tokens": 350,
                "cache_read_input_tokens": self.context_tokens - 350,
                "output_tokens": 4 + 30 * place,
            }
            message = {
                "model": self.model,
                "id": message_id,
                "type": "message",
                "role": "assistant",
                "content": [block],
            }
            message |= {
                "stop_reason": stop if self.era >= (2, 1, 200) else None,
                "stop_sequence": None,
                "usage": usage,
            }
            uuids.append(
                self.record("assistant", message=message, requestId=self._short("req"))["uuid"]
            )
        return uuids

    def act(
        self, text: str, *calls: Call, thinking: str | None = None, interleaved: bool = False
    ) -> list[str]:
        """A message with text and calls, then the results; returns the call ids.

        `interleaved` puts the first result between the records of the message, as happens since
        2.1.25.
        """
        blocks: list[dict[str, Any]] = []
        if thinking is not None:
            blocks.append({"type": "thinking", "thinking": thinking, "signature": "c2lnbmF0dXJl"})
        if text:
            blocks.append({"type": "text", "text": text})
        ids = [self._short("toolu") for _ in calls]
        uses = [
            {"type": "tool_use", "id": i, "name": c.tool, "input": dict(c.arguments)}
            for i, c in zip(ids, calls, strict=True)
        ]
        stop = "tool_use" if calls else "end_turn"
        message_id = self._short("msg")
        if interleaved and len(uses) > 1:
            first = self.assistant([*blocks, uses[0]], message_id=message_id, stop=stop)[-1]
            after = self.parent
            self.result(ids[0], calls[0], first)
            self.parent = after
            owners = [first, *self.assistant(uses[1:], message_id=message_id, stop=stop)]
            rest = list(zip(ids, calls, owners, strict=True))[1:]
        else:
            uuids = self.assistant([*blocks, *uses], message_id=message_id, stop=stop)
            rest = list(zip(ids, calls, uuids[len(blocks) :], strict=True))
        for call_id, call, owner in rest:
            self.result(call_id, call, owner)
        return ids

    def result(self, call_id: str, call: Call, owner: str) -> None:
        """The result of one call; its parent is the record with the call."""
        if call.result is None:
            return
        block: dict[str, Any] = {
            "tool_use_id": call_id,
            "type": "tool_result",
            "content": call.result,
        }
        if call.is_error is not None:
            block["is_error"] = call.is_error
        content = [block, {"type": "text", "text": call.beside}] if call.beside else [block]
        outcome = f"Error: {call.result}" if call.is_error else {"type": "text"}
        extra: dict[str, Any] = {"sourceToolAssistantUUID": owner} if self.era >= (2, 1, 10) else {}
        self.record(
            "user",
            parent=owner,
            message={"role": "user", "content": content},
            toolUseResult=outcome,
            **extra,
        )

    def synthetic(self, text: str, *, api_error: bool = False) -> None:
        """An assistant record that no model wrote."""
        message = {
            "id": self._uuid(f"synthetic {len(self.records)}"),
            "model": "<synthetic>",
            "role": "assistant",
            "type": "message",
        }
        self.record(
            "assistant",
            message={**message, "content": [{"type": "text", "text": text}]},
            isApiErrorMessage=api_error,
        )

    def progress(self, data: Mapping[str, Any], call_id: str) -> None:
        """A progress record of a running call (2.0.64-2.1.42)."""
        self.record(
            "progress",
            data=dict(data),
            toolUseID=f"progress-{len(self.records)}",
            parentToolUseID=call_id,
        )

    def attachment(self, payload: Mapping[str, Any], *, rendered: str = "") -> None:
        """An attachment record (from 2.1.202 on); `rendered` as the newest era keeps it."""
        extra: dict[str, Any] = {"rendered": [{"content": rendered}]} if rendered else {}
        self.record("attachment", attachment=dict(payload), **extra)

    # ---- files -----------------------------------------------------------------------------------

    def text(self) -> str:
        """The log as it is on disk."""
        return "".join(
            json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
            for row in self.records
        )

    def write(self, folder: Path, name: str = "") -> Path:
        """Write `<folder>/<session id>.jsonl` (or `name`) and return its path."""
        path = folder / (name or f"{self.session_id}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(), encoding="utf-8", newline="\n")
        return path

    def subagent(self, agent_id: str) -> LogWriter:
        """A writer for the messages of a subagent of this session."""
        child = LogWriter(
            f"{self.name}/{agent_id}",
            version=self.version,
            cwd=self.cwd,
            model=self.model,
            branch=self.branch,
        )
        child.session_id, child.agent_id = self.session_id, agent_id
        return child
