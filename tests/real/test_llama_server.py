"""llama.cpp's own server (of the wheel xllamacpp) on SmolLM2's GGUF file as the writer of rollouts:
ids, log-probs and template are those of the student here (make real)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import ENVIRONMENT, HUMAN, Text, ToolCall, ToolResult, Turn
from composer_replication.losses.policy import token_logprobs
from composer_replication.models.forward import final_hidden, predictors, project, scoring
from composer_replication.models.load_student import Student, load_student
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.served import ServedModel
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.messages import conversation, tool_messages
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.template_families import FAMILIES
from composer_replication.training.on_policy.generator import Generator
from tests.real.real_tokenizers import cache_folder
from tests.rollouts.small_world import TOOLS, Shelf

pytestmark = [pytest.mark.real, pytest.mark.train]
SERVE = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.chat_template = sys.argv[1], int(sys.argv[2]), sys.argv[3]
params.model_alias, params.use_jinja = {"student"}, True
params.n_ctx, params.n_parallel, params.verbosity = 2048, 2, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    tokenizer = load_tokenizer(str(cache_folder() / "folders" / "smollm2"))
    return Renderer.for_tokenizer(tokenizer, family="chatml-tools")


@pytest.fixture(scope="module")
def url(gguf: Path) -> Iterator[str]:
    """A running server's address, below which its OpenAI-compatible ones lie."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    template = str(FAMILIES["chatml-tools"].template)
    running = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(gguf), port, template], stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        assert f"127.0.0.1:{port}" in running.stdout.readline()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        running.kill()
        running.wait()


@pytest.fixture(scope="module")
def student(gguf: Path, renderer: Renderer) -> Student:
    settings = StudentSettings(model=str(gguf), template="chatml-tools")
    return load_student(settings, tokenizer=renderer.tokenizer, seed=1)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_rollouts_of_llama_cpp_have_the_ids_and_log_probs_of_the_student(
    url: str, student: Student, renderer: Renderer
) -> None:
    model = ServedModel(url=url, model="student", protocol="llama.cpp", version=0)
    settings = Sampling(max_new_tokens=12, max_context_tokens=900, seed=3)
    rollouts = sample_rollouts(
        model, [Shelf("a"), Shelf("b")], renderer=renderer, settings=settings, author="m"
    )
    gaps: list[float] = []
    for rollout in rollouts:
        assert rollout.ended not in ("no_message", "env_error")
        with scoring(student.model):
            hidden_BTD = final_hidden(student.model, torch.tensor([rollout.ids]))
            for turn in rollout.session.turns:
                if turn.sampled is None:
                    continue
                a = turn.context_tokens
                place_N = torch.arange(a, a + len(turn.sampled.ids))
                ids_N = torch.tensor(turn.sampled.ids)
                assert rollout.ids[a : a + len(ids_N)] == turn.sampled.ids
                hidden_ND = predictors(hidden_BTD, torch.zeros_like(place_N), place_N)
                logp_N = token_logprobs(project(student.model, hidden_ND), ids_N)
                gaps += (logp_N - torch.tensor(turn.sampled.logprobs)).abs().tolist()
    # four-bit weights with eight-bit activations there, de-quantised ones here
    assert len(gaps) >= 12 and 0 < sum(gaps) / len(gaps) < 0.1


def test_the_check_at_the_start_of_a_run_passes_and_sees_other_weights(
    url: str, student: Student
) -> None:
    server = {"url": url, "model": "student", "protocol": "llama.cpp", "handover": "none"}
    settings = RolloutSettings.model_validate({"generator": "served", "server": server})
    noted: list[Any] = []

    def writer() -> Any:
        generator = Generator.of(settings, lora=False, ranks=1)
        assert generator is not None
        return generator.writer(student, step=0, note=lambda *_, **facts: noted.append(facts))

    assert writer().version == 0 and 0 < noted[0]["gap"] < 0.1
    norm: Any = student.model.get_decoder().norm
    with torch.no_grad():
        norm.weight.mul_(1.5)
    try:
        with pytest.raises(DataError, match="nats from those of the weights"):
            writer()
    finally:
        with torch.no_grad():
            norm.weight.div_(1.5)


def test_its_openai_address_returns_no_ids_and_is_refused(url: str) -> None:
    with pytest.raises(DataError, match=r"does not return token ids.*'llama\.cpp'"):
        ServedModel(url=url, model="student").check()
    with pytest.raises(DataError, match="answered as 'student'"):
        ServedModel(url=url, model="other", protocol="llama.cpp").check()


def test_a_context_that_is_longer_than_a_slot_is_refused(url: str, renderer: Renderer) -> None:
    model = ServedModel(url=url, model="student", protocol="llama.cpp")
    settings = Sampling(max_new_tokens=4, max_context_tokens=8192)
    with pytest.raises(DataError, match="exceeds the available context size"):
        sample_rollouts(
            model, [Shelf("x" * 4000)], renderer=renderer, settings=settings, author="m"
        )


def test_it_reads_the_template_of_an_export_as_the_student_does(
    url: str, renderer: Renderer
) -> None:
    turns = [
        Turn(role="system", author="harness", blocks=(Text("You work on files."),)),
        Turn(role="user", author=HUMAN, blocks=(Text("What is depth?"),)),
        Turn(role="assistant", author="m", blocks=(ToolCall("c0", "Read", {"path": "a.py"}),)),
        Turn(role="tool", author=ENVIRONMENT, blocks=(ToolResult("c0", "depth = 3", False),)),
    ]
    root = url.removesuffix("/v1")
    messages = [m for part in conversation(turns, thinking=False) for m in part.messages]
    body = {"messages": messages, "tools": tool_messages(TOOLS)}
    prompt = post(f"{root}/apply-template", body)["prompt"]
    ids = post(f"{root}/tokenize", {"content": prompt, "parse_special": True})["tokens"]
    probe = Turn(role="assistant", author=None, blocks=(Text("x"),))
    assert ids == list(renderer.reply(turns, probe, tools=TOOLS)[0])
