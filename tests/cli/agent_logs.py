"""Logs of Claude Code as a small machine holds them: sessions on days, with usage and mistakes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

MODEL = "claude-opus-4-5-20251101"
USAGE = {
    "input_tokens": 1_000,
    "cache_read_input_tokens": 50_000,
    "cache_creation_input_tokens": 2_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 1_500},
    "output_tokens": 440,
}
USAGE_USD = (1_000 * 5 + 50_000 * 0.5 + 500 * 6.25 + 1_500 * 10 + 440 * 25) / 1e6
"""What one message of USAGE costs, by hand: five dollars per million plain, a tenth of it read from
the cache, 1.25 times written for five minutes, twice for an hour, and 25 dollars written."""
NO_MATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"
REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was"
    " a file edit, the new_string was NOT written to the file). To tell you how to proceed, the"
    " user said:\n"
)


class LogBuilder:
    """The records of one session, ten seconds apart."""

    def __init__(self, name: str, *, day: str, folder: str = "shop", model: str = MODEL) -> None:
        self.name, self.folder, self.model = name, folder, model
        self.time = datetime.fromisoformat(f"{day}T10:00:00+00:00")
        self.lines: list[str] = []
        self.add("user", {"role": "user", "content": "Please fix the cart."})

    def add(self, kind: str, message: dict[str, Any]) -> None:
        """Add a record."""
        number = len(self.lines)
        record = {
            "type": kind,
            "uuid": f"{self.name}-{number}",
            "parentUuid": f"{self.name}-{number - 1}" if number else None,
            "sessionId": self.name,
            "version": "2.1.5",
            "cwd": f"/home/dev/{self.folder}",
            "isSidechain": False,
            "timestamp": self.time.isoformat(),
            "message": message,
        }
        self.time += timedelta(seconds=10)
        self.lines.append(json.dumps(record))

    def calls(self, *calls: tuple[str, dict[str, Any]], usage: Any = None) -> list[str]:
        """Add one message with calls; returns their ids."""
        number = len(self.lines)
        ids = [f"{self.name}_c{number}_{i}" for i in range(len(calls))]
        blocks = [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            for call_id, (name, arguments) in zip(ids, calls, strict=True)
        ]
        message = {"role": "assistant", "id": f"msg_{self.name}_{number}", "model": self.model}
        self.add("assistant", {**message, "content": blocks, "usage": usage or USAGE})
        return ids

    def result(self, call_id: str, text: str, *, error: bool = False) -> None:
        """Add the result of a call."""
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": error}
        self.add("user", {"role": "user", "content": [block]})

    def read(self) -> None:
        """Add a reading that works, of a file that was not read before."""
        path = f"/home/dev/{self.folder}/part_{len(self.lines)}.py"
        (call_id,) = self.calls(("Read", {"file_path": path}))
        self.result(call_id, "     1→def total():\n     2→    return 0")

    def failed_edit(self) -> None:
        """Add an edit whose old text is not in the file."""
        (call_id,) = self.calls(("Edit", edit_of(self.folder, len(self.lines))))
        self.result(call_id, NO_MATCH, error=True)

    def refused_edit(self, words: str) -> None:
        """Add an edit that a person refuses."""
        (call_id,) = self.calls(("Edit", edit_of(self.folder, len(self.lines))))
        self.result(call_id, REFUSED + words, error=True)

    def write(self, folder: Path) -> Path:
        """Write the log into a projects folder, as the agent would."""
        path = folder / f"-home-dev-{self.folder}" / f"{self.name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines) + "\n", "utf-8")
        return path


def edit_of(folder: str, number: int) -> dict[str, Any]:
    """The arguments of an edit."""
    return {
        "file_path": f"/home/dev/{folder}/cart.py",
        "old_string": f"return {number + 100}",
        "new_string": "return 2",
    }


def sessions_on(
    days: Sequence[str], *, to: Path, failures: int = 1, reads: int = 3, folder: str = "shop"
) -> None:
    """Write one session for each day, with readings that work and edits that fail."""
    for number, day in enumerate(days):
        log = LogBuilder(f"{folder}-{day}-{number}", day=day, folder=folder)
        for _ in range(reads):
            log.read()
        for _ in range(failures):
            log.failed_edit()
        log.write(to)
