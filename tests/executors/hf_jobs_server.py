"""The part of the Hub's job API that `HfApi` calls, on loopback; its jobs are local processes.

It answers with the JSON of the real API, so the SDK's own requests and parsing run unchanged.
`refuse` = how many requests are answered with 503 first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class HubJob:
    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.id, self.spec, self.cancelled = uuid.uuid4().hex[:24], spec, False
        self.log = folder / f"{self.id}.log"
        variables = {**spec["environment"], **spec.get("secrets", {})}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                spec["command"],
                env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        timeout = spec.get("timeoutSeconds")
        self.timed_out = False
        if timeout:
            self.timer = threading.Timer(timeout, self.time_out)
            self.timer.daemon = True
            self.timer.start()

    def time_out(self) -> None:
        if self.process.poll() is None:
            self.timed_out = True
            self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def view(self, owner: str) -> dict[str, Any]:
        code = self.process.poll()
        stage, message = "RUNNING", None
        if self.cancelled:
            stage = "CANCELED"
        elif self.timed_out:
            stage, message = "ERROR", "Job timeout"
        elif code is not None:
            stage = "COMPLETED" if code == 0 else "ERROR"
            message = None if code == 0 else f"Job failed with exit code: {code}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        public = {name: self.spec.get(name) for name in ("dockerImage", "command", "flavor")}
        return {
            **public,
            "id": self.id,
            "createdAt": now,
            "arguments": [],
            "environment": self.spec["environment"],
            "secrets": sorted(self.spec.get("secrets", {})),
            "labels": self.spec.get("labels"),
            "status": {"stage": stage, "message": message},
            "owner": {"id": "1", "name": owner, "type": "user"},
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *arguments: object) -> None:
        pass

    def reply(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def job_of_path(self) -> tuple[HubJob | None, str]:
        """The job of /api/jobs/NAMESPACE/ID/ROUTE, and the route."""
        parts = self.path.partition("?")[0].strip("/").split("/")
        return self.hub.jobs.get(parts[3] if len(parts) > 3 else ""), "/".join(parts[4:])

    def refused(self) -> bool:
        if self.hub.refuse <= 0:
            return False
        self.hub.refuse -= 1
        self.reply({"error": "overloaded"}, 503)
        return True

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        content = json.loads(self.rfile.read(size) or b"{}")
        if self.refused():
            return
        job, route = self.job_of_path()
        parts = self.path.strip("/").split("/")
        if parts[:2] == ["api", "jobs"] and len(parts) == 3:
            self.hub.specs.append(content)
            job = HubJob(content, self.hub.folder)
            self.hub.jobs[job.id] = job
            self.reply(job.view(parts[2]))
        elif job is not None and route == "cancel":
            job.cancelled = job.process.poll() is None
            job.end()
            self.reply(job.view(parts[2]))
        else:
            self.reply({"error": "not found"}, 404)

    def do_GET(self) -> None:
        if self.refused():
            return
        job, route = self.job_of_path()
        if self.path.startswith("/api/whoami"):
            self.reply({"name": "me", "type": "user"})
        elif job is not None and route == "":
            self.reply(job.view("me"))
        elif job is not None and route == "logs":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for line in job.log.read_text().splitlines():
                event = json.dumps({"data": line, "timestamp": "2026-01-01T00:00:00.000Z"})
                self.wfile.write(f"data: {event}\n\n".encode())
            self.close_connection = True
        else:
            self.reply({"error": "not found"}, 404)


class HubServer:
    """`with HubServer() as hub: HfApi(endpoint=hub.url)`."""

    def __init__(self) -> None:
        self.jobs: dict[str, HubJob] = {}
        self.specs: list[dict[str, Any]] = []
        self.refuse = 0
        self.folder = Path(tempfile.mkdtemp())
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for job in self.jobs.values():
            job.end()
        self.server.shutdown()
        self.server.server_close()
