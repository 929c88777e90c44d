"""Anthropic messages and OpenAI responses: what is read, what is written, whole and streamed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from composer_replication.core.trace import Text, ToolCall
from composer_replication.serve.client_messages import RefusedRequestError
from composer_replication.serve.endpoint import read_request
from composer_replication.serve.recorded_sessions import CHANGED, played_rollouts
from tests.rollouts.small_world import TOOLS, message_ids
from tests.serve.clients import (
    QWEN,
    AnthropicClient,
    events,
    joined_blocks,
    message,
    playing,
    post,
    scripted,
)

READ = ("Read", {"path": "a.py"})
ANTHROPIC_TOOLS = [
    {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)}
    for t in TOOLS
]
RESPONSES_TOOLS = [
    {"type": "function", "name": t.name, "parameters": dict(t.parameters)} for t in TOOLS
]


def ids_of(rollout: Any) -> list[tuple[int, ...]]:
    return [t.sampled.ids for t in rollout.session.turns if t.sampled is not None]


def test_messages_with_parallel_calls_an_error_and_cache_marks() -> None:
    script = [message("Look.", READ, ("Read", {"path": "z.py"})), message("depth is 3")]
    with playing(scripted(script)) as (record, url):
        client = AnthropicClient(url, ANTHROPIC_TOOLS, "You work on files.")
        client.say("What is depth?")
        first, second = [b for b in client.ask() if b["type"] == "tool_use"]
        client.results((first["id"], "depth = 3\n", False), (second["id"], "No such file", True))
        # The cache mark moves: a text becomes a block, and nothing else changes.
        block = {"type": "text", "text": "What is depth?", "cache_control": {"type": "ephemeral"}}
        client.messages[0]["content"] = [block]
        assert client.ask() == [{"type": "text", "text": "depth is 3"}]
        (rollout,) = played_rollouts(record)
    assert ids_of(rollout) == [tuple(message_ids(QWEN, m)) for m in script]
    assert [t.role for t in rollout.session.turns] == [
        "system", "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    results = [t.results[0].is_error for t in rollout.session.turns if t.results]
    assert results == [False, True] and rollout.session.events == ()


@pytest.mark.parametrize("thinking", [False, True])
def test_a_stream_of_messages_is_the_whole_message(thinking: bool) -> None:
    body = {
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": ANTHROPIC_TOOLS,
        **({"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinking else {}),
    }
    with playing(scripted([message("Ö.", READ)])) as (_, url):
        whole = post(f"{url}/v1/messages?beta=true", body)
        streamed = events(f"{url}/v1/messages", body)
    assert joined_blocks(streamed) == whole["content"]
    assert streamed[-2][1]["usage"] == whole["usage"] and whole["stop_reason"] == "tool_use"
    assert whole["usage"]["input_tokens"] > 20 and whole["usage"]["output_tokens"] > 10


def test_tokens_are_counted_as_they_will_be_read() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": ANTHROPIC_TOOLS}
    with playing(scripted([message("Hi.")])) as (record, url):
        counted = post(f"{url}/v1/messages/count_tokens", body)["input_tokens"]
        assert not list(record.replies)
        asked = post(f"{url}/v1/messages", {**body, "max_tokens": 99})
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            assert json.loads(answer.read())["data"][0]["id"] == "student"
    assert counted == asked["usage"]["input_tokens"]


def responses_items(rows: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    assert rows[0][0] == "response.created" and rows[-1][0] == "response.completed"
    assert [data["sequence_number"] for _, data in rows] == list(range(len(rows)))
    done = [data["item"] for name, data in rows if name == "response.output_item.done"]
    assert done == rows[-1][1]["response"]["output"]
    return done


def test_responses_with_parallel_calls_are_one_conversation() -> None:
    script = [message("Look.", READ, ("Count", {})), message("", READ), message("depth is 3")]
    with playing(scripted(script)) as (record, url):
        items: list[dict[str, Any]] = [{"role": "user", "content": "What is depth?"}]
        body = {"instructions": "You work on files.", "tools": RESPONSES_TOOLS}
        for number in range(3):
            got = responses_items(events(f"{url}/v1/responses", {**body, "input": items}))
            calls = [item for item in got if item["type"] == "function_call"]
            assert len(calls) == [2, 1, 0][number]
            items = (
                items
                + got
                + [
                    {"type": "function_call_output", "call_id": c["call_id"], "output": "3"}
                    for c in calls
                ]
            )
        (rollout,) = played_rollouts(record)
    assert ids_of(rollout) == [tuple(message_ids(QWEN, m)) for m in script]
    assert [e.kind for e in rollout.session.events] == []


def test_freeform_and_namespaced_tools_of_responses() -> None:
    tools = [
        {"type": "custom", "name": "patch", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "mcp", "tools": [RESPONSES_TOOLS[0]]},
        {"type": "web_search"},
    ]
    script = [message("", ("patch", {"input": "*** Begin"}), READ), message("Done.")]
    with playing(scripted(script)) as (record, url):
        items: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
        got = post(f"{url}/v1/responses", {"tools": tools, "input": items})["output"]
        assert (got[0]["type"], got[0]["input"]) == ("custom_tool_call", "*** Begin")
        assert (got[1]["type"], got[1]["namespace"]) == ("function_call", "mcp")
        outputs = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
            for item in got
        ]
        post(f"{url}/v1/responses", {"tools": tools, "input": items + got + outputs})
        (rollout,) = played_rollouts(record)
    assert len(ids_of(rollout)) == 2
    kinds = {e.kind: e.text for e in rollout.session.events}
    assert kinds == {"left_out": "1 tools"} and CHANGED not in kinds


def test_a_client_s_message_of_another_model_is_context_as_text() -> None:
    """What nobody sampled here is rendered, not trained on."""
    with playing(scripted([message("depth is 3")])) as (record, url):
        history = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "I am another model."},
            {"role": "user", "content": "y"},
        ]
        post(f"{url}/v1/messages", {"messages": history, "max_tokens": 99})
        (rollout,) = played_rollouts(record)
    foreign = rollout.session.turns[1]
    assert foreign.sampled is None and foreign.author is None
    assert foreign.blocks == (Text("I am another model."),)


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("chat", {"messages": [{"role": "robot", "content": "x"}]}),
        ("chat", {"messages": "x"}),
        ("chat", {"messages": [{"role": "user", "content": 3}]}),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]}),
        ("responses", {"input": [{"type": "image_generation_call"}]}),
        ("responses", {"previous_response_id": "r", "input": "x"}),
        ("chat", []),
    ],
)
def test_what_cannot_be_read_is_refused(wire: Any, body: Any) -> None:
    with pytest.raises(RefusedRequestError):
        read_request(wire, json.dumps(body).encode(), {})


def test_arguments_that_are_no_json_are_kept() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "Read", "arguments": "{broken"}}
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    request = read_request("chat", json.dumps(body).encode(), {})
    assert request.messages[0].turns[0].calls == (ToolCall("c", "Read", {"input": "{broken"}),)
