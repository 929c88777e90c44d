"""A small agent program: it asks for messages by chat completions, and runs their commands.

    python agent_program.py {url} {task}

Standard library only. It says in RESULT lines whether anything but the endpoint can be reached.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from typing import Any

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def ask(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "student", "messages": messages, "tools": [BASH]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["message"]


def outside() -> bool:
    """Whether another address than the endpoint's can be reached."""
    for address in (("192.0.2.1", 80), ("127.0.0.1", 22)):
        try:
            socket.create_connection(address, timeout=1).close()
            return True
        except OSError:
            pass
    return False


def main(url: str, task: str) -> int:
    assert not outside() and "PYTHONPATH" not in os.environ
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for _ in range(20):
        message = ask(url, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return 0
        for call in message["tool_calls"]:
            command = json.loads(call["function"]["arguments"]).get("command", "")
            done = subprocess.run(
                ["/bin/sh", "-c", command], capture_output=True, text=True, cwd="/repo"
            )
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr}
            )
    return 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
