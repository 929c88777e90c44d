"""A served model as the writer: against a loopback server that speaks vLLM's completions with token
ids."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.trace import ToolCall, Turn
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.served import GenerationRequest, ServedModel, read_completion
from tests.rollouts.small_world import Shelf, message_ids
from tests.tokens.students import renderer

QWEN = renderer("qwen3", "qwen3")
LOOK = Turn(role="assistant", author="m", blocks=(ToolCall("x", "Count", {}),))
Change = Callable[[dict[str, Any]], Any]


@contextmanager
def server(
    messages: list[list[int]],
    *,
    change: Change = lambda answer: answer,
    status: list[int] | None = None,
) -> Iterator[Any]:
    """Serves `messages` by how many end tokens the prompt holds behind the opening; log-probs tell
    the token; keeps the requests."""
    asked: list[dict[str, Any]] = []
    codes = list(status or [])
    end = QWEN.codec.control["<|im_end|>"]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            code = codes.pop(0) if codes else 200
            turn = 0 if len(body["prompt"]) == 1 else (body["prompt"].count(end) - 2) // 2
            ids = messages[turn][: body["max_tokens"]]
            choice = {
                "index": 0,
                "text": "never read",
                "token_ids": ids,
                "prompt_token_ids": body["prompt"],
                "logprobs": {"tokens": ["?"] * len(ids), "token_logprobs": [-i / 1e6 for i in ids]},
                "finish_reason": "stop" if ids[-1] in body["stop_token_ids"] else "length",
            }
            raw = json.dumps(
                change({"object": "text_completion", "model": body["model"], "choices": [choice]})
            ).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", asked
    finally:
        running.shutdown()
        running.server_close()


MESSAGES = [message_ids(QWEN, LOOK), message_ids(QWEN, "depth is 3")]


def play(url: str, *, num: int = 1, **settings: Any) -> list[Rollout]:
    model = ServedModel(url=url, model="served", version=12, timeout_s=10.0)
    options = Sampling(**{"max_new_tokens": 60, "max_context_tokens": 4096, **settings})
    return sample_rollouts(
        model, [Shelf() for _ in range(num)], renderer=QWEN, settings=options, author="tiny"
    )


def test_the_ids_and_log_probs_of_the_server_are_the_rollouts() -> None:
    with server(MESSAGES) as (url, asked):
        rollouts = play(url, num=3)
    assert [r.ended for r in rollouts] == ["done"] * 3 and [r.reward for r in rollouts] == [1.0] * 3
    for rollout in rollouts:
        sampled = [t.sampled for t in rollout.session.turns if t.sampled]
        assert [list(s.ids) for s in sampled] == MESSAGES and rollout.version == 12
        assert [list(s.logprobs) for s in sampled] == [[-i / 1e6 for i in ids] for ids in MESSAGES]
        assert [
            b["prompt"] for b in asked[1:] if b["prompt"] == list(rollout.ids[: len(b["prompt"])])
        ]
    body = asked[1]
    assert (
        body["return_token_ids"] is True
        and body["logprobs"] == 0
        and body["stream"] is False
        and body["max_tokens"] == 60
    )
    assert (
        body["model"] == "served"
        and body["temperature"] == 1.0
        and MESSAGES[0][-1] in body["stop_token_ids"]
    )
    assert len({b["seed"] for b in asked[1:]}) == 6  # every message has its own


def test_a_message_without_an_end_is_cut_as_with_the_local_model() -> None:
    with server(MESSAGES) as (url, _):
        (rollout,) = play(url, max_new_tokens=len(MESSAGES[0]) - 2)
    assert (
        rollout.num_cut >= 1
        and rollout.num_malformed == 1
        and rollout.session.turns[2].tag == "cut_off"
    )


def choice_with(**changes: Any) -> Change:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][0] |= changes
        return answer

    return change


REFUSED: list[tuple[str, Change]] = [
    ("does not return token ids", choice_with(token_ids=None)),
    ("does not return token ids", choice_with(prompt_token_ids=None)),
    ("does not return token ids", choice_with(token_ids=["token_id:5"])),
    ("other ids than it was given", choice_with(prompt_token_ids=[1, 2, 3, 4])),
    ("a log-prob for each sampled token", choice_with(logprobs=None)),
    ("a log-prob for each sampled token", choice_with(logprobs={"token_logprobs": [None]})),
    ("a log-prob for each sampled token", choice_with(logprobs={"token_logprobs": [0.5]})),
    ("does not hold one choice", lambda answer: {"choices": []}),
    ("not a JSON object", lambda answer: [1]),
    ("answered as 'other'", lambda answer: {**answer, "model": "other"}),
]


@pytest.mark.parametrize(("message", "change"), REFUSED)
def test_a_server_that_does_not_say_what_it_sampled_is_refused_by_name(
    message: str, change: Change
) -> None:
    with server(MESSAGES, change=change) as (url, asked), pytest.raises(DataError, match=message):
        play(url)
    assert len(asked) == 1  # before any episode begins


def test_a_busy_server_is_asked_again_and_a_wrong_request_is_not() -> None:
    with server(MESSAGES, status=[503, 429]) as (url, asked):
        assert play(url)[0].ended == "done" and len(asked) == 5
    with server(MESSAGES, status=[404]) as (url, asked), pytest.raises(DataError, match="HTTP 404"):
        play(url)
    assert len(asked) == 1
    with pytest.raises(DataError, match="gave no completion"):
        play(url)  # nobody listens any more


PROMPT = GenerationRequest(ids=(5,), max_tokens=3, seed=0)


@pytest.mark.parametrize("ids", [[], [7, 8, 9, 2], [7, 2, 9], [7]])
def test_a_message_that_cannot_have_been_sampled_so_is_refused(ids: list[int]) -> None:
    """No tokens, more than requested, tokens behind an end token, and an end without its token."""
    choice = {
        "token_ids": ids,
        "prompt_token_ids": [5],
        "logprobs": {"token_logprobs": [-1.0] * len(ids)},
        "finish_reason": "stop",
    }
    with pytest.raises(DataError):
        read_completion({"choices": [choice]}, prompt=PROMPT, stop=frozenset({2}), where="here")


@pytest.mark.parametrize(
    "wrong",
    [{"url": "file:///etc/passwd"}, {"url": "localhost:8000"}, {"url": "http://a/v1", "tries": 0}],
)
def test_an_address_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServedModel(**{"model": "m", **wrong})
