"""Sessions as ATIF, Harbor's trajectories.

    trajectory(session)                           # a document of schema ATIF-v1.7

ATIF: RFC 0001 of Harbor, as its models of version 0.25 check it. A result stands in the step that
made its call; `is_error`, authors and tags, for which it has no place, are in `extra`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from composer_replication.core.trace import (
    HARNESS,
    HUMAN,
    Session,
    Thinking,
    ToolResult,
    Turn,
    TurnUsage,
)
from composer_replication.data.chat import tool_to_chat

ATIF_VERSION = "ATIF-v1.7"


def trajectory(session: Session) -> dict[str, Any]:
    """A session as an ATIF document."""
    calls = session.calls()
    results: dict[int, list[ToolResult]] = {}
    for turn in session.turns:
        for result in turn.results:
            ref = calls.get(result.call_id)
            if ref is not None:
                results.setdefault(ref.turn, []).append(result)
    steps: list[dict[str, Any]] = []
    for index, turn in enumerate(session.turns):
        if turn.role == "tool" and not turn.text:
            continue
        step = _step(turn, results.get(index, []), copied=index < session.copied)
        steps.append({"step_id": len(steps) + 1, **step})
    authors = {turn.author for turn in session.turns if turn.role == "assistant"}
    agent: dict[str, Any] = {"name": session.source.format or "unknown", "version": "unknown"}
    if len(authors) == 1 and (model := authors.pop()):
        agent["model_name"] = model  # else it would be every step's
    if session.tools:
        agent["tool_definitions"] = [tool_to_chat(tool) for tool in session.tools]
    extra = {"cwd": session.cwd, "outcome": session.outcome}
    return {
        "schema_version": ATIF_VERSION,
        "session_id": session.id,
        "agent": agent,
        "steps": steps,
        "extra": {key: value for key, value in extra.items() if value not in ("", None)},
    }


def _step(turn: Turn, results: list[ToolResult], *, copied: bool) -> dict[str, Any]:
    source = {"assistant": "agent", "system": "system"}.get(turn.role, "user")
    step: dict[str, Any] = {"source": source, "message": turn.text}
    if turn.written_at:
        step["timestamp"] = datetime.fromtimestamp(turn.written_at, UTC).isoformat()
    if source == "agent":
        if turn.author:
            step["model_name"] = turn.author
        if thoughts := [block.text for block in turn.blocks if isinstance(block, Thinking)]:
            step["reasoning_content"] = "\n".join(thoughts)
        if turn.calls:
            step["tool_calls"] = [
                {"tool_call_id": c.id, "function_name": c.name, "arguments": dict(c.arguments)}
                for c in turn.calls
            ]
        if metrics := _metrics(turn):
            step["metrics"] = metrics
    if results:
        step["observation"] = {"results": [_result(result) for result in results]}
    if copied:
        step["is_copied_context"] = True
    extra = {"tag": turn.tag, "author": turn.author if turn.author not in (HUMAN, HARNESS) else ""}
    if source == "user" and turn.author == HARNESS:
        extra["author"] = HARNESS
    if source != "agent" and (kept := {key: value for key, value in extra.items() if value}):
        step["extra"] = kept
    return step


def _metrics(turn: Turn) -> dict[str, Any]:
    """What the provider reported of a message; ATIF has no place for writes to its cache."""
    usage = turn.usage or TurnUsage()
    writes = {
        "cache_write_tokens": usage.cache_write_tokens,
        "hour_write_tokens": usage.hour_write_tokens,
    }
    values = {
        "prompt_tokens": turn.context_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": usage.usd,
        "extra": {name: count for name, count in writes.items() if count},
    }
    return {name: value for name, value in values.items() if value}


def _result(result: ToolResult) -> dict[str, Any]:
    entry: dict[str, Any] = {"source_call_id": result.call_id, "content": result.text}
    return entry if result.is_error is None else {**entry, "extra": {"is_error": result.is_error}}
