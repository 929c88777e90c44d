"""A teacher behind any chat-completions endpoint: OpenRouter, OpenAI, vLLM, Ollama, llama.cpp, ...

    teacher = OpenAICompatible("glm", settings, environ=os.environ)  # reads environ[key_env]
    reply = await teacher.ask(request)                               # one attempt; use an Asker

The key is sent in a header and kept in memory only. It is not part of the identity, of errors or of
representations, and if an endpoint repeats it in an answer it is removed (scrub.py). Redirects are
not followed: they would carry it elsewhere.

Nothing that an endpoint reports is taken on trust: what was sent and received is counted here
(count.py), a body is read up to MAX_BODY_BYTES, both compressed and decompressed, and a refusal
that contains an answer or usage may have been billed.
"""

from __future__ import annotations

import email.utils
import json
import re
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError, TeacherError, need
from composer_replication.core.harmless import harmless
from composer_replication.core.jsonl import dumps
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Price, Request, TeacherReply
from composer_replication.data.ingestion.redaction import redact_turn
from composer_replication.data.teachers.count import received_tokens, sent_tokens
from composer_replication.data.teachers.defaults import BATCH_DISCOUNTS
from composer_replication.data.teachers.scrub import KeyScrub
from composer_replication.data.teachers.wire import chat_messages, chat_tools, read_reply

MAX_BODY_BYTES = 4 * 2**20
_PIECE_BYTES = 2**16
CONNECT_S = 20.0
TEMPLATE_TOKENS = 2048
"""More than any chat template adds by itself, its text about tools included."""
_KEY_PATTERN = re.compile(r"[!#-\[\]-~]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_UNBILLED_STATUSES = {
    400,
    401,
    402,
    403,
    404,
    405,
    409,
    413,
    414,
    415,
    422,
    425,
    429,
    451,
    501,
    503,
    529,
}
"""Statuses of requests that were refused before they began, so nothing is billed. The others (408,
500, 502, 504, 52x) may come after the model has worked, or from a proxy behind which it goes on:
they may be billed."""
_RETRY_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}
_FATAL_STATUSES = {401, 402, 404, 405}
_MAX_ERROR_CHARS = 2_000
_FIXES = {
    401: "check the key in the environment variable {key}",
    402: "the account behind the key has no credit left",
    404: "check base_url and model of this teacher",
    403: "the endpoint does not allow this request",
}


