"""A real S3 server (moto) on this machine, and a proxy before it that answers wrongly on demand."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

BUCKET = "replicas"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with the bucket `BUCKET`."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make_bucket(f"http://127.0.0.1:{port}/{BUCKET}")
        yield port
    finally:
        server.terminate()
        server.wait()


def s3_environment(port: int) -> dict[str, str]:
    """The variables by which S3 clients find the server at this port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextlib.contextmanager
def s3_bucket() -> Iterator[str]:
    """The URL of a bucket on such a server, whose address is in the environment meanwhile."""
    with s3_server() as port, mock.patch.dict(os.environ, s3_environment(port)):
        yield f"s3://{BUCKET}"


def _make_bucket(url: str) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server did not start")


class FlakyProxy:
    """A proxy before an S3 server; `fault` is what it does wrong, `hits` how often it did.

    "409 WHAT" answers the next PUT of a key with WHAT in it by a conflict, and stores nothing;
    "lost WHAT" stores it and closes the connection; "503" refuses one request in three.
    """

    def __init__(self, server_port: int, *, seed: int = 0) -> None:
        self.fault, self.hits, self.server_port = "", 0, server_port
        self._rng, self._lock = random.Random(seed), threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that was killed is no error of the proxy."""

        self._http = Server(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()

    def _strikes(self, method: str, path: str) -> str:
        """The fault that this request meets, or ""."""
        with self._lock:
            kind, _, what = self.fault.partition(" ")
            if kind == "503":
                hit = self._rng.random() < 1 / 3
            else:
                hit = bool(kind) and method == "PUT" and what in path
                self.fault = "" if hit else self.fault
            self.hits += hit
            return kind if hit else ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Hand one request on to the server, or answer it wrongly."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self._strikes(request.command, request.path)
        if fault in ("409", "503"):
            code = "ConditionalRequestConflict" if fault == "409" else "SlowDown"
            text = f"<Error><Code>{code}</Code></Error>".encode()
            self._reply(request, status=int(fault), headers=[], body=text)
            return
        server = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        server.request(request.command, request.path, body, dict(request.headers))
        found = server.getresponse()
        data, headers = found.read(), found.getheaders()
        server.close()
        if fault == "lost":
            request.close_connection = True
            return
        self._reply(request, status=found.status, headers=headers, body=data)

    def _reply(
        self,
        request: BaseHTTPRequestHandler,
        *,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
    ) -> None:
        request.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                request.send_header(name, value)
        length = dict((n.lower(), v) for n, v in headers).get("content-length", "0")
        shown = length if request.command == "HEAD" else str(len(body))
        request.send_header("Content-Length", shown)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
