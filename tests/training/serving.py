"""A small loopback server with vLLM's endpoints: /v1/completions with token ids and log-probs,
/collective_rpc, /reset_prefix_cache.

It serves the model in a folder, reloads it on request, and misbehaves if a test asks for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

Body = dict[str, Any]


@dataclass
class Engine:
    """What the server runs: `write(body)` gives (ids, log-probs); `change` is done to every answer,
    `refuse` answers a path with a code."""

    folder: Path
    write: Callable[[Body], tuple[list[int], list[float]]] | None = None
    change: Callable[[Body, Body], Any] = lambda asked, answer: answer
    refuse: Callable[[str, Body], int] = lambda path, body: 200
    model: Any = None
    loads: int = 0
    asked: list[tuple[str, Body]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, path: str, body: Body) -> Any:
        self.asked.append((path, body))
        if path == "/v1/completions":
            with self.lock:
                ids, logprobs = (self.write or self.sample)(body)
            choice = {
                "index": 0,
                "text": "",
                "token_ids": ids,
                "prompt_token_ids": body["prompt"],
                "logprobs": {"token_logprobs": logprobs},
            }
            return self.change(
                body, {"model": body["model"], "choices": [{**choice, "finish_reason": "stop"}]}
            )
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            self.load()
        return {"results": [None]}

    def load(self) -> None:
        with self.lock:
            self.model = AutoModelForCausalLM.from_pretrained(
                str(self.folder), dtype=torch.float32
            ).eval()
            self.loads += 1

    @torch.no_grad()
    def sample(self, body: Body) -> tuple[list[int], list[float]]:
        if self.model is None:  # a server that was started on an empty folder
            return [0] * min(2, body["max_tokens"]), [-1.0] * min(2, body["max_tokens"])
        random = torch.Generator().manual_seed(body["seed"])
        ids, logprobs, new, cache = list(body["prompt"]), [], list(body["prompt"]), None
        while len(logprobs) < body["max_tokens"]:
            out = self.model(
                input_ids=torch.tensor([new]),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logp = out.past_key_values, out.logits[0, -1].log_softmax(-1)
            token = int(
                torch.multinomial((logp / body["temperature"]).softmax(-1), 1, generator=random)
            )
            ids.append(token)
            new = [token]
            logprobs.append(float(logp[token]))
            if token in body["stop_token_ids"]:
                break
        return ids[len(body["prompt"]) :], logprobs


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """The server's address, with /v1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = engine.refuse(self.path, body)
            answer = engine.answer(self.path, body) if code == 200 else {"error": "no"}
            raw = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # the other side was tired of waiting

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1"
    finally:
        running.shutdown()
        running.server_close()
