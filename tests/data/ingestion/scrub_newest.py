"""Take the agent program's own words out of its logs, so that small sessions of our own can be
committed: what newest_logs/ was made with.

    python -m tests.data.ingestion.scrub_newest FOLDER_OF_LOGS tests/data/ingestion/newest_logs

The system prompt, the descriptions of tools and agents, and what the program says of the machine
are replaced by words of ours. Only the hashes of what was replaced are worked out anew, by the rule
that the reader checks; all others are the program's own. Prints how many.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from composer_replication.data.ingestion.requests import message_hash, shape_hash

SYSTEM = "You are a coding agent. Read before you edit."
ENVIRONMENT = "# Environment\nWorking directory: /home/dev/calc\nToday's date is 2026-11-22."
SUMMARY = (
    "This session is being continued from a previous conversation that ran out of context.\n"
    "Summary:\n1. Request: fix calc.py and run the tests. calc.py was read. Next: edit, then test."
)
DROPPED = (
    "requestDigest",
    "params",
    "entrypoint",
    "userType",
    "permissionDecision",
    "toolUseResult",
)


def scrub(rows: list[dict[str, Any]], counts: Counter[str]) -> list[dict[str, Any]]:
    """Replace the agent program's own texts in the records of one log by ours."""
    renamed: dict[str, str] = {}
    for row in rows:
        kind = row["type"]
        if kind == "api-request-shape":
            old = row["shapeHash"]
            row["shape"] = {
                "system": [{"type": "text", "text": SYSTEM}],
                "tools": [_tool(tool) for tool in row["shape"]["tools"]],
            }
            row["shapeHash"] = renamed[old] = shape_hash(row["shape"])
        elif kind == "api-request-blob":
            old = row["hash"]
            row["message"] = _message(row["message"])
            row["hash"] = renamed[old] = message_hash(row["message"])
            counts["own words" if old != row["hash"] else "as hashed by the program"] += 1
        elif kind == "attachment":
            _attachment(row)
        elif kind == "user" and row.get("isCompactSummary"):
            row["message"]["content"] = SUMMARY
    for row in rows:
        if row["type"] == "api-request":
            row["shapeHash"] = renamed.get(row["shapeHash"], row["shapeHash"])
            counts["as hashed by the program"] += sum(name not in renamed for name in row["tail"])
            row["tail"] = [renamed.get(name, name) for name in row["tail"]]
        agent = (
            row.get("toolUseResult", {}).get("agentId")
            if isinstance(row.get("toolUseResult"), dict)
            else None
        )
        for name in DROPPED:
            row.pop(name, None)
        if agent:
            row["toolUseResult"] = {"agentId": agent}
    return rows


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema", {})
    properties = {
        name: {"type": property_schema.get("type", "string")}
        for name, property_schema in schema.get("properties", {}).items()
    }
    plain = {"type": "object", "properties": properties, "required": schema.get("required", [])}
    return {"name": tool["name"], "description": f"The tool {tool['name']}.", "input_schema": plain}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "system":
        text = (
            ENVIRONMENT if "# Environment" in json.dumps(message) else "Today's date is 2026-11-22."
        )
        return {
            **message,
            "content": (
                [{"type": "text", "text": text}] if isinstance(message["content"], list) else text
            ),
        }
    if isinstance(message["content"], str):
        return {**message, "content": SUMMARY}
    return message


def _attachment(row: dict[str, Any]) -> None:
    inside = row["attachment"]
    if inside["type"] == "prompt_snapshot":
        tools = (
            {"tools": [{"name": t["name"], "schema": _tool(t["schema"])} for t in inside["tools"]]}
            if "tools" in inside
            else {}
        )
        row["attachment"] = {"type": "prompt_snapshot", "systemPrompt": [SYSTEM], **tools}
    elif row.get("rendered"):
        attachment = {key: value for key, value in inside.items() if key in ("type", "date")}
        row["attachment"], row["rendered"] = (
            attachment,
            [{"content": f"<system-reminder>\n{inside['type']}\n</system-reminder>"}],
        )


def main(source: Path, target: Path) -> None:
    """Write every log below `source` to `target`."""
    counts: Counter[str] = Counter()
    for path in sorted(source.rglob("*.jsonl")):
        rows = scrub(
            [json.loads(line) for line in path.read_text("utf-8").split("\n") if line], counts
        )
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(
            "".join(
                json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows
            ),
            "utf-8",
        )
    print(dict(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
