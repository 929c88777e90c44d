"""A work folder whose sessions are asked about at a paid endpoint on this machine."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.core.codec import write_sessions
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

KEY = "sk-planted-" + "7hJ2mQ9x" * 4
TEACHERS = ("ash", "elm", "oak")
READ = ToolSpec(
    name="read", parameters={"type": "object", "properties": {"path": {"type": "string"}}}
)


def talk(name: str, *, steps: int) -> Session:
    """A session in which `claude` reads one file after the other."""
    turns = [Turn(role="user", author="human", blocks=(Text(f"Look at {name}."),))]
    for number in range(steps):
        call = ToolCall(f"{name}-{number}", "read", {"path": f"{name}/{number}.py"})
        turns.append(Turn(role="assistant", author="claude-opus-4-5", blocks=(call,)))
        turns.append(
            Turn(
                role="tool",
                author="environment",
                blocks=(ToolResult(call.id, f"line {number} of {name}", False),),
            )
        )
    last = Turn(role="assistant", author="claude-opus-4-5", blocks=())
    return Session(
        id=name,
        source=SourceRef(file="f"),
        turns=(*turns, last),
        segments=(Segment(start=0, end=len(turns) + 1),),
        tools=(READ,),
    )


def prepare(
    folder: Path, url: str, *, sessions: int, steps: int, each: Sequence[str] = (), **settings: Any
) -> Path:
    """Write sessions and settings, with `each` in every teacher's; returns the work folder."""
    work = folder / "recompose"
    write_sessions(
        work / "sessions.jsonl", [talk(f"s{number}", steps=steps) for number in range(sessions)]
    )
    usual = {
        "steps": '"all"',
        "gate": '"none"',
        "timeout_s": 30.0,
        "attempts": 8,
        "max_answer_tokens": 50,
        "sessions_at_once": 50,
    }
    replay = {**usual, **settings}
    lines = [
        "[replay]",
        f"teachers = {list(TEACHERS)}",
        *(f"{name} = {value}" for name, value in replay.items()),
    ]
    for teacher in TEACHERS:
        lines += [
            f"[replay.teacher.{teacher}]",
            f'model = "maker-{teacher}/{teacher}-1"',
            f'family = "{teacher}"',
            f'base_url = "{url}"',
        ]
        lines += [
            'key_env = "PLANTED_ROUTER_KEY"',
            "max_input_usd_per_mtok = 1.0",
            "max_output_usd_per_mtok = 4.0",
            "at_once = 16",
            *each,
        ]
    (folder / "recompose.toml").write_text("\n".join(lines) + "\n", "utf-8")
    return work


def start(folder: Path, *argv: str) -> subprocess.Popen[str]:
    """Start the command in its own process, with the key in its environment and the settings
    trusted as in CI."""
    trusted = hashlib.sha256((folder / "recompose.toml").read_bytes()).hexdigest()
    environ = {**os.environ, "PLANTED_ROUTER_KEY": KEY, "RECOMPOSE_TRUST": trusted}
    command = [sys.executable, "-m", "composer_replication.cli", "replay", *argv]
    # Tests that run in the background hand down a SIGINT that is ignored; who types the command has
    # it.
    typed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environ, text=True, preexec_fn=typed, **pipes)


def with_the_key(folder: Path) -> list[Path]:
    """Files that hold the key as it is."""
    return [
        path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]
