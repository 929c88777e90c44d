"""The record of a judge's run, read outside of the sandbox.

    record = read_judge_record(data, key, tests=["tests/test_cart.py::test_sum"])
    record.refused          # "" if every test passed, once, and nothing was replaced

Every line carries an HMAC over itself and all lines before, under a key that was made for this run;
the last one is a seal. What the tested code writes there, or an end before the seal, is a refusal.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ENDED_EARLY = "the tests' process ended before its end"


@dataclass(slots=True, kw_only=True)
class JudgeRecord:
    """What a run's record says: the first reason against it, what the guards reported, how the
    tests ended, and the seal's notes; `broken` if it is not the launcher's from end to end,
    `forged` if no crash explains that, `unfinished` if one does, or the limit."""

    refused: str = ""
    broken: str = ""
    forged: bool = False
    unfinished: bool = False
    guards: list[str] = field(default_factory=list[str])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    seal: dict[str, Any] | None = None


def read_judge_record(data: bytes, key: bytes, *, tests: Sequence[str]) -> JudgeRecord:
    """Check every line of a record; each test must be there exactly once."""
    record = JudgeRecord()
    chain = b""
    for line in data.splitlines():
        body, _, tag = line.rpartition(b" ")
        chain = hmac.digest(key, chain + body, hashlib.sha256)
        if not hmac.compare_digest(tag, chain.hex().encode()):
            record.broken = "a line of the record is not the judge's"
        elif record.seal is not None:
            record.broken = "lines after the seal"
        else:
            _take(record, json.loads(body))
        if record.broken:
            break
    if record.seal is None and not record.broken:
        record.broken = ENDED_EARLY
    record.refused = record.broken or (record.guards or [""])[0] or _failing(record, tests)
    return record


def _take(record: JudgeRecord, row: dict[str, Any]) -> None:
    match row["kind"]:
        case "guard":
            record.guards.append(row["what"])
        case "seal":
            record.seal = row
        case _:
            name = row["id"]
            if name in record.outcomes:
                record.broken = f"{name} was reported twice"
            passed = row["outcome"] == "passed" and row["returned"] in ("passed", "")
            kept = row["outcome"] if row["outcome"] != "passed" else row["returned"]
            record.outcomes[name] = "passed" if passed else kept


def _failing(record: JudgeRecord, tests: Sequence[str]) -> str:
    for name in tests:
        if record.outcomes.get(name) != "passed":
            return f"{name} {record.outcomes.get(name, 'was not run')}"
    return ""
