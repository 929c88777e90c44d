"""llama.cpp's server as the writer: against a loopback server that answers as the real one did."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import ToolCall, Turn
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.served import ServedModel
from tests.rollouts.small_world import Shelf, message_ids
from tests.tokens.students import renderer

QWEN = renderer("qwen3", "qwen3")
LOOK = Turn(role="assistant", author="m", blocks=(ToolCall("x", "Count", {}),))
MESSAGES = [message_ids(QWEN, LOOK), message_ids(QWEN, "depth is 3")]
END = MESSAGES[0][-1]
Change = Callable[[dict[str, Any]], Any]


@contextmanager
def server(*, change: Change = lambda answer: answer) -> Iterator[Any]:
    """Serves MESSAGES by how many end tokens the prompt holds behind the opening."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            prompt = body["prompt"]
            turn = 0 if len(prompt) == 1 else (prompt.count(END) - 2) // 2
            ids = MESSAGES[turn][: body["n_predict"]]
            answer = {
                "index": 0,
                "content": "never read",
                "tokens": ids,
                "model": "served",
                "tokens_predicted": len(ids),
                "tokens_evaluated": len(prompt),
                "truncated": False,
                "stop_type": "eos" if ids[-1] == END else "limit",
                "completion_probabilities": [
                    {"id": i, "token": "?", "bytes": [], "logprob": -i / 1e6, "top_logprobs": []}
                    for i in ids
                ],
            }
            raw = json.dumps(change(answer)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", asked
    finally:
        running.shutdown()
        running.server_close()


def play(url: str, **settings: Any) -> Rollout:
    model = ServedModel(url=url, model="served", protocol="llama.cpp", timeout_s=10.0)
    options = Sampling(**{"max_new_tokens": 60, "max_context_tokens": 4096, **settings})
    (rollout,) = sample_rollouts(model, [Shelf()], renderer=QWEN, settings=options, author="tiny")
    return rollout


def test_the_ids_and_log_probs_of_llama_cpp_are_the_rollouts() -> None:
    with server() as (url, asked):
        rollout = play(url, temperature=0.7, top_p=0.9)
    assert rollout.ended == "done" and rollout.reward == 1.0
    sampled = [turn.sampled for turn in rollout.session.turns if turn.sampled]
    assert [list(s.ids) for s in sampled] == MESSAGES
    assert [list(s.logprobs) for s in sampled] == [[-i / 1e6 for i in ids] for ids in MESSAGES]
    assert {path for path, _ in asked} == {"/completion"}
    bodies = [body for _, body in asked[1:]]
    # the model's own distribution, temperature before top_p, as the local sampler
    for body in bodies:
        assert body["samplers"] == ["temperature", "top_p"]
        assert (body["temperature"], body["top_p"], body["n_predict"]) == (0.7, 0.9, 60)
        assert body["return_tokens"] is True and body["post_sampling_probs"] is False
    assert [body["prompt"] for body in bodies] == [
        list(rollout.ids[: len(body["prompt"])]) for body in bodies
    ]
    assert len({body["seed"] for body in bodies}) == 2


def test_what_is_written_behind_an_end_of_the_template_is_cut() -> None:
    """llama.cpp knows the end tokens of its GGUF only."""

    def goes_on(answer: dict[str, Any]) -> dict[str, Any]:
        more = {"id": 5, "logprob": -1.0}
        return {
            **answer,
            "tokens": [*answer["tokens"], 5],
            "completion_probabilities": [*answer["completion_probabilities"], more],
        }

    with server(change=goes_on) as (url, _):
        model = ServedModel(url=url, model="served", protocol="llama.cpp", timeout_s=10.0)
        assert len(MESSAGES[0]) < 60
        options = Sampling(max_new_tokens=60, max_context_tokens=4096)
        # the probe asks for one token only, so it must not go on
        with pytest.raises(DataError, match="2 tokens came back where 1 to 1"):
            sample_rollouts(model, [Shelf()], renderer=QWEN, settings=options, author="tiny")

    def goes_on_behind_the_end(answer: dict[str, Any]) -> dict[str, Any]:
        return goes_on(answer) if answer["tokens"][-1] == END else answer

    with server(change=goes_on_behind_the_end) as (url, _):
        rollout = play(url)
    sampled = [turn.sampled for turn in rollout.session.turns if turn.sampled]
    assert [list(s.ids) for s in sampled] == MESSAGES
    assert [len(s.logprobs) for s in sampled] == [len(ids) for ids in MESSAGES]


def changed(**changes: Any) -> Change:
    return lambda answer: {**answer, **changes}


REFUSED: list[tuple[str, Change]] = [
    ("no token ids with log-probs", changed(tokens=None)),
    ("no token ids with log-probs", changed(completion_probabilities=None)),
    ("not those of its token ids", changed(completion_probabilities=[])),
    ("not those of its token ids", changed(completion_probabilities=[{"id": 0}])),
    ("not those of its token ids", changed(completion_probabilities=["x"])),
    ("read 7 of 1 tokens", changed(tokens_evaluated=7)),
    ("or cut the context", changed(truncated=True)),
    ("answered as 'other'", changed(model="other")),
]


@pytest.mark.parametrize(("message", "change"), REFUSED)
def test_an_answer_that_does_not_say_what_was_sampled_is_refused(
    message: str, change: Change
) -> None:
    with server(change=change) as (url, asked), pytest.raises(DataError, match=message):
        play(url)
    assert len(asked) == 1  # before any episode begins


def test_log_probs_above_zero_are_refused() -> None:
    def post_sampling(answer: dict[str, Any]) -> dict[str, Any]:
        probs = [{**p, "logprob": 0.7} for p in answer["completion_probabilities"]]
        return {**answer, "completion_probabilities": probs}

    with server(change=post_sampling) as (url, _), pytest.raises(DataError, match="a log-prob for"):
        play(url)


def test_llama_cpp_takes_no_weights() -> None:
    server_settings = {"url": "http://127.0.0.1:8080/v1", "model": "m", "protocol": "llama.cpp"}
    with pytest.raises(ValidationError, match=r"needs server\.handover"):
        RolloutSettings.model_validate(
            {"generator": "served", "server": {**server_settings, "weights_dir": "served"}}
        )
    settings = RolloutSettings.model_validate(
        {"generator": "served", "server": {**server_settings, "handover": "none"}}
    )
    assert settings.server.protocol == "llama.cpp"
