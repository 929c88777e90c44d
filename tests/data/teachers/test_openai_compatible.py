"""The client against a real server on this machine: what is sent, what is read, and what each
failure means for the cost."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError, TeacherError
from composer_replication.core.teacher import (
    Request,
    TeacherReply,
    Usage,
    reply_to_json,
    request_key,
    worst_usd,
)
from composer_replication.core.trace import Opaque, Text, ToolCall
from composer_replication.data.teachers.ledger import Call, Ledger
from composer_replication.data.teachers.openai_compatible import (
    MAX_BODY_BYTES,
    OpenAICompatible,
    retry_after_s,
)
from composer_replication.data.teachers.scrub import KeyScrub
from composer_replication.data.teachers.wire import read_reply, read_usage
from tests.data.teachers.endpoint import INPUT_USD, OUTPUT_USD, Endpoint
from tests.data.teachers.fake_teacher import READ, request, says

KEY = "sk-planted-" + "7hJ2mQ9x" * 4
ENVIRON = {"ROUTER_KEY": KEY, "HOME": "/home/dev"}
ASKED = Request(turns=request().turns, tools=(READ,), max_tokens=50)


def settings(url: str, **fields: Any) -> TeacherSettings:
    price = {"max_input_usd_per_mtok": INPUT_USD * 1e6, "max_output_usd_per_mtok": OUTPUT_USD * 1e6}
    return TeacherSettings(
        **{
            "model": "glm-5",
            "family": "glm",
            "base_url": url,
            "key_env": "ROUTER_KEY",
            **price,
            **fields,
        }
    )


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as started:
        yield started


def ask(
    endpoint: Endpoint, *, asked: Request = ASKED, environ: dict[str, str] = ENVIRON, **fields: Any
) -> TeacherReply:
    async def work() -> TeacherReply:
        async with OpenAICompatible(
            "glm", settings(endpoint.url, **fields), environ=environ
        ) as teacher:
            async with asyncio.timeout(5):
                return await teacher.ask(asked)

    return asyncio.run(work())


def fails(endpoint: Endpoint, behaviour: str, **fields: Any) -> TeacherError:
    endpoint.plan = lambda number, body: behaviour
    with pytest.raises(TeacherError) as caught:
        ask(endpoint, **fields)
    return caught.value


def test_an_answer_with_a_call_its_cost_and_its_cached_tokens(endpoint: Endpoint) -> None:
    reply = ask(endpoint)
    assert (
        reply.turn.blocks == (ToolCall("c1", "read", {"path": "a.py"}),)
        and reply.turn.author == "glm-5-0711"
    )
    (logged,) = endpoint.seen
    tokens = len(json.dumps(logged.body["messages"])) // 4
    assert reply.usage == Usage(
        input_tokens=tokens,
        output_tokens=20,
        cached_tokens=tokens // 2,
        usd=pytest.approx(logged.usd),
    )
    assert (reply.problem, reply.provider, reply.confidence) == ("", "Fake", None) and json.loads(
        reply.raw
    )["id"] == logged.name


def test_what_is_sent(endpoint: Endpoint) -> None:
    ask(endpoint, asked=replace(ASKED, schema={"type": "object"}), routing="send", only=("a", "b"),
    zero_retention=True, logprobs=True,
        explicit_cache=True, body={"reasoning": {"effort": "low"}})  # fmt: skip
    (logged,) = endpoint.seen
    assert logged.key == f"Bearer {KEY}"
    cached = [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]
    assert logged.body == {
        "model": "glm-5",
        "messages": [{"role": "user", "content": cached}],
        "stream": False,
        "tools": [{"type": "function",
        "function": {"name": "read", "description": "Reads a file.",
        "parameters": dict(READ.parameters)}}],
        "max_tokens": 50,
        "temperature": 0.0,
        "response_format": {"type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": {"type": "object"}}},
        "logprobs": True,
        "provider": {
            "data_collection": "deny", "require_parameters": True,
            "max_price": {"prompt": 1.0, "completion": 4.0, "request": 0.0},
            "enforce_distillable_text": True, "zdr": True, "only": ["a", "b"],
        },
        "reasoning": {"effort": "low"},
    }  # fmt: skip


def test_a_plain_endpoint_gets_no_preferences_and_needs_no_key(endpoint: Endpoint) -> None:
    ask(endpoint, environ={}, output_field="max_completion_tokens")
    (logged,) = endpoint.seen
    assert (
        logged.key == ""
        and "provider" not in logged.body
        and logged.body["max_completion_tokens"] == 50
        and "max_tokens" not in logged.body
    )


@pytest.mark.parametrize(
    ("behaviour", "again", "billed", "for_all"),
    [
        ("429", True, False, False),
        ("500", True, True, False),
        ("503", True, False, False),
        ("502", True, True, False),
        ("504", True, True, False),
        ("408", True, True, False),
        ("524", True, True, False),
        ("400", False, False, False),
        ("403", False, False, False),
        ("413", False, False, False),
        ("401", False, False, True),
        ("402", False, False, True),
        ("404", False, False, True),
        ("307", False, True, True),
        ("cut", True, True, False),
        ("closed", True, True, False),
        ("no_choices", True, True, False),
        ("error_in_200", True, False, False),
    ],
)
def test_what_each_failure_means(
    endpoint: Endpoint, behaviour: str, again: bool, billed: bool, for_all: bool
) -> None:
    error = fails(endpoint, behaviour)
    assert (error.again, error.billed, error.for_all) == (
        again,
        billed,
        for_all,
    ) and error.where == f"glm at {endpoint.url}"


def test_nothing_listens_there() -> None:
    with Endpoint() as endpoint:
        pass
    with pytest.raises(TeacherError, match="no connection") as caught:
        ask(endpoint)
    assert caught.value.again and not caught.value.billed


def test_the_pause_that_an_endpoint_asks_for(endpoint: Endpoint) -> None:
    endpoint.retry_after = "7"
    assert fails(endpoint, "429").wait_s == 7.0 and fails(endpoint, "500").wait_s is None
    assert retry_after_s({"retry-after": "1.5"}, now=0.0) == 1.5
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "9"}, now=0.0) == 0.25
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=40.0) == 60.0
    for odd in ("", "-5", "nan", "inf", "soon", "1e9", "\u0663"):
        assert retry_after_s({"retry-after": odd}, now=0.0) is None, odd


@pytest.mark.parametrize(
    ("behaviour", "problem"), [("unknown_tool", "unknown_tool"), ("bad_arguments", "bad_arguments")]
)
def test_a_wrong_call_is_an_answer_with_a_problem(
    endpoint: Endpoint, behaviour: str, problem: str
) -> None:
    endpoint.plan = lambda number, body: behaviour
    reply = ask(endpoint)
    assert reply.problem == problem and reply.usage.usd == pytest.approx(endpoint.billed_usd)
    if behaviour == "bad_arguments":
        (block,) = reply.turn.blocks
        # kept as it came, not repaired
        assert isinstance(block, Opaque) and '{\\"path\\": ' in block.text


def test_missing_usage_is_not_reported_and_not_nothing(endpoint: Endpoint) -> None:
    endpoint.plan = lambda number, body: "no_usage"
    assert ask(endpoint).usage == Usage()
    endpoint.plan = lambda number, body: "no_cost"
    usage = ask(endpoint).usage
    assert usage.usd is None and usage.output_tokens == 20


def test_a_routers_fee_is_not_the_models_bill() -> None:
    """With a key of one's own the router reports its fee; what the model costs is beside it, or is
    not known."""
    assert read_usage(
        {"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}
    ).usd == pytest.approx(0.021)
    assert read_usage({"cost": 0.001, "is_byok": True}).usd is None
    assert read_usage({"cost": 0.001, "is_byok": False}).usd == 0.001


@pytest.mark.parametrize(
    "absurd",
    [
        {"cost": 1e300}, {"cost": 1e11}, {"cost": 10**400}, {"cost": float("nan")},
        {"cost": float("inf")}, {"cost": -1},
        {"prompt_tokens": 10**25}, {"completion_tokens": -7},
        {"prompt_tokens_details": {"cached_tokens": 10**25}},
        {"cost": 0.5, "is_byok": True, "cost_details": {"upstream_inference_cost": 1e300}},
    ],
)  # fmt: skip
def test_absurd_numbers_are_not_believed_and_the_answer_is_kept_at_its_worst_case(
    tmp_path: Path, absurd: dict[str, Any]
) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "cost": 0.01, **absurd}
    logprobs = {"content": [{"logprob": -(10**400)}]}
    choice = {
        "message": {"role": "assistant", "content": "Done."},
        "finish_reason": "stop",
        "logprobs": logprobs,
    }
    got = read_reply(
        json.dumps({"choices": [choice], "usage": usage}).encode(), request=ASKED, model="m"
    )
    assert got.usage == Usage() and got.turn.text == "Done." and got.confidence is None
    with Ledger(tmp_path / "ledger", max_usd=2.0) as ledger:
        held = ledger.reserve("key", teacher=says(), request=ASKED, timeout_s=9.0)
        assert isinstance(held, Call) and ledger.settle(held, got, price=says().price).usd == 1.0
        assert ledger.totals().num_answers == 1


def test_the_worst_case_is_more_than_any_bill(endpoint: Endpoint) -> None:
    """Whatever is sent, its tokens cannot be more than its bytes: CJK, emoji, escapes, many short
    messages, large tools."""
    texts = ["go", "\u4e2d\u6587" * 500, "\U0001f600" * 300, '\\\n\t"' * 400, "\ud800"]
    for text in texts:
        asked = replace(ASKED, turns=request(text).turns * 20, tools=(READ,) * 5)
        teacher = OpenAICompatible("glm", settings(endpoint.url), environ=ENVIRON)
        assert (
            teacher.most_input_tokens(asked)
            >= len(text.encode("utf-8", "surrogatepass")) * 20 + 20 * 8
        )
        ask(endpoint, asked=asked)
        assert worst_usd(teacher, asked) > endpoint.seen[-1].usd


def test_the_key_is_nowhere_but_in_the_header(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.echo_key = True
    reply = ask(endpoint)
    assert (
        KEY not in reply.raw and KEY not in reply.turn.text and "[REDACTED:key]" in reply.turn.text
    )
    for behaviour in ("400", "429", "error_in_200"):
        error = fails(endpoint, behaviour)
        assert (
            "was not liked" in str(error)
            and KEY not in str(error)
            and KEY not in repr(error.__dict__)
        )
    teacher = OpenAICompatible("glm", settings(endpoint.url), environ=ENVIRON)
    assert (
        KEY not in repr(teacher)
        and KEY not in repr(teacher._client.headers)
        and KEY not in json.dumps(dict(teacher.identity))
    )
    assert KEY not in capsys.readouterr().out


def test_a_key_in_an_answers_arguments_and_any_other_secret_go_before_the_answer_is_kept() -> None:
    """Arguments are JSON within JSON: there the key stands behind escapes that the body's own
    decoding leaves."""
    key, token = "sk-planted-" + "q7Zx" * 6, "gh" + "p_" + "q7Zx" * 9
    teacher = OpenAICompatible(
        "glm", settings("http://127.0.0.1:1/v1"), environ={"ROUTER_KEY": key}
    )
    arguments = json.dumps({"command": "echo " + key, "file": "x"}).replace("s", "\\u0073")
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    message = {"role": "assistant", "content": f"use {token}", "tool_calls": [call]}
    body = json.dumps(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {}}
    ).encode()
    reply = teacher._read(200, headers={}, body=body, request=ASKED, sent={})
    kept_json = json.dumps(reply_to_json(reply))
    assert key not in kept_json
    assert key.encode().decode() not in json.dumps(reply.turn.calls[0].arguments)
    assert token not in kept_json
    assert "\\u0073k-planted" not in reply.raw


@contextmanager
def answering(
    data: bytes, *headers: str, status: int = 200, behind: bytes = b""
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes to every client, on connections that it keeps open, and a
    list of what it received."""
    got: list[bytes] = []
    head = "".join(
        f"{line}\r\n" for line in (f"HTTP/1.1 {status} X", f"content-length: {len(data)}", *headers)
    )

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                talk, _ = listener.accept()
                threading.Thread(target=keep, args=(talk,), daemon=True).start()

    def keep(talk: socket.socket) -> None:
        with talk, suppress(OSError):
            while sent := talk.recv(65536):
                got.append(sent)
                talk.sendall(head.encode() + b"\r\n" + data + behind)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", got


