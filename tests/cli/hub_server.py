"""A hub on loopback: the routes of the Hub's API that a push uses (huggingface_hub 2.4:
create_repo, repo_info; of create_commit validate-yaml, preupload, commit), kept in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "loopback-token"


@dataclass(slots=True)
class Hub:
    """What was sent: repositories by (kind, name) with their visibility, files and messages."""

    url: str = ""
    private: dict[tuple[str, str], bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    """The cards that the hub was asked to validate."""
    fail: int = 0
    """Answer every request with this status."""


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(*_post(hub, self.path, body, self.headers.get("Authorization", "")))

        def do_GET(self) -> None:
            kind, _, name = self.path.removeprefix("/api/").partition("/")
            if (private := hub.private.get((kind.removesuffix("s"), name))) is None:
                self.answer(404, {"error": "Not Found"})
            else:
                self.answer(200, {"id": name, "private": private, "siblings": [], "tags": []})

        def answer(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _post(hub: Hub, path: str, body: bytes, authorization: str) -> tuple[int, Any]:
    if hub.fail:
        return hub.fail, {"error": "broken"}
    if authorization != f"Bearer {TOKEN}":
        return 401, {"error": "Invalid username or password."}
    if path == "/api/repos/create":
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        kind = (asked.get("type", "model"), name)
        if kind in hub.private:
            return 409, {"error": "You already created this repo", "url": f"{hub.url}/{name}"}
        hub.private[kind] = asked.get("visibility") == "private"
        return 200, {"url": f"{hub.url}/{name}", "name": name}
    if path == "/api/validate-yaml":
        hub.cards.append(json.loads(body)["content"])
        return 200, {"errors": [], "warnings": []}
    if path.endswith("/preupload/main"):
        entries = json.loads(body)["files"]
        modes = [
            {"path": e["path"], "uploadMode": "regular", "shouldIgnore": False} for e in entries
        ]
        return 200, {"files": modes}
    assert path.endswith("/commit/main"), path
    for line in map(json.loads, body.splitlines()):
        if line["key"] == "header":
            hub.messages.append(line["value"]["summary"])
        elif line["key"] == "file":
            hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
    place = path.removeprefix("/api/").removeprefix("models/").removesuffix("/commit/main")
    url = f"{hub.url}/{place}/commit/{'a' * 40}"
    return 200, {"success": True, "commitOid": "a" * 40, "commitUrl": url}
