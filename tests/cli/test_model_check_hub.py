"""`model check` of a hub name: a hub that does not answer is told within seconds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from composer_replication.models import hub_files
from composer_replication.models.hub_files import why_unreachable
from tests.cli.test_template_refused import save_student
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train


@contextmanager
def closed_port() -> Iterator[str]:
    with closing(socket.socket()) as bound:  # bound and not listening: a connection is refused
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def silent_port() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def check(hub: str, name: str, *, cwd: Path) -> tuple[Any, float]:
    """The result of `model check`, and the seconds it took; a process of its own, because the
    hub's library reads its address when it is imported."""
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    env |= {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(cwd / "hub")}
    command = [sys.executable, "-m", "composer_replication.cli", "model", "check", name, "--json"]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    return json.loads(done.stdout), time.monotonic() - began


@pytest.mark.parametrize("port", [closed_port, silent_port])
def test_an_unreachable_hub_is_told_within_seconds(port: Any, tmp_path: Path) -> None:
    """The libraries' retries took 83 s."""
    with port() as hub:
        value, seconds = check(hub, "o/none", cwd=tmp_path)
    (refusal,) = value["refused"]
    assert f"the hub at {hub} cannot be reached" in refusal["what"]
    assert "nothing of o/none is on this machine" in refusal["what"]
    for words in ("local folder", "GGUF", "HF_HUB_OFFLINE", "PROXY"):
        assert words in refusal["fix"]
    assert seconds < 40  # mostly imports


def test_what_is_kept_of_a_model_is_looked_at(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--o--kept" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    save_student(snapshot, chatml_tokenizer(), template=official("qwen3"))
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40, "utf-8")
    with closed_port() as hub:
        value, seconds = check(hub, "o/kept", cwd=tmp_path)
    assert value["refused"] == [] and value["model"] == "o/kept" and value["kind"] == "hub"
    assert value["template"]["family"] == "qwen3" and value["facts"]["num_weights"] > 0
    assert any("cannot be reached" in note for note in value["notes"]) and seconds < 40
    shutil.rmtree(tmp_path / "hub")


@pytest.mark.parametrize(
    ("status", "told"), [(200, ""), (404, ""), (401, ""), (503, "it answers 503")]
)
def test_a_hub_that_refuses_has_answered(
    status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    try:
        assert told in (found := why_unreachable("o/name")) and bool(found) == bool(told)
    finally:
        server.shutdown()
        server.server_close()
    assert asked == ["/o/name/resolve/main/config.json"]  # once: no retries
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub_files, "_ask", lambda url, timeout_s: pytest.fail("asked"))
    assert why_unreachable("o/name") == ""