def ask_at(url: str, asked: Request = ASKED) -> TeacherReply:
    async def work() -> TeacherReply:
        async with (
            OpenAICompatible("glm", settings(url), environ=ENVIRON) as teacher,
            asyncio.timeout(20),
        ):
            return await teacher.ask(asked)

    return asyncio.run(work())


def chat(content: str, **more: Any) -> bytes:
    return json.dumps(
        {
            "choices": [
                {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
            ],
            **more,
        }
    ).encode()


def test_a_packed_body_is_unpacked_up_to_a_bound() -> None:
    with answering(gzip.compress(chat("Done.")), "content-encoding: gzip") as (url, got):
        assert ask_at(url).turn.text == "Done." and b"accept-encoding: identity" in got[0].lower()
    bomb = gzip.compress(chat(" " * 40 * 2**20))
    tracemalloc.start()
    with (
        answering(bomb, "content-encoding: gzip") as (url, _),
        pytest.raises(TeacherError, match="longer than") as caught,
    ):
        ask_at(url)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.billed and not caught.value.again and most < 6 * MAX_BODY_BYTES
    for packed in ("br", "gzip, gzip", "zstd"):
        with (
            answering(bomb, f"content-encoding: {packed}") as (url, _),
            pytest.raises(TeacherError, match="packed as") as caught,
        ):
            ask_at(url)
        assert caught.value.billed


def test_a_refusal_that_brings_a_bill_or_an_answer_may_be_billed() -> None:
    for more in (
        {"usage": {"completion_tokens": 7}},
        {"usage": {"cost": 0.01}},
        {"choices": [{"message": {"content": "x"}}]},
    ):
        data = json.dumps({"error": {"message": "busy"}, **more}).encode()
        with answering(data, status=429) as (url, _), pytest.raises(TeacherError) as caught:
            ask_at(url)
        assert caught.value.billed, more
    with (
        answering(b'{"error": {"message": "busy"}, "usage": {"cost": 0}}', status=429) as (url, _),
        pytest.raises(TeacherError) as caught,
    ):
        ask_at(url)
    assert not caught.value.billed


def test_what_was_sent_and_received_is_counted_whatever_is_reported() -> None:
    long = "reconsider " * 40
    with answering(chat(long, usage={"prompt_tokens": 0, "completion_tokens": 0, "cost": 0})) as (
        url,
        _,
    ):
        reply = ask_at(url, replace(ASKED, max_tokens=1000))
    assert (
        reply.usage.usd == 0 and 200 < reply.sent_tokens < 400 and 40 <= reply.received_tokens < 400
    )
    with answering(chat(long)) as (url, _):
        # 40 words, where 30 tokens were asked for
        assert ask_at(url, replace(ASKED, max_tokens=30)).received_tokens > 100
    beside = {
        "choices": [
            {
                "message": {"role": "assistant", "content": "Done."},
                "finish_reason": "stop",
                "reasoning": long,
            }
        ]
    }
    with answering(json.dumps({**beside, "output": long, "usage": {"cost": 0}}).encode()) as (
        url,
        _,
    ):
        assert ask_at(url, replace(ASKED, max_tokens=30)).received_tokens > 200


def test_the_key_behind_escapes_of_escapes_is_not_kept() -> None:
    hidden = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path": "' + hidden + '"}'},
    }
    message = {"role": "assistant", "content": hidden, "tool_calls": [call]}
    data = json.dumps(
        {"model": hidden, "choices": [{"message": message, "finish_reason": "stop"}]}
    ).encode()
    with answering(data) as (url, _):
        reply = ask_at(url)
    reply_text = repr(reply) + json.dumps(dict(reply.turn.calls[0].arguments))
    assert (
        KEY not in reply_text
        and not KeyScrub(KEY).holds(reply_text)
        and reply.turn.text == "[REDACTED:key]"
    )
    with (
        answering(json.dumps({"error": {"message": f"no {hidden}"}}).encode(), status=400) as (
            url,
            _,
        ),
        pytest.raises(TeacherError) as caught,
    ):
        ask_at(url)
    assert "[REDACTED:key]" in str(caught.value) and hidden[:40] not in str(caught.value)


