"""Read trajectories in ATIF, the format of Harbor (schema_version "ATIF-v1.x").

A step is {"source": "system" | "user" | "agent", "message", "reasoning_content", "tool_calls",
"observation"}; the results of the calls stand in the step that made them. A result has no place for
an error flag: `extra.is_error` is read, where a writer keeps it.
"""

from __future__ import annotations

from typing import Any

from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Block,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from composer_replication.data.ingestion.formats.chat_messages import tools_of
from composer_replication.data.ingestion.formats.log_format import (
    LogContent,
    LogFormat,
    SessionDraft,
    arguments_of,
    content_text,
    dict_at,
    int_at,
    list_at,
    reported_usage,
    text_at,
    value_at,
)


def _fits(document: Any) -> bool:
    return text_at(document, "schema_version").startswith("ATIF-") and bool(
        list_at(document, "steps")
    )


def _read(content: LogContent) -> list[SessionDraft]:
    document = dict_at(content.document)
    agent = dict_at(document, "agent")
    draft = SessionDraft(id=text_at(document, "session_id") or text_at(document, "trajectory_id"))
    draft.tools = tools_of(agent.get("tool_definitions"))
    draft.cwd = text_at(document, "extra", "cwd")
    draft.versions.add(f"{text_at(agent, 'name')} {text_at(agent, 'version')}".strip())
    content.raw.versions |= draft.versions
    outcome = value_at(document, "extra", "outcome")
    draft.outcome = float(outcome) if isinstance(outcome, int | float) else None
    model = text_at(agent, "model_name") or None
    for step in list_at(document, "steps"):
        draft.saw_time(text_at(step, "timestamp"))
        _add_step(draft, step, model=model, content=content)
    if text_at(document, "continued_trajectory_ref"):
        draft.lacks.append(f"the rest: it stands in {document['continued_trajectory_ref']}")
    return [draft]


def _add_step(draft: SessionDraft, step: Any, *, model: str | None, content: LogContent) -> None:
    source, text = text_at(step, "source"), content_text(dict_at(step).get("message"))
    tag = text_at(step, "extra", "tag")
    results = list_at(step, "observation", "results")
    if text_at(step, "extra", "context_management", "type") == "compaction":
        draft.add_event("compaction", text=text)
    if source == "agent":
        _add_answer(draft, step, text, model=model)
        content.raw.assistant_records += 1
    elif source == "user":
        author = text_at(step, "extra", "author") or HUMAN
        draft.add("user", author, [Text(text)], tag=tag)
    elif source == "system":
        if not draft.messages:
            draft.add("system", HARNESS, [Text(text)])
        elif not results:
            draft.add("user", HARNESS, [Text(text)], tag=tag or "meta")
    else:
        content.raw.unknown_types[source or "?"] += 1
    _add_results(draft, step, results)


def _add_answer(draft: SessionDraft, step: Any, text: str, *, model: str | None) -> None:
    blocks: list[Block] = []
    if reasoning := text_at(step, "reasoning_content"):
        blocks.append(Thinking(reasoning))
    if text:
        blocks.append(Text(text))
    for call in list_at(step, "tool_calls"):
        arguments = arguments_of(dict_at(call).get("arguments"))
        name = text_at(call, "function_name")
        blocks.append(ToolCall(draft.unique_id(text_at(call, "tool_call_id")), name, arguments))
    message = draft.add("assistant", text_at(step, "model_name") or model, blocks)
    metrics = dict_at(step, "metrics")
    message.context_tokens = int_at(metrics, "prompt_tokens")
    message.usage = reported_usage(
        output=int_at(metrics, "completion_tokens"),
        cached=int_at(metrics, "cached_tokens"),
        cache_write=int_at(metrics, "extra", "cache_write_tokens"),
        hour_write=int_at(metrics, "extra", "hour_write_tokens"),
        usd=metrics.get("cost_usd"),
    )


def _add_results(draft: SessionDraft, step: Any, results: list[Any]) -> None:
    """Add what came back: to a call, else as a message of the environment."""
    calls = [text_at(call, "tool_call_id") for call in list_at(step, "tool_calls")]
    for number, result in enumerate(results):
        text = content_text(dict_at(result).get("content"))
        call_id = text_at(result, "source_call_id") or (
            calls[number] if number < len(calls) else ""
        )
        flag = value_at(result, "extra", "is_error")
        if call_id:
            draft.add_result(ToolResult(call_id, text, flag if isinstance(flag, bool) else None))
        elif text:
            draft.add("user", ENVIRONMENT, [Text(text)])


ATIF = LogFormat(name="atif", agent="an ATIF writer", layout="document", fits=_fits, read=_read)
