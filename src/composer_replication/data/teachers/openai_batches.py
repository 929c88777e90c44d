"""The Batch API in OpenAI's format: a file of requests is uploaded, a batch of it created, looked
at until it has ended, and its two files of results read.

    batches = OpenAIBatches(teacher)
    file = await batches.upload(batches.line(key, request))      # "file-4f2a", costs nothing
    state = await batches.create(file)                # from here on it may be billed
    state = await batches.look(state.id)              # BatchState(status="in_progress", ...)
    async for key, line in batches.lines(state):
        batches.outcome(line, request)                # TeacherReply or TeacherError

Nothing is kept here, and nothing repeated: see batch_queue.py. The ids are the server's: they are
checked before they are used in an address or written down.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import TeacherError
from composer_replication.core.teacher import Request, TeacherReply
from composer_replication.data.teachers.openai_compatible import (
    MAX_BODY_BYTES,
    OpenAICompatible,
    json_bytes,
    retry_after_s,
)

CHAT_COMPLETIONS = "/v1/chat/completions"
MAX_BATCH_REQUESTS = 50_000
MAX_BATCH_BYTES = 200 * 10**6
"""A file of requests may be this long at OpenAI and at Groq."""
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_NOT_RUN = {"batch_expired", "batch_cancelled"}
"""The codes of requests that were left out: OpenAI bills for completed work only."""
_MAX_PAGES = 100
_PIECE_BYTES = 2**16
_ID = re.compile(r"[A-Za-z0-9][\w.:-]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What the provider reports of a batch; `completed` is None if it does not count.

    Example: BatchState(id="batch_1", status="in_progress", completed=40)
    """

    id: str
    status: str
    completed: int | None = None
    files: tuple[str, ...] = ()
    message: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ENDED


class OpenAIBatches:
    """The batches of one teacher; see the head of this module. All methods raise TeacherError."""

    def __init__(self, teacher: OpenAICompatible) -> None:
        self._teacher = teacher

    def line(self, key: str, request: Request) -> bytes:
        """Return the line of a request in the file of a batch."""
        body = {k: v for k, v in self._teacher.body_of(request).items() if k != "stream"}
        fields = {"custom_id": key, "method": "POST", "url": CHAT_COMPLETIONS, "body": body}
        return json_bytes(fields) + b"\n"

    async def upload(self, lines: bytes) -> str:
        """Upload the file of a batch and return its id; nothing is billed for it."""
        boundary = secrets.token_hex(16)
        try:
            value = await self._json(
                "POST",
                "/files",
                data={"purpose": "batch"},
                files={"file": ("recompose.jsonl", lines, "application/jsonl")},
                headers={"content-type": f"multipart/form-data; boundary={boundary}"},
            )
            return self._id(value.get("id"))
        except TeacherError as error:
            error.billed = False
            raise

    async def create(self, file: str) -> BatchState:
        """Create the batch of an uploaded file; an error with `billed` may come after the fact."""
        fields = {"input_file_id": file, "endpoint": CHAT_COMPLETIONS, "completion_window": "24h"}
        return self._state(await self._json("POST", "/batches", content=json_bytes(fields)))

    async def find(self, file: str) -> BatchState | None:
        """Return the batch that was created of a file, from the provider's list; None if none."""
        after = ""
        for _ in range(_MAX_PAGES):
            page = await self._json("GET", f"/batches?limit=100{after}")
            batches = [b for b in _list(page.get("data")) if isinstance(b, dict)]
            for batch in batches:
                if batch.get("input_file_id") == file:
                    return self._state(batch)
            if not batches or not page.get("has_more"):
                return None
            after = f"&after={self._id(batches[-1].get('id'))}"
        return None

    async def look(self, batch: str) -> BatchState | None:
        """Return the state of a batch; None if the provider does not know it (any more)."""
        value = await self._json("GET", f"/batches/{batch}", may_be_gone=True)
        return self._state(value) if value else None

    async def lines(self, state: BatchState) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the lines of a batch's results by their keys; unreadable ones are left out."""
        for file in state.files:
            async for line in self._lines(f"/files/{file}/content"):
                value = _object(line)
                if isinstance(key := value.get("custom_id"), str):
                    yield key, value

    def outcome(self, line: Mapping[str, Any], request: Request) -> TeacherReply | TeacherError:
        """Return what a line of the results holds: an answer, or why there is none."""
        response = line.get("response")
        if not isinstance(response, dict):
            error = line.get("error")
            error = error if isinstance(error, dict) else {}
            code, message = str(error.get("code") or "no code"), str(error.get("message") or "")
            return self._teacher.error(
                self._teacher.shown(f"not answered in its batch ({code}) {message}"),
                again=True,
                billed=code not in _NOT_RUN,
            )
        status = response.get("status_code")
        body = json_bytes(response.get("body"))
        try:
            return self._teacher.read_line(status if isinstance(status, int) else 0, body, request)
        except TeacherError as error:
            return error

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a file; one that is too long is cut, so that it cannot be read."""
        line = bytearray()
        async with self._teacher.stream("GET", path) as response:
            if int(response.status_code) == 404:
                return  # it is not kept for ever: the calls without a line count as lost
            if int(response.status_code) != 200:
                raise self._teacher.refusal(int(response.status_code), b"", None)
            async for piece in response.aiter_bytes(_PIECE_BYTES):
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    yield bytes(line + end)
                    line.clear()
                line += rest if len(line) <= 2 * MAX_BODY_BYTES else b""
        yield bytes(line)

    async def _json(
        self, method: str, path: str, *, may_be_gone: bool = False, **content: Any
    ) -> dict[str, Any]:
        response = await self._teacher.send(method, path, **content)
        if may_be_gone and response.status == 404:
            return {}
        if response.status in (404, 405):
            raise self._teacher.error(
                f"status {response.status}: there is no Batch API in OpenAI's format",
                fix="check base_url, or set batch = false",
                again=False,
                billed=False,
                for_all=True,
            )
        if response.status not in (200, 201, 202):
            wait_s = retry_after_s(response.headers, now=time.time())
            raise self._teacher.refusal(response.status, response.body, wait_s)
        if not (value := _object(response.body)):
            raise self._teacher.error(
                f"{path.partition('?')[0]} did not answer with a JSON object: is this a Batch API?",
                fix="check base_url, or set batch = false",
                again=False,
                billed=True,
            )
        return value

    def _state(self, value: Mapping[str, Any]) -> BatchState:
        counts = value.get("request_counts")
        counts = counts if isinstance(counts, dict) else {}
        errors = value.get("errors")
        errors = _list(errors.get("data") if isinstance(errors, dict) else errors)
        messages = [str(e.get("message")) if isinstance(e, dict) else str(e) for e in errors]
        return BatchState(
            id=self._id(value.get("id")),
            status=self._teacher.shown(str(value.get("status")).lower())[:40],
            completed=_count(counts.get("completed")),
            files=tuple(
                self._id(value[name])
                for name in ("output_file_id", "error_file_id")
                if value.get(name)
            ),
            message=self._teacher.shown("; ".join(messages)),
        )

    def _id(self, value: Any) -> str:
        if not isinstance(value, str) or not _ID.fullmatch(value) or self._teacher.holds_key(value):
            raise self._teacher.error(
                "the id of a file or a batch is missing or unusable", again=False, billed=True
            )
        return value


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
