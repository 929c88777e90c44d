"""The endpoint in front of the student: one address per episode, on this machine alone.

    with Endpoint() as endpoint:
        url = endpoint.open(record)        # http://127.0.0.1:PORT/e/NAME
        ...                                # the agent program plays
        endpoint.close_episode(record)

    POST URL/v1/chat/completions, URL/v1/responses, URL/v1/messages (each also without /v1),
    URL/v1/messages/count_tokens; GET URL/v1/models

A stream begins after the message was sampled; until then it sends comments, so that a client which
waits 200 s for a first byte waits longer for a slow student. Only loopback addresses may call it,
and only for episodes that are open. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from composer_replication.core.errors import ComposerError
from composer_replication.serve.anthropic_messages import (
    messages_body,
    messages_events,
    read_messages,
)
from composer_replication.serve.chat_completions import chat_body, chat_events, read_chat
from composer_replication.serve.client_messages import (
    ClientRequest,
    RefusedRequestError,
    StudentReply,
    Wire,
)
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.request_fields import allows_parallel_calls, check_fields
from composer_replication.serve.responses_api import (
    read_responses,
    responses_body,
    responses_events,
)

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 64 * 2**20
_COMMENT_S = 10.0  # seconds between two comments of a stream that waits for the student
_POLL_S = 0.05
_PATHS: Mapping[str, Wire] = {
    "chat/completions": "chat",
    "messages": "messages",
    "responses": "responses",
}
_NOT_PROMPT = (
    "stream", "stream_options", "metadata", "client_metadata", "prompt_cache_key",
    "max_tokens", "max_completion_tokens", "max_output_tokens",
)  # fmt: skip
"""Fields in which a second attempt at the same request may differ."""
_BODY: Mapping[Wire, Callable[[StudentReply, ClientRequest], dict[str, Any]]] = {
    "chat": chat_body,
    "messages": messages_body,
    "responses": responses_body,
}
_EVENTS: Mapping[Wire, Callable[[StudentReply, ClientRequest], Iterator[tuple[str, str]]]] = {
    "chat": chat_events,
    "messages": messages_events,
    "responses": responses_events,
}
OnRequest = Callable[[str, str, Mapping[str, str], Any], None]
"""Called with the episode, the path, the headers and the body of every request."""


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    """The same server on a Unix socket."""


class Endpoint:
    """The server; `on_request` sees every request, e.g. to record fixtures.

    With `socket` it also listens on a Unix socket of that path, for programs without a network.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        socket: Path | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        self.episodes: dict[str, EpisodeRecord] = {}
        self.on_request = on_request
        self.pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="student")
        endpoint = self

        class Handler(_Handler):
            served_by = endpoint

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._servers: list[ThreadingHTTPServer | _UnixServer] = [self._server]
        self.socket = socket
        if socket is not None:
            self._servers.append(_UnixServer(str(socket), Handler))

    @property
    def address(self) -> str:
        """Where it listens, e.g. http://127.0.0.1:8801."""
        return f"http://{HOST}:{self._server.server_port}"

    def open(self, record: EpisodeRecord) -> str:
        """Answer an episode's requests from now on; returns its address."""
        self.episodes[record.name] = record
        return f"{self.address}/e/{quote(record.name, safe='')}"

    def close_episode(self, record: EpisodeRecord) -> None:
        """Refuse an episode's requests from now on."""
        self.episodes.pop(record.name, None)

    def __enter__(self) -> Self:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)
        self.pool.shutdown(wait=False, cancel_futures=True)