def test_what_stands_behind_an_answer_is_not_read_as_the_next_one() -> None:
    smuggled = chat("SMUGGLED")
    behind = f"HTTP/1.1 200 OK\r\ncontent-length: {len(smuggled)}\r\n\r\n".encode() + smuggled

    async def work(url: str) -> list[str]:
        async with OpenAICompatible("glm", settings(url), environ=ENVIRON) as teacher:
            return [(await teacher.ask(ASKED)).turn.text for _ in range(3)]

    with answering(chat("Done."), behind=behind) as (url, got):
        assert (
            asyncio.run(work(url)) == ["Done."] * 3
            and sum(request_bytes.startswith(b"POST") for request_bytes in got) == 3
        )


def test_no_cookie_goes_back() -> None:
    async def work(url: str) -> None:
        async with OpenAICompatible("glm", settings(url), environ=ENVIRON) as teacher:
            for _ in range(2):
                await teacher.ask(ASKED)

    with answering(chat("Done."), "set-cookie: session=1; Path=/") as (url, got):
        asyncio.run(work(url))
    assert sum(request_bytes.startswith(b"POST") for request_bytes in got) == 2 and not any(
        b"cookie" in request_bytes.lower() for request_bytes in got
    )


def test_a_redirect_to_another_host_brings_it_no_key(endpoint: Endpoint) -> None:
    for status in (301, 302, 303, 307, 308):
        with (
            answering(b"", f"location: {endpoint.url}/chat/completions", status=status) as (url, _),
            pytest.raises(TeacherError) as caught,
        ):
            ask_at(url)
        assert caught.value.for_all and not endpoint.seen


