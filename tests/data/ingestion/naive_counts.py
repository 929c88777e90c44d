"""Counts of a log straight from its JSON lines, written apart from the package to check it
independently."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def naive_counts(path: Path) -> dict[str, Any]:
    """Count the user and assistant records of one file; each uuid once."""
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
    talk = [r for r in rows if r["type"] in ("user", "assistant")]
    calls_of: dict[str, set[str]] = {}
    places: dict[str, list[int]] = {}
    results: list[dict[str, Any]] = []
    interrupts = 0
    for place, row in enumerate(talk):
        message = row["message"]
        blocks = message["content"] if isinstance(message["content"], list) else []
        if row["type"] == "assistant":
            places.setdefault(message["id"], []).append(place)
            calls_of.setdefault(message["id"], set()).update(
                b["id"] for b in blocks if b["type"] == "tool_use"
            )
        results += [b for b in blocks if b["type"] == "tool_result"]
        interrupts += sum(
            b["type"] == "text" and b["text"].startswith("[Request interrupted") for b in blocks
        )
    calls = set().union(*calls_of.values()) if calls_of else set()
    answered = {b["tool_use_id"] for b in results}
    return {
        "records": len(rows),
        "record_types": dict(
            Counter(r["type"] + (f"/{r['subtype']}" if r.get("subtype") else "") for r in rows)
        ),
        "versions": sorted({r["version"] for r in rows if r.get("version")}),
        "session_ids": len({r["sessionId"] for r in rows if r.get("sessionId")}),
        "models": dict(Counter(r["message"]["model"] for r in talk if r["type"] == "assistant")),
        "assistant_records": sum(r["type"] == "assistant" for r in talk),
        "assistant_messages": len(places),
        "sidechain_records": sum(bool(r.get("isSidechain")) for r in rows),
        "attachments": dict(
            Counter(r["attachment"]["type"] for r in rows if r["type"] == "attachment")
        ),
        "interleaved_messages": sum(
            any(talk[i]["type"] == "user" for i in range(p[0], p[-1])) for p in places.values()
        ),
        "parallel_messages": sum(len(c) > 1 for c in calls_of.values()),
        "tool_use": len(calls),
        "tool_result": len(results),
        "tool_use_without_result": len(calls - answered),
        "tool_result_without_use": len(answered - calls),
        "is_error": sum(b.get("is_error") is True for b in results),
        "interrupt_texts": interrupts,
        "compact_boundaries": sum(r.get("subtype") == "compact_boundary" for r in rows),
    }
