"""Counts of other agents' logs by the shortest way, without any code of the package: what the
readers are compared with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Counts = tuple[int, int, int, int]
"""Messages of the model, calls, results, results that say that the call failed."""


def rows_of(path: Path) -> list[Any]:
    """The lines of a file that are JSON."""
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def codex(path: Path) -> Counts:
    """Responses are stretches between `token_count` records in which something was written."""
    written = messages = 0
    calls, results, failed = set(), set(), 0
    for row in rows_of(path):
        payload = row.get("payload") or {}
        kind = payload.get("type", "")
        if kind == "token_count" and payload.get("info"):
            messages += bool(written)
            written = 0
        written += kind == "message" and payload["role"] == "assistant"
        if row["type"] == "response_item" and kind.endswith("_call") and "call_id" in payload:
            calls.add(payload["call_id"])
        written += row["type"] == "response_item" and kind.endswith("_call")
        if row["type"] == "response_item" and kind.endswith("_output"):
            results.add(payload["call_id"])
            text = json.dumps(payload["output"])
            failed += bool(
                re.match(r'"(Chunk ID: \S+)?.{0,60}Process exited with code [1-9]', text)
                or re.match(r'"Exit code: [1-9]', text)
                or re.match(r'"(apply_patch verification failed|exec command rejected)', text)
                or "Script failed" in text[:60]
            )
    return messages, len(calls), len(results), failed


def gemini_cli(path: Path) -> Counts:
    """The last record of each message id, up to the place to which a person went back."""
    text = path.read_text("utf-8")
    rows = json.loads(text)["messages"] if text.startswith("{\n") else rows_of(path)
    last: dict[str, Any] = {}
    for row in rows:
        if "$rewindTo" in row:
            names = list(last)
            last = {name: last[name] for name in names[: names.index(row["$rewindTo"])]}
        elif "type" in row:
            last[row["id"]] = row
    answers = [row for row in last.values() if row["type"] == "gemini"]
    calls = [call for row in answers for call in row.get("toolCalls", [])]
    failed = sum(
        call["status"] != "success" or bool(re.search(r"Exit Code: [1-9]", json.dumps(call)))
        for call in calls
    )
    return len(answers), len(calls), sum("result" in call for call in calls), failed


def swe_agent(path: Path) -> Counts:
    """Every step has one action and one observation."""
    value = json.loads(path.read_text("utf-8"))
    messages = [row for row in value["history"] if row["role"] == "assistant"]
    answers = [row for row in value["history"] if row["role"] == "tool"]
    failed = sum(
        bool(re.search("No replacement was performed|introduced new syntax error", json.dumps(row)))
        for row in answers
    )
    return len(messages), len(value["trajectory"]), len(answers), failed


def mini_swe_agent(path: Path) -> Counts:
    """A command per message, in a block or a call; the exit codes as printed."""
    value = json.loads(path.read_text("utf-8"))
    messages = value if isinstance(value, list) else value["messages"]
    written = [row for row in messages if row["role"] == "assistant"]
    asked = [row for row in written if "tool_calls" in row or row["content"].count("```") == 2]
    answers = messages[1:]
    answered = [b for a, b in zip(messages, answers, strict=False) if a in asked]
    results = [row for row in answered if row["role"] in ("user", "tool")]
    failed = sum("<returncode>0<" not in r["content"] and "<returncode>" in r["content"]
                 for r in results)  # fmt: skip
    return len(written), len(asked), len(results), failed


def openhands(path: Path) -> Counts:
    """Responses by their id; events without one are a message each."""
    events = json.loads(path.read_text("utf-8"))
    kept = [e for e in events if e.get("action") not in ("system", "change_agent_state")]
    responses = [
        e["tool_call_metadata"]["model_response"]["id"]
        if "tool_call_metadata" in e
        else str(e["id"])
        for e in kept
        if "action" in e and e["source"] == "agent"
    ]
    calls = [e for e in kept if "action" in e and e["action"] != "message"]
    results = [e for e in events if "cause" in e]
    failed = sum(
        e["observation"] == "error" or bool(re.search('"exit_code": [1-9]', json.dumps(e)))
        for e in results
    )
    return len(set(responses)), len(calls), len(results), failed


def openhands_sdk(path: Path) -> Counts:
    """One response per `llm_response_id`, or message of the agent."""
    rows = rows_of(path)
    calls = [row for row in rows if row["kind"] == "ActionEvent"]
    spoken = [row for row in rows if row["kind"] == "MessageEvent" and row["source"] == "agent"]
    results = [row for row in rows if "action_id" in row]
    failed = sum(
        row["kind"] == "UserRejectObservation" or row["observation"].get("exit_code", 0) > 0
        for row in results
    )
    messages = {row["llm_response_id"] for row in calls}
    return len(messages) + len(spoken), len(calls), len(results), failed


def atif(path: Path) -> Counts:
    """Steps of the agent, their calls and what came back to a call."""
    steps = json.loads(path.read_text("utf-8"))["steps"]
    agent = [step for step in steps if step["source"] == "agent"]
    results = [r for step in agent for r in step.get("observation", {}).get("results", [])]
    results = [r for r in results if "source_call_id" in r]
    calls = sum(len(step.get("tool_calls", [])) for step in agent)
    return len(agent), calls, len(results), sum("extra" in r for r in results)


def opencode(path: Path) -> Counts:
    """Steps of the assistant's messages; a call is done with the state that it has."""
    value = json.loads(path.read_text("utf-8"))
    if "messages" in value:
        parts = [part for message in value["messages"] for part in message["parts"]]
    else:
        parts = [json.loads(p.read_bytes()) for p in path.parents[2].glob("part/*/*.json")]
    states = [part["state"] for part in parts if part["type"] == "tool"]
    done = [state for state in states if state["status"] in ("completed", "error")]
    failed = [s for s in done if s["status"] == "error" or s.get("metadata", {}).get("exit")]
    steps = sum(part["type"] == "step-start" for part in parts)
    return steps, len(states), len(done), len(failed)


