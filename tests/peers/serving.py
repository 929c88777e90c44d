"""A real `transformers serve` on loopback, for the duration of a `with` block."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEEDED = ("fastapi", "uvicorn", "openai")
START_S = 180


def missing() -> str:
    """Why no server can run here; "" if one can."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return (
        f"transformers serve needs {', '.join(absent)}: `make peers` runs this test"
        if absent
        else ""
    )


@contextmanager
def served(command: Sequence[str], *, cwd: Path, log: Path) -> Iterator[str]:
    """Serve what a command line serves ("transformers", "serve", folder) on a free port, without
    network or cache; yield its address."""
    assert list(command[:2]) == ["transformers", "serve"], command
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    full_command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        *command[1:],
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(log.parent / "no_cache"),
    }
    with (
        log.open("wb") as stream,
        subprocess.Popen(full_command, cwd=cwd, env=env, stdout=stream, stderr=stream) as server,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.kill()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no server: {log.read_text('utf-8', 'replace')[-2000:]}")


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Send one request and return (status, answer); an answer that is not JSON is returned as
    text."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text
