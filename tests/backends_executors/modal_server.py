"""The part of Modal's control plane that `modal.Sandbox` calls, on loopback: sandboxes are local
processes. Every other call is answered with UNIMPLEMENTED and listed in `unimplemented`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_grpc
from modal_proto import api_pb2 as proto


class Sandbox:
    def __init__(self, arguments: list[str], variables: dict[str, str], timeout_s: float) -> None:
        self.id = f"sb-{uuid.uuid4().hex[:22]}"
        self.end = ""
        self.variables = variables
        self.log = Path(tempfile.mkdtemp()) / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments,
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.timer = threading.Timer(timeout_s, self.stop, ("timeout",))
        self.timer.daemon = True
        self.timer.start()

    def stop(self, reason: str) -> None:
        if self.process.poll() is None:
            self.end = reason
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def result(self) -> proto.GenericResult | None:
        code = self.process.poll()
        if code is None:
            return None
        status = {
            "timeout": proto.GenericResult.GENERIC_STATUS_TIMEOUT,
            "terminated": proto.GenericResult.GENERIC_STATUS_TERMINATED,
        }.get(self.end)
        if status is None:
            success, failure = (
                proto.GenericResult.GENERIC_STATUS_SUCCESS,
                proto.GenericResult.GENERIC_STATUS_FAILURE,
            )
            status = success if code == 0 else failure
        return proto.GenericResult(status=status, exitcode=code if code >= 0 else 128 - code)


def _unimplemented(server: ModalServer, name: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def method(self: Any, stream: Any) -> None:
        server.unimplemented.append(name)
        raise GRPCError(Status.UNIMPLEMENTED, name)

    return method


def _answer(answer: Callable[[Any], Any]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def method(self: Any, stream: Any) -> None:
        reply = answer(await stream.recv_message())
        if asyncio.iscoroutine(reply):
            reply = await reply
        await stream.send_message(reply)

    return method


class ModalServer:
    """`with ModalServer() as server`: point MODAL_SERVER_URL at `server.url`."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.requests: list[Any] = []
        self.unimplemented: list[str] = []
        self.unavailable = 0
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        success = proto.GenericResult(status=proto.GenericResult.GENERIC_STATUS_SUCCESS)
        version = "2025.06"
        settings = proto.EnvironmentSettings(image_builder_version=version)
        image = proto.ImageMetadata(image_builder_version=version)
        return {
            "ClientHello": lambda request: proto.ClientHelloResponse(),
            "EnvironmentGetOrCreate": lambda request: proto.EnvironmentGetOrCreateResponse(
                environment_id="en-1",
                metadata=proto.EnvironmentMetadata(name="main", settings=settings),
            ),
            "AppGetOrCreate": lambda request: proto.AppGetOrCreateResponse(app_id="ap-1"),
            "ImageGetOrCreate": lambda request: proto.ImageGetOrCreateResponse(
                image_id="im-1", result=success, metadata=image
            ),
            "ImageJoinStreaming": lambda request: proto.ImageJoinStreamingResponse(
                result=success, eof=True, metadata=image
            ),
            "AuthTokenGet": lambda request: proto.AuthTokenGetResponse(token=_token()),
            "SecretGetOrCreate": self.make_secret,
            "SandboxCreate": self.create,
            "SandboxCreateV2": self.create,
            "SandboxGetTaskId": self.task_id,
            "SandboxGetTaskIdV2": self.task_id,
            "SandboxWait": self.wait,
            "SandboxWaitV2": self.wait,
            "SandboxTerminate": self.terminate,
            "SandboxTerminateV2": self.terminate,
            "AppFetchLogs": self.fetch_logs,
        }

    def make_secret(self, request: Any) -> Any:
        name = f"st-{uuid.uuid4().hex[:8]}"
        self.secrets[name] = dict(request.env_dict)
        return proto.SecretGetOrCreateResponse(secret_id=name)

    def create(self, request: Any) -> Any:
        self.requests.append(request)
        variables: dict[str, str] = {}
        for name in request.definition.secret_ids:
            variables |= self.secrets[name]
        second = isinstance(request, proto.SandboxCreateV2Request)
        for source in request.secret_sources if second else ():
            kind = source.WhichOneof("source") or source.ListFields()[0][0].name
            variables |= (
                self.secrets[source.secret_id] if kind == "secret_id" else dict(source.env.contents)
            )
        definition = request.definition
        sandbox = Sandbox(list(definition.entrypoint_args), variables, definition.timeout_secs)
        if second:  # the SDK tells the two generations apart by the length of the id
            sandbox.id += "v2"
        self.sandboxes[sandbox.id] = sandbox
        if second:
            return proto.SandboxCreateV2Response(sandbox_id=sandbox.id, task_id=f"ta-{sandbox.id}")
        return proto.SandboxCreateResponse(sandbox_id=sandbox.id)

    def known(self, sandbox_id: str) -> Sandbox:
        if self.unavailable:
            self.unavailable -= 1
            raise GRPCError(Status.INTERNAL, "try again later")
        if sandbox_id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, "no such sandbox")
        return self.sandboxes[sandbox_id]

    def task_id(self, request: Any) -> Any:
        return proto.SandboxGetTaskIdResponse(task_id=f"ta-{self.known(request.sandbox_id).id}")

    async def wait(self, request: Any) -> Any:
        sandbox, deadline = self.known(request.sandbox_id), time.monotonic() + request.timeout
        while sandbox.result() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        metadata = proto.SandboxHandleMetadata(app_id="ap-1")
        return proto.SandboxWaitResponse(result=sandbox.result(), metadata=metadata)

    def terminate(self, request: Any) -> Any:
        self.known(request.sandbox_id).stop("terminated")
        return proto.SandboxTerminateResponse()

    def fetch_logs(self, request: Any) -> Any:
        sandbox = self.sandboxes[request.task_id.removeprefix("ta-")]
        entries = [
            proto.TaskLogs(data=line, file_descriptor=proto.FILE_DESCRIPTOR_STDOUT, timestamp=1.0)
            for line in sandbox.log.read_text().splitlines(keepends=True)
        ]
        batch = proto.TaskLogsBatch(task_id=request.task_id, items=entries)
        return proto.AppFetchLogsResponse(batches=[batch])

    def __enter__(self) -> ModalServer:
        threading.Thread(target=self._serve, daemon=True).start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        for sandbox in self.sandboxes.values():
            sandbox.stop("terminated")
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        base = api_grpc.ModalClientBase
        methods = {name: _unimplemented(self, name) for name in base.__abstractmethods__}
        methods |= {name: _answer(answer) for name, answer in self.methods().items()}
        server = Server([type("Servicer", (base,), methods)()])

        async def start() -> None:
            await server.start("127.0.0.1", 0)
            assert server._server is not None
            port = server._server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()


def _token() -> str:
    def part(content: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'exp': int(time.time()) + 3600})}.none"
