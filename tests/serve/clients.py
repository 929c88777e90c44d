"""Clients of the endpoint: they speak a wire format over HTTP as an agent program does, and play an
environment of the package with it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.trace import Text, ToolCall, ToolSpec, Turn
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.sampling import Sampling
from composer_replication.serve.endpoint import Endpoint
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.student_writers import ScriptedWriter, Writer
from composer_replication.tokens.renderer import Renderer
from tests.tokens.students import renderer

QWEN = renderer("qwen3", "qwen3")
SAMPLING = Sampling(max_new_tokens=200, max_context_tokens=4096, seed=7)


def message(text: str = "", *calls: tuple[str, dict[str, Any]]) -> Turn:
    """A message for a script."""
    blocks = [ToolCall(f"s{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return Turn(role="assistant", author=None, blocks=(*((Text(text),) if text else ()), *blocks))


def scripted(messages: Sequence[Turn | Sequence[int]], **options: Any) -> ScriptedWriter:
    return ScriptedWriter(
        chat_format=ChatFormat.of(QWEN, author="tiny"), messages=messages, **options
    )


@contextmanager
def playing(
    writer: Writer,
    *,
    name: str = "ep",
    settings: Sampling = SAMPLING,
    render: Renderer = QWEN,
    **options: Any,
) -> Iterator[tuple[EpisodeRecord, str]]:
    """An open episode and its address."""
    record = EpisodeRecord(
        name,
        chat_format=ChatFormat.of(render, author="tiny"),
        writer=writer,
        settings=settings,
        **options,
    )
    with Endpoint() as endpoint:
        yield record, endpoint.open(record)


def post(url: str, body: Any, **headers: str) -> Any:
    """The JSON of an answer; of an error, {"status": ..., **body}."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.loads(error.read())}


def events(url: str, body: Any, **headers: str) -> list[tuple[str, Any]]:
    """The server-sent events of an answer: names and data."""
    request = urllib.request.Request(
        url,
        data=json.dumps({**body, "stream": True}).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return event_rows(answer.read().decode())


def event_rows(text: str) -> list[tuple[str, Any]]:
    """Names and data of the server-sent events of a text."""
    rows = []
    for part in text.split("\n\n"):
        lines = [line for line in part.split("\n") if line and not line.startswith(":")]
        name = next((x.removeprefix("event: ") for x in lines if x.startswith("event: ")), "")
        for line in lines:
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                rows.append((name, data if data == "[DONE]" else json.loads(data)))
    return rows


def chat_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


@dataclass
class ChatClient:
    """A player that speaks chat completions; `stream` reads chunks."""

    url: str
    tools: list[dict[str, Any]]
    stream: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text})

    def ask(self, **fields: Any) -> dict[str, Any]:
        """The student's next message, which is added to the conversation."""
        body = {"model": "student", "messages": self.messages, "tools": self.tools, **fields}
        url = f"{self.url}/v1/chat/completions"
        answer = joined_chunks(events(url, body)) if self.stream else post(url, body)
        if "choices" not in answer:
            return answer
        got = answer["choices"][0]["message"]
        self.messages.append(got)
        return got

    def result(self, call_id: str, text: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def joined_chunks(rows: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A whole answer from the chunks of a stream, as an SDK joins them."""
    assert rows[-1][1] == "[DONE]"
    got: dict[str, Any] = {"role": "assistant", "content": ""}
    finish = ""
    for _, chunk in rows[:-1]:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            finish = choice["finish_reason"] or finish
            got["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls", ()):
                calls = got.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    function = {"name": part["function"]["name"], "arguments": ""}
                    calls.append({"id": part["id"], "type": "function", "function": function})
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    got["content"] = got["content"] or None
    return {"choices": [{"message": got, "finish_reason": finish}]}


@dataclass
class AnthropicClient:
    """A player that speaks messages, always as a stream, as Claude Code does."""

    url: str
    tools: list[dict[str, Any]]
    system: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def ask(self, **headers: str) -> list[dict[str, Any]]:
        body = {
            "model": "student",
            "max_tokens": 32000,
            "system": [{"type": "text", "text": self.system}],
            "messages": self.messages,
            "tools": self.tools,
        }
        rows = events(f"{self.url}/v1/messages", body, **headers)
        content = joined_blocks(rows)
        self.messages.append({"role": "assistant", "content": content})
        return content

    def results(self, *rows: tuple[str, str, bool]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": is_error}
            for call, text, is_error in rows
        ]
        self.messages.append({"role": "user", "content": content})


def joined_blocks(rows: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The content of a streamed message, as an SDK joins it."""
    assert rows[0][0] == "message_start" and rows[-1][0] == "message_stop"
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for name, data in rows:
        if name == "content_block_start":
            blocks.append(dict(data["content_block"]))
        elif name == "content_block_delta":
            delta = data["delta"]
            if delta["type"] == "text_delta":
                blocks[data["index"]]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks
