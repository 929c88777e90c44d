"""The routes of SkyPilot's API server that the executor's SDK calls, on loopback; its clusters hold
one job each, a local process.

Answers are made by the SDK's own request types and encoders, so its requests and parsing run
unchanged. `making_s` = how long a cluster is in the making.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import sky
import yaml
from sky import exceptions
from sky.server import constants
from sky.server.requests import payloads
from sky.server.requests.requests import Request, RequestStatus
from sky.server.requests.serializers import encoders
from sky.skylet.job_lib import JobStatus


class Cluster:
    def __init__(self, task: dict[str, Any], folder: Path, ready: float) -> None:
        self.task, self.ready, self.cancelled = task, ready, False
        self.log = folder / f"{task['name']}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        variables = {**self.task.get("envs", {}), **self.task.get("secrets", {})}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", self.task["run"]],
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.cancelled = True
            # `timeout` leads a process group of its own in the job's session
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
                try:
                    if os.getsid(pid) == self.process.pid:
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait()

    def status(self) -> JobStatus:
        if self.process is None:
            return JobStatus.PENDING
        if self.cancelled:
            return JobStatus.CANCELLED
        code = self.process.poll()
        if code is None:
            return JobStatus.RUNNING
        return JobStatus.FAILED if code else JobStatus.SUCCEEDED


def entrypoint() -> None:
    """Stands where a request names the function that the server runs."""


class SkyServer:
    """`with SkyServer() as server:` and SKYPILOT_API_SERVER_ENDPOINT = server.url."""

    def __init__(self) -> None:
        self.clusters: dict[str, Cluster] = {}
        self.requests: dict[str, Request] = {}
        self.bodies: list[dict[str, Any]] = []
        self.making_s = 0.0
        self.no_capacity = False
        self.folder = Path(tempfile.mkdtemp())
        handler = type("BoundHandler", (Handler,), {"server_": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> SkyServer:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for cluster in self.clusters.values():
            cluster.end()
        self.server.shutdown()
        self.server.server_close()

    def request(self, name: str, work: Callable[[], Any]) -> Request:
        """A request that has run: with its result, or with its error."""
        made = Request(
            request_id=str(uuid.uuid4()),
            name=f"{constants.REQUEST_NAME_PREFIX}{name}",
            entrypoint=entrypoint,
            request_body=payloads.RequestBody(),
            status=RequestStatus.SUCCEEDED,
            created_at=time.time(),
            user_id="me",
        )
        try:
            made.return_value = encoders.get_encoder(made.name)(work())
        except Exception as error:  # noqa: BLE001 -- an error is the answer
            made.status = RequestStatus.FAILED
            made.set_error(error)
        self.requests[made.request_id] = made
        return made

    def launch(self, body: dict[str, Any]) -> Request:
        """The request stays RUNNING while the cluster is in the making."""
        name = body["cluster_name"]
        if self.no_capacity:
            return self.request("launch", self.refuse)
        task = next(doc for doc in yaml.safe_load_all(body["task"]) if doc and "run" in doc)
        made = self.request("launch", lambda: (1, None))
        made.status = RequestStatus.RUNNING
        self.clusters[name] = cluster = Cluster(task, self.folder, time.monotonic() + self.making_s)
        made.cluster_name = name

        def make() -> None:
            time.sleep(self.making_s)
            if made.status == RequestStatus.RUNNING:
                cluster.start()
                made.status = RequestStatus.SUCCEEDED

        threading.Thread(target=make, daemon=True).start()
        return made

    def refuse(self) -> Any:
        raise exceptions.ResourcesUnavailableError("no H100 anywhere")

    def up(self, body: dict[str, Any]) -> Cluster:
        """The cluster that a body names, once it is up."""
        cluster = self.clusters.get(body["cluster_name"])
        if cluster is None:
            raise exceptions.ClusterDoesNotExist(f"{body['cluster_name']} does not exist")
        if cluster.process is None:
            raise exceptions.ClusterNotUpError("not up", cluster_status=None)
        return cluster

    def down(self, body: dict[str, Any]) -> None:
        """Take a cluster down."""
        cluster = self.clusters.pop(body["cluster_name"], None)
        if cluster is None:
            raise exceptions.ClusterDoesNotExist(body["cluster_name"])
        cluster.end()

    def abort(self, body: dict[str, Any]) -> list[str]:
        """Cancel requests."""
        for request_id in body["request_ids"]:
            self.requests[request_id].status = RequestStatus.CANCELLED
        return body["request_ids"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_: SkyServer

    def log_message(self, *arguments: object) -> None:
        pass

    def reply(self, body: bytes, status: int = 200, request: Request | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header(constants.API_VERSION_HEADER, str(constants.API_VERSION))
        self.send_header(constants.VERSION_HEADER, sky.__version__)
        if request is not None:
            self.send_header("X-Skypilot-Request-ID", request.request_id)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        self.server_.bodies.append(body)
        server, text = self.server_, b"null"
        if self.path == "/validate":
            return self.reply(text)
        if self.path == "/launch":
            made = server.launch(body)
        elif self.path == "/job_status":
            made = server.request("job_status", lambda: {1: server.up(body).status()})
        elif self.path == "/cancel":
            made = server.request("cancel", lambda: server.up(body).end())
        elif self.path == "/down":
            made = server.request("down", lambda: server.down(body))
        elif self.path == "/api/cancel":
            made = server.request("api.cancel", lambda: server.abort(body))
        elif self.path == "/logs":
            made = server.request("logs", lambda: server.up(body) and 0)
            if made.status == RequestStatus.SUCCEEDED:
                text = server.up(body).log.read_bytes()
            else:
                text = b""
        else:
            return self.reply(b"{}", 404)
        return self.reply(text, request=made)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = parse_qs(parts.query)
        if parts.path == "/api/health":
            health = {"status": "healthy", "api_version": str(constants.API_VERSION)}
            health |= {"version": sky.__version__, "commit": sky.__commit__}
            return self.reply(json.dumps(health).encode())
        if parts.path == "/api/status":
            found = [self.server_.requests.get(name) for name in asked.get("request_ids", [])]
            rows = [json.loads(one.encode().model_dump_json()) for one in found if one]
            return self.reply(json.dumps(rows).encode())
        if parts.path == "/api/get":
            made = self.server_.requests[asked["request_id"][0]]
            content = json.loads(made.encode().model_dump_json())
            if made.status == RequestStatus.FAILED:
                return self.reply(json.dumps({"detail": content}).encode(), 500)
            return self.reply(json.dumps(content).encode())
        return self.reply(b"{}", 404)