def test_no_redirect_is_followed_with_the_key(endpoint: Endpoint) -> None:
    fails(endpoint, "307")
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize(
    ("fields", "environ", "message"),
    [
        ({"base_url": "https://models.example/v1"}, {}, "ROUTER_KEY is not set"),
        ({"base_url": "https://models.example/v1"}, {"ROUTER_KEY": "two words"}, "spaces"),
        (
            {"base_url": "https://models.example/v1"},
            {"ROUTER_KEY": "line\nbreak"},
            "odd characters",
        ),
        ({"base_url": "http://models.example/v1"}, ENVIRON, "unencrypted"),
        (
            {
                "base_url": "https://models.example/v1",
                "max_input_usd_per_mtok": 0,
                "max_output_usd_per_mtok": 0,
            },
            ENVIRON,
            "no price",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_sent(
    fields: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        OpenAICompatible("glm", settings(fields.pop("base_url"), **fields), environ=environ)
    for value in environ.values():
        assert value not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://x/v1", "models", "https://user:pw@x/v1", "https://x/v1?key=1"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        settings(url)


def test_fields_that_decide_about_money_cannot_be_overridden() -> None:
    for name in ("n", "max_tokens", "provider", "model"):
        with pytest.raises(ValueError, match="set by the program"):
            settings("http://localhost/v1", body={name: 3})


def test_the_same_request_has_the_same_name_whatever_it_may_cost() -> None:
    def name(asked: Request = ASKED, **fields: Any) -> str:
        return request_key(
            OpenAICompatible(
                "x", settings("http://localhost:1/v1", routing="send", **fields), environ=ENVIRON
            ),
            asked,
        )

    same = name()
    assert name(max_input_usd_per_mtok=9.0) == same == name(asked=replace(ASKED, about="s9:3:-"))
    others = [
        name(model="glm-6"),
        name(data_collection="allow"),
        name(body={"top_p": 0.9}),
        name(asked=replace(ASKED, sample=1)),
    ]
    assert len({same, *others, name(asked=replace(ASKED, turns=request("gO").turns))}) == 6


def test_words_and_calls_together(endpoint: Endpoint) -> None:
    endpoint.act = lambda body: "All done."
    assert ask(endpoint).turn.blocks == (Text("All done."),)


def test_every_choice_counts() -> None:
    choice = {
        "message": {"role": "assistant", "content": "reconsider " * 20},
        "finish_reason": "stop",
    }
    counts = [0, 0]
    for number, num in enumerate((1, 8)):
        with answering(json.dumps({"choices": [choice] * num}).encode()) as (url, _):
            counts[number] = ask_at(url).received_tokens
    assert counts[1] == 8 * counts[0] > 0
