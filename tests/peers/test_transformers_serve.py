"""The command that `recompose export` prints, run as printed: a real server reads and writes the
same ids as the student does here."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from composer_replication.core.errors import DataError
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.episode import Episode
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.served import ServedModel
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.messages import conversation, tool_messages
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.workshop_env import WorkshopEnv
from tests.cli.workspace import recompose
from tests.peers.serving import missing, post, served

pytestmark = [pytest.mark.train, pytest.mark.skipif(bool(missing()), reason=missing() or "there")]
STUDENT = Path(__file__).parents[2] / "examples" / "workshop_student"
SETTINGS = """
[student]
model = "./student"
[rollouts]
env = "workshop"
groups = 1
group_size = 2
max_new_tokens = 8
[train]
steps = 1
policy = { weight = 1.0 }
hint = { weight = 0.0 }
lm_ce = { weight = 0.0 }
health = { monitor_tasks = 0 }
"""
NEW = 40


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that `recompose export` wrote after one step, and the command that it printed for
    transformers."""
    place = tmp_path_factory.mktemp("serve")
    shutil.copytree(STUDENT, place / "student")
    (place / "recompose.toml").write_text(SETTINGS, "utf-8")
    assert recompose("train", "--name", "x", "-q", cwd=place).code == 0
    completed = recompose("export", "x", "--to", "served student", "--json", cwd=place)
    assert completed.code == 0, completed.err
    return place, completed.value["serve"]["transformers"]


def greedy(folder: Path, ids: list[int], ends: list[int]) -> list[int]:
    """The most probable continuation under the folder's weights, including an end token."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    out: list[int] = []
    while len(out) < NEW and not set(out) & set(ends):
        with torch.no_grad():
            out.append(int(model(torch.tensor([[*ids, *out]])).logits[0, -1].argmax()))
    return out


def test_the_printed_command_serves_the_student_as_it_was_trained(
    exported: tuple[Path, str], tmp_path: Path
) -> None:
    place, command = exported
    folder = place / "served student"
    voice = ChatFormat.of(Renderer.for_tokenizer(load_tokenizer(str(STUDENT))), author="student")
    ends = json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"]
    assert "architectures" in json.loads(
        (place / "recompose/runs/x/checkpoints/step_000001/config.json").read_bytes()
    )
    with Sandbox() as sandbox, served(shlex.split(command), cwd=place, log=tmp_path / "log") as url:
        for number in range(3):
            env = WorkshopEnv(make_task(number), sandbox=sandbox)
            opening = env.open()
            episode = Episode(
                WorkshopEnv(make_task(number), sandbox=sandbox),
                chat_format=voice,
                name="x",
                seed=0,
                stats=SamplingStats(),
            )
            read = list(episode.ids)
            written = greedy(folder, read, ends)
            episode.add_message(written, [0.0] * len(written), ended=True)
            sampled_turn = episode.turns[-1]
            body = {
                "model": "served student",
                "messages": [
                    m for item in conversation(opening.turns, thinking=False) for m in item.messages
                ],
                "tools": tool_messages(opening.tools),
                "max_tokens": NEW,
                "temperature": 0.0,
                "stream": False,
            }
            status, answer = post(f"{url}/chat/completions", body)
            assert status == 200, answer
            message = answer["choices"][0]["message"]
            calls = [
                (c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in message.get("tool_calls") or ()
            ]
            assert answer["usage"]["prompt_tokens"] == len(read), (
                "the server rendered the conversation by another template"
            )
            assert (
                calls == [(call.name, dict(call.arguments)) for call in sampled_turn.calls]
                and calls
            )
            assert (message["content"] or "").strip() == sampled_turn.text.strip()
        # it returns no token ids, so it cannot generate rollouts
        with pytest.raises(DataError, match="the server gave no completion: HTTP 4"):
            ServedModel(url=url, model="served student").check()