def read_request(wire: Wire, raw: bytes, headers: Mapping[str, str]) -> ClientRequest:
    """A request's body, read in its wire format; headers by their names in small letters."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RefusedRequestError("the body is not JSON") from error
    if not isinstance(body, dict):
        raise RefusedRequestError("the body is no object")
    same = {key: value for key, value in body.items() if key not in _NOT_PROMPT}
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
    unknown = check_fields(wire, body)
    if wire == "chat":
        request = read_chat(body)
    elif wire == "messages":
        request = read_messages(body, headers)
    else:
        request = read_responses(body, headers)
    return replace(
        request,
        digest=digest,
        parallel=allows_parallel_calls(body),
        left_out={**request.left_out, **unknown},
    )


class _Handler(BaseHTTPRequestHandler):
    served_by: Endpoint
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            _, path = self._episode()
        except RefusedRequestError as error:
            return self._refuse("chat", error)
        if path.split("/")[0] != "models":
            return self._refuse("chat", _no_such(path))
        model = {"id": "student", "object": "model", "type": "model", "display_name": "student"}
        is_one = path != "models"
        self._send_json(200, model if is_one else {"object": "list", "data": [model]})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        wire: Wire = "chat"
        try:
            raw = self._read()
            record, path = self._episode()
            if self.served_by.on_request is not None:
                self.served_by.on_request(record.name, path, self._headers(), raw)
            counts_only = path == "messages/count_tokens"
            found = "messages" if counts_only else _PATHS.get(path)
            if found is None:
                raise _no_such(path)
            wire = found
            request = read_request(wire, raw, self._headers())
            if counts_only:
                return self._send_json(200, {"input_tokens": record.count_tokens(request)})
            with record.answering():
                self._answer(record, request)
        except RefusedRequestError as error:
            self._refuse(wire, error)
        except ComposerError as error:
            refused = RefusedRequestError(str(error), status=500, kind="api_error")
            self._refuse(wire, refused)

    def _answer(self, record: EpisodeRecord, request: ClientRequest) -> None:
        """Sample in a thread of the pool: the message is kept even if the client has gone."""
        future = self.served_by.pool.submit(record.answer, request)
        try:
            self._send(future, request)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
            return
        if future.done() and future.exception() is None:
            record.mark_delivered(future.result().id)

    def _send(self, future: Future[StudentReply], request: ClientRequest) -> None:
        if not request.stream:
            return self._send_json(200, _BODY[request.wire](future.result(), request))
        try:  # an error has its status only if the stream has not begun
            future.result(timeout=_COMMENT_S)
        except FutureTimeoutError:
            if future.done():
                raise
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            try:
                reply = future.result(timeout=_COMMENT_S)
                break
            except FutureTimeoutError:
                self._write(b": the student is writing\n\n")
            except ComposerError as error:
                self._write(_event("error", json.dumps(_error_body(request.wire, error))))
                return
        for name, data in _EVENTS[request.wire](reply, request):
            self._write(_event(name, data))

    def _read(self) -> bytes:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > MAX_REQUEST_BYTES:
            self.close_connection = True
            raise RefusedRequestError("the body has no length, or is too long", status=413)
        raw = self.rfile.read(int(size))
        if host not in (HOST, "localhost"):
            raise RefusedRequestError("only this machine may ask", status=403)
        return raw

    def _episode(self) -> tuple[EpisodeRecord, str]:
        """The episode of a path and what follows it, without the version."""
        parts = urlsplit(self.path).path.strip("/").split("/", 2)
        record = self.served_by.episodes.get(unquote(parts[1])) if parts[0] == "e" else None
        if record is None:
            raise RefusedRequestError("no such episode is open", status=404, kind="not_found_error")
        path = parts[2] if len(parts) > 2 else ""
        while path.startswith("v1/"):
            path = path.removeprefix("v1/")
        return record, path

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _refuse(self, wire: Wire, error: RefusedRequestError) -> None:
        self._send_json(error.status, _error_body(wire, error))

    def _send_json(self, status: int, body: Mapping[str, Any]) -> None:
        raw = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self._write(raw)

    def _write(self, raw: bytes) -> None:
        self.wfile.write(raw)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the sessions say what was asked."""


def _event(name: str, data: str) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def _error_body(wire: Wire, error: ComposerError) -> dict[str, Any]:
    kind = error.kind if isinstance(error, RefusedRequestError) else "api_error"
    if wire == "messages":
        known = "invalid_request_error" if kind == "context_length_exceeded" else kind
        return {"type": "error", "error": {"type": known, "message": error.what}}
    param = error.param if isinstance(error, RefusedRequestError) else None
    return {"error": {"message": error.what, "type": kind, "code": kind, "param": param}}


def _no_such(path: str) -> RefusedRequestError:
    return RefusedRequestError(f"no such endpoint: {path}", status=404, kind="not_found_error")