def pi(path: Path) -> Counts:
    """Messages of the assistant that hold anything."""
    messages = [row["message"] for row in rows_of(path) if row["type"] == "message"]
    written = [m for m in messages if m["role"] == "assistant" and m["content"]]
    calls = [part for m in written for part in m["content"] if part["type"] == "toolCall"]
    results = [m for m in messages if m["role"] == "toolResult"]
    return len(written), len(calls), len(results), sum(m["isError"] for m in results)


def copilot_cli(path: Path) -> Counts:
    """Every call is started and completed by a record of its own."""
    rows = rows_of(path)
    done = [row["data"] for row in rows if row["type"] == "tool.execution_complete"]
    failed = sum(
        not data["success"]
        or bool(re.search(r"with exit code [1-9]\d*>$", data["result"]["content"].strip()))
        for data in done
    )
    written = [row["data"]["toolRequests"] for row in rows if row["type"] == "assistant.message"]
    return len(written), sum(map(len, written)), len(done), failed


def cline(path: Path) -> Counts:
    """A closing tag of a tool, or a block, is a call; "Result:" or a block is an answer."""
    text = path.read_text("utf-8")
    calls = len(re.findall(r"</(?:read_file|execute_command|attempt_completion)>", text))
    failed = len(re.findall("execution failed|Exit code: [1-9]|user denied", text))
    failed += text.count('"content": "File not found')
    return (
        text.count('"role": "assistant"'),
        calls + text.count('"tool_use"'),
        text.count("] Result:") + text.count('"tool_result"'),
        failed,
    )


def cline_cli(path: Path) -> Counts:
    """A result is a list of items, or the text of one; each says whether it went well."""
    rows = json.loads(path.read_text("utf-8"))["messages"]
    parts = [part for row in rows for part in row["content"]]
    results = [part for part in parts if part["type"] == "tool_result"]
    failed = sum(
        part.get("is_error", False) or bool(re.search(r'success\\?": ?false', json.dumps(part)))
        for part in results
    )
    calls = sum(part["type"] == "tool_use" for part in parts)
    return sum(row["role"] == "assistant" for row in rows), calls, len(results), failed


def messages(path: Path) -> Counts:
    """Roles and ids as they stand."""
    text = path.read_text("utf-8")
    calls = text.count('"function": {"name": "bash", "arg') + text.count('"name": "read_file"')
    return (
        text.count('"role": "assistant"'),
        calls + text.count('"tool_use"'),
        text.count('"role": "tool"') + text.count('"tool_result"'),
        text.count('"is_error": true'),
    )


NAIVE: dict[str, Callable[[Path], Counts]] = {
    "codex": codex,
    "gemini_cli": gemini_cli,
    "gemini_cli_lines": gemini_cli,
    "swe_agent": swe_agent,
    "mini_swe_agent": mini_swe_agent,
    "openhands": openhands,
    "openhands_sdk_lines": openhands_sdk,
    "atif": atif,
    "opencode": opencode,
    "opencode_storage": opencode,
    "pi": pi,
    "copilot_cli": copilot_cli,
    "cline": cline,
    "cline_cli": cline_cli,
    "messages": messages,
    "messages_lines": messages,
}
