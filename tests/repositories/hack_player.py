"""Play a scripted episode in a sandbox: apply its tool calls to a tree, give back what changed.

Run inside by `play`: this file is also the program of the sandbox (standard library only).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = "/repo"


def fill(value: Any) -> Any:
    """{root} in every string."""
    if isinstance(value, str):
        return value.replace("{root}", ROOT)
    if isinstance(value, dict):
        return {key: fill(item) for key, item in value.items()}
    return [fill(item) for item in value] if isinstance(value, list) else value


def apply_call(name: str, arguments: dict[str, Any]) -> None:
    """One call; Read, Grep and Glob change nothing."""
    if name == "Bash":
        limit = min(arguments.get("timeout", 20_000) / 1000, 20)
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["/usr/bin/bash", "-c", arguments["command"]]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, **options)
        if not arguments.get("run_in_background"):
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
    elif name in ("Write", "Edit"):
        path = os.path.join(ROOT, arguments["file_path"])
        if name == "Write":
            text = arguments["content"]
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            if arguments["old_string"] not in text:
                return
            count = -1 if arguments.get("replace_all") else 1
            text = text.replace(arguments["old_string"], arguments["new_string"], count)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def texts() -> dict[str, str]:
    """The text files of the tree."""
    found = {}
    for parent, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for name in names:
            path = os.path.join(parent, name)
            try:
                if os.path.islink(path) or os.path.getsize(path) > 1 << 20:
                    continue
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, ROOT)] = file.read()
            except (OSError, ValueError):
                continue
    return found


def serve() -> None:
    """The inside: calls on stdin, changes on stdout."""
    out = os.dup(1)
    before = texts()
    for call in json.loads(sys.stdin.read()):
        try:
            apply_call(call["name"], call["input"])
        except (OSError, ValueError, KeyError):
            continue  # a call may fail: the next one
    after = texts()
    reply = {
        "changed": {path: text for path, text in after.items() if before.get(path) != text},
        "deleted": [path for path in before if path not in after],
    }
    with open(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(reply))


def play(tree: Path, calls: list[dict[str, Any]], *, python: str) -> dict[str, Any]:
    """The outside: play calls on a copy of a tree in a sandbox."""
    from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox

    limits = ProcessLimits(cpu_s=30, memory_mb=1024, processes=64, file_mb=32, tree_mb=64)
    sandbox = TreeSandbox(python=python, limits=limits, read_only=((__file__, "/player.py"),))
    process = sandbox.start(["/player.py"], tree=tree)
    try:
        out, err = process.communicate(json.dumps(fill(calls)).encode(), timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"changed": {}, "deleted": [], "lost": "took too long"}
    try:
        return json.loads(out)
    except ValueError:
        return {"changed": {}, "deleted": [], "lost": err.decode(errors="replace")[-200:]}


if __name__ == "__main__":
    serve()
