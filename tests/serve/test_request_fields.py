"""The fields of a request beside its messages: used, ignored, or refused in the words of the wire.

tests/backends_agents/test_published_fields.py compares the lists with the providers' packages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.trace import ToolSpec
from composer_replication.serve.client_messages import Wire
from composer_replication.serve.recorded_sessions import played_rollouts
from composer_replication.serve.request_fields import IGNORED, REFUSED, USED
from tests.serve.clients import chat_tools, events, message, playing, post, scripted

WIRES: tuple[Wire, ...] = ("chat", "responses", "messages")
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
HI = {"role": "user", "content": "Hi"}
FIRST: dict[str, dict[str, Any]] = {
    "chat": {"messages": [HI]},
    "responses": {"input": [HI]},
    "messages": {"messages": [HI], "max_tokens": 500},
}
READ = ToolSpec(name="Read", parameters={"type": "object"})
NAMED = {"type": "function", "function": {"name": "Read"}}
SCHEMA = {"type": "json_schema", "schema": {}}
REFUSALS: list[tuple[Wire, str, Any]] = [
    ("chat", "n", 3),
    ("chat", "tool_choice", "required"),
    ("chat", "tool_choice", NAMED),
    ("chat", "response_format", {"type": "json_object"}),
    ("chat", "response_format", SCHEMA),
    ("chat", "stop", ["\n"]),
    ("chat", "top_logprobs", 5),
    ("chat", "logit_bias", {"7": 1}),
    ("chat", "functions", [{"name": "Read"}]),
    ("chat", "function_call", "auto"),
    ("chat", "modalities", ["text", "audio"]),
    ("chat", "audio", {"voice": "x"}),
    ("chat", "web_search_options", {"user_location": None}),
    ("responses", "tool_choice", {"type": "function", "name": "Read"}),
    ("responses", "text", {"format": SCHEMA}),
    ("responses", "top_logprobs", 1),
    ("responses", "include", ["message.output_text.logprobs"]),
    ("responses", "previous_response_id", "resp_1"),
    ("responses", "conversation", "conv_1"),
    ("responses", "background", True),
    ("responses", "prompt", {"id": "pmpt_1"}),
    ("messages", "tool_choice", {"type": "any"}),
    ("messages", "tool_choice", {"type": "tool", "name": "Read"}),
    ("messages", "stop_sequences", ["\n"]),
    ("messages", "output_config", {"format": SCHEMA}),
    ("messages", "output_format", SCHEMA),
    ("messages", "thread", {"id": "t"}),
    ("messages", "mcp_servers", [{"name": "x"}]),
]
FINE: list[tuple[Wire, dict[str, Any]]] = [
    ("chat", {"n": 1, "tool_choice": "auto", "stop": None, "top_logprobs": 0, "logit_bias": {}}),
    ("chat", {"tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}),
    ("responses", {"text": {"verbosity": "low"}, "include": ["reasoning.encrypted_content"]}),
    ("responses", {"text": {"format": {"type": "text"}}, "background": False}),
    ("messages", {"tool_choice": {"type": "auto"}, "output_config": {"effort": "high"}}),
]


def test_every_refused_field_is_tried() -> None:
    assert {(wire, name) for wire, name, _ in REFUSALS} == {
        (wire, name) for wire in WIRES for name in REFUSED[wire]
    }


@pytest.mark.parametrize(("wire", "name", "value"), REFUSALS)
def test_what_the_answer_would_not_keep_is_refused_in_the_words_of_the_wire(
    wire: Wire, name: str, value: Any
) -> None:
    with playing(scripted([message("Hello")])) as (record, url):
        answer = post(f"{url}/v1/{PATHS[wire]}", {**FIRST[wire], name: value})
        assert not list(record.replies)
    error = answer["error"]
    assert answer["status"] == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{name} = ") and REFUSED[wire][name].why in error["message"]
    assert (answer.get("type") == "error") == (wire == "messages")
    assert wire == "messages" or error["param"] == name


@pytest.mark.parametrize(("wire", "fields"), FINE)
def test_the_same_fields_with_a_value_that_is_kept_are_answered(
    wire: Wire, fields: dict[str, Any]
) -> None:
    with playing(scripted([message("Hello")])) as (record, url):
        answer = post(f"{url}/v1/{PATHS[wire]}", {**FIRST[wire], **fields})
        assert not answer.get("error")
        assert len(list(record.replies)) == 1


def test_no_calls_at_all_cannot_be_promised_while_tools_are_on_offer() -> None:
    with playing(scripted([message("Hello")])) as (_, url):
        body = {**FIRST["chat"], "tools": chat_tools([READ]), "tool_choice": "none"}
        assert "leave tools out" in post(f"{url}/v1/chat/completions", body)["error"]["message"]


@pytest.mark.parametrize("wire", WIRES)
def test_ignored_fields_are_answered_and_unknown_ones_counted(wire: Wire) -> None:
    with playing(scripted([message("Hello")])) as (record, url):
        post(f"{url}/v1/{PATHS[wire]}", {**FIRST[wire], **dict.fromkeys(IGNORED[wire], 1), "x": 1})
        (rollout,) = played_rollouts(record)
    assert [e.text for e in rollout.session.events if e.kind == "left_out"] == ["1 field x"]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probs_of_every_sampled_token_are_sent(stream: bool) -> None:
    call = ("Read", {"file_path": "ö.py"})
    writer = scripted(
        [message("Grüße", call)], score=lambda _, ids: [-0.5 * n for n in range(len(ids))]
    )
    body = {**FIRST["chat"], "tools": chat_tools([READ]), "logprobs": True}
    with playing(writer) as (record, url):
        address = f"{url}/v1/chat/completions"
        if stream:
            chunks = [data["choices"] for _, data in events(address, body)[:-1] if data["choices"]]
            (found,) = [c["logprobs"] for (c,) in chunks if "logprobs" in c]
        else:
            found = post(address, body)["choices"][0]["logprobs"]
        (turn,) = [turn for reply in record.replies for turn in reply.turns]
    assert turn.sampled is not None
    rows = found["content"]
    assert [row["logprob"] for row in rows] == list(turn.sampled.logprobs)
    texts = [record.chat_format.renderer.codec.decode([i]) for i in turn.sampled.ids]
    assert [row["token"] for row in rows] == texts and rows[-1]["token"] == "<|im_end|>"
    assert all(
        row["bytes"] is None if "\ufffd" in row["token"] else bytes(row["bytes"]).decode() == text
        for row, text in zip(rows, texts, strict=True)
    )


def test_log_probs_are_not_sent_unasked() -> None:
    with playing(scripted([message("Hello")])) as (_, url):
        answer = post(f"{url}/v1/chat/completions", FIRST["chat"])
    assert "logprobs" not in answer["choices"][0]


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_a_client_that_wants_one_call_gets_one(wire: Wire) -> None:
    """The second one is answered here, and the student reads that beside the first one's result."""
    calls = [("Read", {"file_path": name}) for name in ("a.py", "b.py")]
    with playing(scripted([message("", *calls), message("Done.")])) as (record, url):
        address = f"{url}/v1/{PATHS[wire]}"
        if wire == "chat":
            body = {**FIRST[wire], "tools": chat_tools([READ]), "parallel_tool_calls": False}
            got = post(address, body)["choices"][0]["message"]
            (call,) = got["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
        else:
            choice = {"type": "auto", "disable_parallel_tool_use": True}
            tools = [{"name": "Read", "input_schema": {"type": "object"}}]
            body = {**FIRST[wire], "tools": tools, "tool_choice": choice}
            content = post(address, body)["content"]
            (call,) = content
            got = {"role": "assistant", "content": content}
            block = {"type": "tool_result", "tool_use_id": call["id"], "content": "x"}
            result = {"role": "user", "content": [block]}
        post(address, {**body, "messages": [HI, got, result]})
        (rollout,) = played_rollouts(record)
    results = [r.text for turn in rollout.session.turns for r in turn.results]
    assert results == ["x", "Cancelled: parallel tool call beyond the 1 of one message"]


def field_table() -> str:
    """The table of docs/serve.md."""

    def names(fields: Any) -> str:
        return ", ".join(f"`{name}`" for name in fields)

    def refused(wire: Wire) -> str:
        return ", ".join(
            f"`{name}`" + (f" ({refusal.accepted})" if refusal.accepted else "")
            for name, refusal in REFUSED[wire].items()
        )

    rows = (
        ("", *("chat completions", "responses", "messages")),
        ("---",) * 4,
        ("used", *(names(USED[wire]) for wire in WIRES)),
        ("ignored", *(names(IGNORED[wire]) for wire in WIRES)),
        ("refused", *(refused(wire) for wire in WIRES)),
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_has_the_same_table(repository_root: Path) -> None:
    page = (repository_root / "docs" / "serve.md").read_text("utf-8")
    assert field_table() in page, field_table()


@pytest.mark.parametrize("wire", WIRES)
def test_a_field_is_in_one_list(wire: Wire) -> None:
    every = [*USED[wire], *IGNORED[wire], *REFUSED[wire]]
    assert len(every) == len(set(every)), json.dumps(sorted(every))


LIMITS = [
    ("chat/completions", "max_tokens"),
    ("chat/completions", "max_completion_tokens"),
    ("responses", "max_output_tokens"),
    ("messages", "max_tokens"),
]


@pytest.mark.parametrize("limit", [0, -3])
@pytest.mark.parametrize(("path", "field"), LIMITS)
def test_a_limit_below_one_token_is_refused_as_the_provider_does(
    path: str, field: str, limit: int
) -> None:
    asked = {"input": "x"} if path == "responses" else {"messages": [HI]}
    with playing(scripted([message("Hi.")])) as (record, url):
        answer = post(f"{url}/v1/{path}", {**asked, field: limit})
        assert answer["status"] == 400 and not list(record.replies)
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    if path == "messages":
        assert error["message"] == "max_tokens: must be greater than or equal to 1"
    else:
        assert error["param"] == field
        assert error["message"].startswith(f"Invalid '{field}': integer below minimum value.")


@pytest.mark.parametrize("limit", ["500", 1.5, True, [5]])
@pytest.mark.parametrize(("path", "field"), LIMITS)
def test_a_limit_that_is_no_integer_is_refused_and_null_is_none(
    path: str, field: str, limit: object
) -> None:
    asked = {"input": "x"} if path == "responses" else {"messages": [HI]}
    with playing(scripted([message("Hi.")])) as (record, url):
        answer = post(f"{url}/v1/{path}", {**asked, field: limit})
        assert answer["status"] == 400 and not list(record.replies)
        assert f"'{field}' is not an integer: {limit!r}" in answer["error"]["message"]
        assert not post(f"{url}/v1/{path}", {**asked, field: None}).get("error")
