"""Make a fixture of the requests that an agent program sent: its structure without its prose.

    python -m tests.serve.scrub_requests requests.jsonl script.json > fixture.jsonl

The first line is {"script": ..., "tag": ...}: what the student wrote, and the beginning of the ids
that the endpoint minted. Each other line is a request: path, the headers that say what it is for,
and the body, in which every text that is neither the task's nor the student's is replaced by its
hash. Equal texts stay equal, different ones different. No key is in it: programs got a dummy.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

HEADERS = ("x-claude-code-agent-id", "x-openai-subagent", "x-codex-turn-metadata")
KEPT_KEYS = ("type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "name", "model")
_ID = re.compile(r"call_([0-9a-f]{8})\d{4}")
_SHORT = 12


def scrubbed(value: Any, kept: str, key: str = "") -> Any:
    """A JSON value with its prose replaced."""
    if isinstance(value, dict):
        return {
            k: v if k in ("parameters", "input_schema") and not v else scrubbed(v, kept, k)
            for k, v in value.items()
            if k not in ("metadata", "cache_control", "client_metadata", "examples")
            and not (k == "description" and isinstance(v, str) and v not in kept)
        }
    if isinstance(value, list):
        return [scrubbed(item, kept, key) for item in value]
    if (
        not isinstance(value, str)
        or key in KEPT_KEYS
        or len(value) <= _SHORT
        or value.strip() in kept
    ):
        return value
    if key == "arguments":
        return value
    return f"text {hashlib.sha256(value.encode()).hexdigest()[:8]}"


def main(requests: Path, script: Path) -> None:
    rows = [json.loads(line) for line in requests.read_text("utf-8").split("\n") if line]
    (tag, *_) = _ID.findall(json.dumps(rows)) or [""]
    written = json.loads(script.read_text("utf-8"))
    kept = json.dumps(written, ensure_ascii=False)
    print(json.dumps({"tag": tag, "script": written}, ensure_ascii=False))
    for row in rows:
        headers = {k: v for k, v in row["headers"].items() if k in HEADERS}
        if "x-codex-turn-metadata" in headers:
            kind = json.loads(headers["x-codex-turn-metadata"]).get("request_kind")
            headers["x-codex-turn-metadata"] = json.dumps({"request_kind": kind})
        body = scrubbed(row["body"], kept)
        line = {"path": row["path"], "headers": headers, "body": body}
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
