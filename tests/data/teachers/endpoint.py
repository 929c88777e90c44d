"""A real HTTP server on this machine that speaks chat completions, bills for it, and misbehaves on
demand.

    with Endpoint(plan=lambda number, body: "hang" if number == 3 else "ok") as endpoint:
        endpoint.url, endpoint.billed_usd, endpoint.seen

It runs in a thread of its own, so that the program under test may be another process, or be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

INPUT_USD, OUTPUT_USD = 1e-6, 4e-6  # a token
OUTPUT_TOKENS = 20
HOLD_S = 20.0
BEHAVIOURS = (
    "ok", "429", "500", "502", "hang", "cut", "closed", "no_usage", "no_cost", "unknown_tool",
    "bad_arguments", "error_in_200",
    "no_choices",
)  # fmt: skip
Plan = Callable[[int, dict[str, Any]], str]


@dataclass
class SeenRequest:
    """One request: what was asked and by whom, how it was treated, and what it was billed."""

    name: str
    model: str
    body: dict[str, Any]
    key: str
    behaviour: str
    usd: float
    answered: bool


@dataclass
class Endpoint:
    """See the module docstring. `plan` says how request `number` is treated; `act` gives the tool
    call of an answer. A model's first request is answered at once, the others when `hold` of them
    were here at the same time (or after `HOLD_S`): a busy machine shows as many as an idle one."""

    plan: Plan = lambda number, body: "ok"
    act: Callable[[dict[str, Any]], tuple[str, dict[str, Any]] | str] = lambda body: (
        "read",
        {"path": "a.py"},
    )
    delay_s: float = 0.0
    hold: int = 0
    retry_after: str = "0.01"
    echo_key: bool = False
    input_usd: float = INPUT_USD
    seen: list[SeenRequest] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def billed_usd(self) -> float:
        """The sum on the provider's own bill."""
        return sum(logged.usd for logged in self.seen)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._held = asyncio.Event()
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = {
                    n.strip().lower(): v.strip()
                    for n, _, v in (header.partition(":") for header in head.split("\r\n")[1:])
                    if n
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    if not await self._route(writer, head.split(" ", 2), headers, body):
                        break
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _route(
        self,
        writer: asyncio.StreamWriter,
        request: list[str],
        headers: dict[str, str],
        body: bytes,
    ) -> bool:
        """Treat one request, whose method and path `request` begins with."""
        return await self._answer(writer, json.loads(body), headers.get("authorization", ""))

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, Any], key: str) -> bool:
        """Treat one request; return False if the connection is to be closed afterwards."""
        behaviour = self.plan(len(self.seen), body)
        tokens = len(json.dumps(body["messages"])) // 4
        cached = tokens // 2
        usd = (tokens - cached * 0.9) * self.input_usd + OUTPUT_TOKENS * OUTPUT_USD
        free = (
            behaviour in ("429", "500") or behaviour.startswith("4") or behaviour == "error_in_200"
        )
        logged = SeenRequest(
            name_of(body), body["model"], body, key, behaviour, 0.0 if free else usd, False
        )
        first = all(request.model != logged.model for request in self.seen)
        self.seen.append(logged)
        if self.at_once >= self.hold:
            self._held.set()
        if self.hold and not first:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._held.wait(), HOLD_S)
        await asyncio.sleep(self.delay_s)
        if behaviour == "hang":
            await asyncio.sleep(3600)
        if behaviour == "closed":
            return False
        if behaviour.isdecimal():
            return await self._send(
                writer,
                int(behaviour),
                {"error": {"code": int(behaviour), "message": self._words(key)}},
                retry=behaviour == "429",
            )
        if behaviour == "error_in_200":
            return await self._send(
                writer, 200, {"error": {"code": 503, "message": self._words(key)}}
            )
        answer = self._body(body, behaviour, tokens, cached, usd, key)
        if behaviour == "no_choices":
            del answer["choices"]
        logged.answered = behaviour not in ("no_choices", "cut")
        return await self._send(writer, 200, answer, cut=behaviour == "cut")

    def _words(self, key: str) -> str:
        return f"the request with {key} was not liked" if self.echo_key else "not now"

    def _body(
        self, body: dict[str, Any], behaviour: str, tokens: int, cached: int, usd: float, key: str
    ) -> dict[str, Any]:
        act = self.act(body)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self._words(key) if self.echo_key else None,
            "reasoning": "hm",
        }
        if isinstance(act, str):
            message["content"] = act
        else:
            name = "no_such_tool" if behaviour == "unknown_tool" else act[0]
            arguments = '{"path": ' if behaviour == "bad_arguments" else json.dumps(act[1])
            message["tool_calls"] = [
                {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
            ]
        usage: dict[str, Any] = {
            "prompt_tokens": tokens, "completion_tokens": OUTPUT_TOKENS, "cost": usd,
            "is_byok": False,
            "cost_details": {"upstream_inference_cost": None},
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        }  # fmt: skip
        if behaviour == "no_cost":
            del usage["cost"]
        finish = "stop" if isinstance(act, str) else "tool_calls"
        answer = {
            "id": name_of(body),
            "object": "chat.completion",
            "model": f"{body['model']}-0711",
            "provider": "Fake",
        }
        return {
            **answer,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        } | ({} if behaviour == "no_usage" else {"usage": usage})

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        value: Any,
        *,
        retry: bool = False,
        cut: bool = False,
    ) -> bool:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        later = f"retry-after: {self.retry_after}\r\n" if retry else ""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{later}"
        if cut:  # the length matches what is sent: only the JSON is cut
            data = data[: len(data) // 2]
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return True


def name_of(body: dict[str, Any]) -> str:
    """A name for a request, from the model and the messages."""
    return hashlib.sha256(
        json.dumps([body["model"], body["messages"]], sort_keys=True).encode()
    ).hexdigest()
