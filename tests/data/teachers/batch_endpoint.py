"""The endpoint with a Batch API in OpenAI's format: files, batches, a list of them, two files of
results. It answers what it was asked when somebody looks, bills it at half the price, and
misbehaves on demand.

    with BatchEndpoint(held=True) as endpoint:      # no batch ends before `held` is set to False
        endpoint.batches, endpoint.billed_usd, endpoint.num_created
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.data.teachers.endpoint import OUTPUT_TOKENS, OUTPUT_USD, Endpoint, SeenRequest, name_of

BATCH_SHARE = 0.5


@dataclass
class BatchEndpoint(Endpoint):
    """See the module docstring.

    `plan` says how a line is answered. `end` is the status in which batch `number` ends: then
    `answers_of_all` of its lines have been answered. `on_create`: "ok", "500" = nothing was
    created, "created_500" = it was, "created_hang" = it was, and no response ever comes.
    """

    held: bool = False
    end: Callable[[int], str] = lambda number: "completed"
    answers_of_all: float = 1.0
    on_create: Callable[[int], str] = lambda number: "ok"
    drop_lines: bool = False
    report_more: int = 0
    on_look: Callable[[int], str] = lambda number: "ok"
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    num_looks: int = 0
    key_as_id: bool = False

    @property
    def lines(self) -> list[list[dict[str, Any]]]:
        """The lines of each batch that was created."""
        return [
            [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
            for batch in self.batches.values()
        ]

    async def _route(
        self,
        writer: asyncio.StreamWriter,
        request: list[str],
        headers: dict[str, str],
        body: bytes,
    ) -> bool:
        method, path = request[0], request[1].removeprefix("/v1")
        self.calls.append(f"{method} {path.partition('?')[0]}")
        if path == "/chat/completions":
            return await super()._route(writer, request, headers, body)
        key = headers.get("authorization", "")
        if path == "/files":
            assert b'name="purpose"\r\n\r\nbatch\r\n' in body
            content = body.split(b"\r\n\r\n")[-1].rsplit(b"\r\n--", 1)[0]
            name = key.partition(" ")[2] if self.key_as_id else f"file-{len(self.files) + 1}"
            self.files[name] = content
            return await self._send(writer, 200, {"id": name, "object": "file"})
        if path.endswith("/content"):
            data = self.files.get(path.split("/")[2])
            return await self._send(writer, 404 if data is None else 200, data or {})
        if path == "/batches" and method == "POST":
            return await self._create_batch(writer, json.loads(body))
        if path.startswith("/batches?"):
            return await self._list(writer, path)
        return await self._look_at(writer, path.removeprefix("/batches/"), key)

    async def _create_batch(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        assert body["endpoint"] == "/v1/chat/completions" and body["completion_window"] == "24h"
        behaviour = self.on_create(self.calls.count("POST /batches"))
        if behaviour == "500":
            return await self._send(writer, 500, {"error": {"message": "not now"}})
        number = len(self.batches) + 1
        batch = {
            "id": f"batch_{number}",
            "object": "batch",
            "input_file_id": body["input_file_id"],
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "errors": None,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }
        self.batches[batch["id"]] = batch
        if behaviour == "created_hang":
            await asyncio.sleep(3600)
        if behaviour == "created_500":
            return await self._send(writer, 500, {"error": {"message": "lost the thread"}})
        return await self._send(writer, 200, batch)

    async def _list(self, writer: asyncio.StreamWriter, path: str) -> bool:
        newest_first = list(reversed(self.batches.values()))
        after = path.partition("&after=")[2]
        begin = [b["id"] for b in newest_first].index(after) + 1 if after else 0
        page = newest_first[begin : begin + 2]  # short pages, so that they are turned
        has_more = begin + 2 < len(newest_first)
        return await self._send(writer, 200, {"data": page, "has_more": has_more})

    async def _look_at(self, writer: asyncio.StreamWriter, name: str, key: str) -> bool:
        self.num_looks += 1
        if (behaviour := self.on_look(self.num_looks)) != "ok":
            return await self._send(writer, int(behaviour), {"error": {"message": "not now"}})
        if (batch := self.batches.get(name)) is None:
            return await self._send(writer, 404, {"error": {"message": "no such batch"}})
        if batch["status"] == "validating":
            batch["status"] = "in_progress"
        elif batch["status"] == "in_progress" and not self.held:
            self._finish(batch, key)
        return await self._send(writer, 200, batch)

    def _finish(self, batch: dict[str, Any], key: str) -> None:
        number = list(self.batches).index(batch["id"]) + 1
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        batch["status"] = status = self.end(number)
        if status == "failed":
            batch["errors"] = {"data": [{"message": "token limit reached", "line": None}]}
            return
        num_answered = round(self.answers_of_all * len(lines))
        output, errors = list[dict[str, Any]](), list[dict[str, Any]]()
        for line in reversed(lines[:num_answered]):  # in any order
            response = self._line_response(line["body"], key)
            (output if response["status_code"] == 200 else errors).append(
                {"custom_id": line["custom_id"], "response": response, "error": None}
            )
        code = "batch_expired" if status == "expired" else "batch_cancelled"
        for line in lines[num_answered:]:
            error = {"code": code, "message": "It was left out."}
            errors.append({"custom_id": line["custom_id"], "response": None, "error": error})
        counts = {"total": len(lines), "completed": len(output) + self.report_more}
        batch["request_counts"] = {**counts, "failed": len(errors)}
        for name, results in (("output_file_id", output), ("error_file_id", errors)):
            if results and not self.drop_lines:
                batch[name] = f"file-{name[0]}{number}"
                text = "\n".join(json.dumps(result) for result in results) + "\n"
                self.files[batch[name]] = text.encode()

    def _line_response(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        behaviour = self.plan(len(self.seen), body)
        tokens = len(json.dumps(body["messages"])) // 4
        usd = (tokens * self.input_usd + OUTPUT_TOKENS * OUTPUT_USD) * BATCH_SHARE
        free = behaviour.isdecimal()
        logged = SeenRequest(
            name_of(body), body["model"], body, key, behaviour, 0.0 if free else usd, not free
        )
        self.seen.append(logged)
        if free:
            message = {"error": {"code": int(behaviour), "message": self._words(key)}}
            return {"status_code": int(behaviour), "body": message}
        answer = self._body(body, behaviour, tokens, 0, usd, key)
        if "usage" in answer and behaviour != "cost":
            del answer["usage"]["cost"]  # OpenAI reports tokens alone
        return {"status_code": 200, "body": answer}