@dataclass(frozen=True, slots=True)
class Response:
    """What came back to one request, e.g. Response(200, {}, b"{}")."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class OpenAICompatible:
    """A teacher behind an address. Close it, or use it in an `async with`.

    Raises ConfigError if the key is missing or would be sent unencrypted, or if a remote endpoint
    has no price. Without an `environ` it can be named and priced but not asked; then neither the
    key nor the HTTP package is needed.
    """

    def __init__(
        self, name: str, settings: TeacherSettings, *, environ: Mapping[str, str] | None
    ) -> None:
        self.name, self.family, self.settings = name, settings.family, settings
        self.provider = urlsplit(settings.base_url).netloc
        self.price = price_of(settings)
        _check_price_and_transport(name, settings)
        if environ is None:
            return
        key = _read_key(name, settings, environ)
        self._scrub = KeyScrub(key)
        self._redactor = Redactor(words=(key,) if key else (), environ=environ)
        self._http = need("httpx2", extra="replay")
        self._client: Any = _make_client(self._http, settings, key)

    def __repr__(self) -> str:
        return f"OpenAICompatible({self.name!r}, model={self.settings.model!r})"

    async def __aenter__(self) -> OpenAICompatible:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The settings that decide the answer: address, model, preferences; no key or prices."""
        settings = self.settings
        identity: dict[str, Any] = {
            "kind": "chat",
            "base_url": settings.base_url,
            "model": settings.model,
        }
        if settings.body:
            identity["body"] = settings.body
        if settings.logprobs:
            identity["logprobs"] = True
        if preferences := {
            name: value for name, value in routing_of(settings).items() if name != "max_price"
        }:
            identity["provider"] = preferences
        return identity

    def body_of(self, request: Request) -> dict[str, Any]:
        """Return the JSON body of a request."""
        settings = self.settings
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": chat_messages(request.turns),
            "stream": False,
        }
        if settings.explicit_cache:
            _mark_for_cache(body["messages"])
        if request.tools:
            body["tools"] = chat_tools(request.tools)
        body[settings.output_field] = request.max_tokens
        body["temperature"] = request.temperature
        if request.schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": request.schema},
            }
        if settings.logprobs:
            body["logprobs"] = True
        if preferences := routing_of(settings):
            body["provider"] = preferences
        return {**body, **settings.body}

    def most_input_tokens(self, request: Request) -> int:
        """Return an upper bound: a token is at least one byte.

        Tools count twice, because templates write them with spaces and line ends.
        """
        return (
            TEMPLATE_TOKENS
            + len(json_bytes(self.body_of(request)))
            + len(json_bytes(chat_tools(request.tools)))
        )

    async def ask(self, request: Request) -> TeacherReply:
        """Make one attempt; raises TeacherError unless it brings an answer."""
        sent = self.body_of(request)
        response = await self.send("POST", "/chat/completions", content=json_bytes(sent))
        return self._read(
            response.status,
            headers=response.headers,
            body=response.body,
            request=request,
            sent=sent,
        )

    async def send(self, method: str, path: str, **content: Any) -> Response:
        """Send one request to the endpoint and read the response; raises TeacherError."""
        raw_body = bytearray()
        async with self.stream(method, path, **content) as response:
            status, headers = int(response.status_code), response.headers
            async for piece in response.aiter_raw(_PIECE_BYTES):
                raw_body += piece
                if len(raw_body) > MAX_BODY_BYTES:
                    raise self._too_long()
        return Response(status, headers, self._decompress(bytes(raw_body), headers))

    @asynccontextmanager
    async def stream(self, method: str, path: str, **content: Any) -> AsyncIterator[Any]:
        """Send one request; its response is read in the block. Raises TeacherError."""
        http = self._http
        try:
            async with self._client.stream(
                method, f"{self.settings.base_url}{path}", **content
            ) as response:
                yield response
        # Nothing was sent, so nothing was billed.
        except (http.ConnectError, http.ConnectTimeout, http.PoolTimeout) as error:
            raise self.error(
                f"no connection ({type(error).__name__})", again=True, billed=False
            ) from None
        except http.HTTPError as error:
            raise self.error(
                f"the connection broke off ({type(error).__name__})", again=True, billed=True
            ) from None

    def read_line(self, status: int, body: bytes, request: Request) -> TeacherReply:
        """Return the answer in a line of a batch; raises TeacherError if there is none."""
        return self._read(
            status, headers={}, body=body, request=request, sent=self.body_of(request)
        )

    def holds_key(self, text: str) -> bool:
        """Return whether a text of the endpoint holds the key."""
        return self._scrub.holds(text)

    def shown(self, text: str) -> str:
        """Return a text of the endpoint without the key, secrets and control characters."""
        clean = self._redactor.text(self._scrub.text(text[:_MAX_ERROR_CHARS]))
        return harmless(clean)[:300].strip()

    def _decompress(self, raw_body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the decompressed body; some servers compress although we ask them not to."""
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return raw_body
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise self.error(
                f"the answer is packed as {harmless(encoding)[:20]!r}, which was not asked for",
                again=False,
                billed=True,
            )
        decompressor = zlib.decompressobj(wbits=47)
        try:
            body = decompressor.decompress(raw_body, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            raise self.error(
                "the body of the answer cannot be unpacked", again=True, billed=True
            ) from error
        if len(body) > MAX_BODY_BYTES:
            raise self._too_long()
        return body

    def _too_long(self) -> TeacherError:
        return self.error(
            f"the answer is longer than {MAX_BODY_BYTES} bytes", again=False, billed=True
        )

    def _read(
        self,
        status: int,
        *,
        headers: Mapping[str, str],
        body: bytes,
        request: Request,
        sent: Mapping[str, Any],
    ) -> TeacherReply:
        wait_s = retry_after_s(headers, now=time.time())
        # Routers answer 200 and put the error into the body.
        if status == 200 and (error_in_body := _error_in(body)) is not None:
            status = error_in_body[0]
        if status != 200:
            raise self.refusal(status, body, wait_s)
        try:
            reply = read_reply(body, request=request, model=self.settings.model)
        except TeacherError as error:
            raise self.error(error.what, again=error.again, billed=error.billed) from None
        received = received_tokens(json.loads(body), max_tokens=request.max_tokens)
        max_sent = self.most_input_tokens(request)
        reply = replace(
            reply,
            raw=self._raw_text(body),
            sent_tokens=min(sent_tokens(sent), max_sent),
            received_tokens=received,
        )
        return self._redact(self._scrub.reply(reply))

    def _raw_text(self, body: bytes) -> str:
        """Return the body to keep, without the key; "" if it holds the key in pieces."""
        value, text = json.loads(body), body.decode("utf-8", "replace")
        scrubbed = self._scrub.value(value)
        if self._scrub.in_pieces(scrubbed):
            return ""
        return text if scrubbed == value and not self._scrub.holds(text) else dumps(scrubbed)

    def _redact(self, reply: TeacherReply) -> TeacherReply:
        """Return the reply without secrets, the key among them.

        This runs on the parsed reply: arguments are JSON within JSON, whose escapes hide a key.
        """
        turn, raw = redact_turn(reply.turn, self._redactor), self._redactor.text(reply.raw)
        if turn is not reply.turn:
            raw = ""  # the body holds the same secret behind escapes
        return (
            reply if turn is reply.turn and raw is reply.raw else replace(reply, turn=turn, raw=raw)
        )

    def refusal(self, status: int, body: bytes, wait_s: float | None) -> TeacherError:
        """Return what a response without an answer means: for the bill, and for the next try."""
        error_in_body = _error_in(body)
        message = self.shown(error_in_body[1]) if error_in_body else ""
        fix = _FIXES.get(status, "").format(key=self.settings.key_env)
        return self.error(
            f"status {status}" + (f": {message}" if message else ""),
            fix=fix,
            again=status in _RETRY_STATUSES,
            billed=status not in _UNBILLED_STATUSES or _has_answer_or_usage(body),
            wait_s=wait_s,
            for_all=status in _FATAL_STATUSES or 300 <= status < 400,
        )

    def error(self, what: str, **facts: Any) -> TeacherError:
        """Return an error of this teacher, with its address."""
        return TeacherError(what, where=f"{self.name} at {self.settings.base_url}", **facts)


def price_of(settings: TeacherSettings) -> Price:
    """Return the highest price that a teacher may have, from its settings; in batches less.

    >>> at = {"model": "m", "base_url": "https://api.openai.com/v1", "max_input_usd_per_mtok": 2.0}
    >>> price_of(TeacherSettings(**at, batch=True)).input_usd_per_mtok
    1.0
    """
    share = 1.0 - (batch_discount_of(settings) if settings.batch else 0.0)
    return Price(
        input_usd_per_mtok=settings.max_input_usd_per_mtok * share,
        output_usd_per_mtok=settings.max_output_usd_per_mtok * share,
        request_usd=settings.max_request_usd,
    )


def batch_discount_of(settings: TeacherSettings) -> float:
    """Return the discount on a teacher's tokens in a batch: as set, or as published, or none."""
    if settings.batch_discount is not None:
        return settings.batch_discount
    return BATCH_DISCOUNTS.get(urlsplit(settings.base_url).hostname or "", 0.0)


def routing_of(settings: TeacherSettings) -> dict[str, Any]:
    """Return a router's preferences; empty if the endpoint is not a router.

    `max_price` makes the booked worst case a true bound.
    """
    host = urlsplit(settings.base_url).hostname or ""
    if settings.routing == "omit" or (settings.routing == "auto" and host != "openrouter.ai"):
        return {}
    max_price = {
        "prompt": settings.max_input_usd_per_mtok,
        "completion": settings.max_output_usd_per_mtok,
        "request": settings.max_request_usd,
    }
    preferences: dict[str, Any] = {
        "data_collection": settings.data_collection,
        "require_parameters": True,
        "max_price": max_price,
    }
    if settings.distillable:
        preferences["enforce_distillable_text"] = True
    if settings.zero_retention:
        preferences["zdr"] = True
    if settings.only:
        preferences["only"] = list(settings.only)
    return preferences


def retry_after_s(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the pause that an endpoint asks for: Retry-After (number or date) or retry-after-ms.

    >>> retry_after_s({"retry-after": "7"}, now=0.0)
    7.0
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if value.replace(".", "", 1).isdecimal() and value.isascii():
            return float(value) * unit
        if value and unit == 1.0:
            try:
                return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
            except (ValueError, OverflowError):
                return None
    return None


def _check_price_and_transport(name: str, settings: TeacherSettings) -> None:
    """Refuse settings that would cost money without a bound, or send a key unencrypted."""
    parts = urlsplit(settings.base_url)
    if parts.hostname in _LOOPBACK:
        return
    where = f"replay.teacher.{name}"
    if price_of(settings).free:
        fix = "set max_input_usd_per_mtok and max_output_usd_per_mtok: the most that you would pay"
        raise ConfigError(
            f"no price for a teacher that is not on this machine ({parts.hostname})",
            where=where,
            fix=fix,
        )
    if parts.scheme == "http" and settings.key_env:
        raise ConfigError(
            "the key would travel unencrypted",
            where=where,
            fix='use an https:// address, or key_env = "" for none',
        )


def _read_key(name: str, settings: TeacherSettings, environ: Mapping[str, str]) -> str:
    where = f"replay.teacher.{name}"
    if not settings.key_env:
        return ""
    key = environ.get(settings.key_env, "").strip()
    if not key and urlsplit(settings.base_url).hostname in _LOOPBACK:
        return ""
    if not key:
        fix = (
            f"run: export {settings.key_env}=...  (in this shell only; it is never written"
            " anywhere)"
        )
        raise ConfigError(
            f"the environment variable {settings.key_env} is not set", where=where, fix=fix
        )
    if not _KEY_PATTERN.fullmatch(key):
        raise ConfigError(
            f"the value of {settings.key_env} is no key: it holds spaces, quotes or odd characters",
            where=where,
        )
    return key


def _make_client(http: ModuleType, settings: TeacherSettings, key: str) -> Any:
    headers = {
        "content-type": "application/json",
        "user-agent": "composer-replication",
        "accept-encoding": "identity",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    return http.AsyncClient(
        headers=headers,
        timeout=http.Timeout(None, connect=CONNECT_S),  # the asker bounds the whole attempt
        # No connection is reused: bytes that a server left on it would be read as the answer to the
        # next request.
        limits=http.Limits(max_connections=settings.at_once, max_keepalive_connections=0),
        follow_redirects=False,
        # No cookie is kept: an answer must not depend on earlier requests.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=urlsplit(settings.base_url).hostname not in _LOOPBACK,
    )


def json_bytes(value: Any) -> bytes:
    """Return JSON as it is sent."""
    return dumps(value).encode("utf-8")


def _mark_for_cache(messages: list[dict[str, Any]]) -> None:
    """Mark the last message with text, so that the next request reads the prefix from the cache."""
    for message in reversed(messages):
        if isinstance(message["content"], str) and message["content"]:
            message["content"] = [
                {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
            ]
            return


def _parse_or_none(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _error_in(body: bytes) -> tuple[int, str] | None:
    """Return (status, message) of the error that a body holds instead of an answer, or None."""
    value = _parse_or_none(body)
    # `detail` is FastAPI's, and so that of transformers serve.
    error = (value.get("error") or value.get("detail")) if isinstance(value, dict) else None
    if not error or value.get("choices"):
        return None
    error_fields = error if isinstance(error, dict) else {"message": error}
    code, message = error_fields.get("code"), error_fields.get("message")
    return (code if isinstance(code, int) and 300 <= code < 600 else 502), (
        message if isinstance(message, str) else ""
    )


def _has_answer_or_usage(body: bytes) -> bool:
    """Return whether a refusal holds an answer, or usage above 0: it may have been billed."""
    value = _parse_or_none(body)
    if not isinstance(value, dict):
        return False
    usage = value.get("usage")
    numbers = usage.values() if isinstance(usage, dict) else ()
    return bool(value.get("choices")) or any(
        isinstance(number, (int, float)) and number != 0 for number in numbers
    )
