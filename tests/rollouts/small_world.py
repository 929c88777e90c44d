"""A small environment with two tools, one without tools, tiny models, and a model that writes a
given script."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast

from composer_replication.core.trace import ENVIRONMENT, HUMAN, Text, ToolResult, ToolSpec, Turn
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.renderer import Renderer

FILES = {"a.py": "depth = 3\n", "b.py": 'name = "x"\n\n'}
TOOLS = (
    ToolSpec(
        name="Read",
        description="Read a file.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    ),
    ToolSpec(
        name="Count",
        description="Count the files.",
        parameters={"type": "object", "properties": {}},
    ),
)


class Shelf:
    """Two files to read; a message without a call ends the episode, and "depth is 3" earns 1."""

    def __init__(
        self, task_id: str = "shelf", *, max_turns: int = 6, tools: tuple[ToolSpec, ...] = TOOLS
    ) -> None:
        self.task_id, self.max_turns, self.tools = task_id, max_turns, tools
        self.heard: list[Turn] = []
        self.closed = 0

    def open(self) -> Opening:
        system = Turn(role="system", author="harness", blocks=(Text("You work on files."),))
        task = Turn(role="user", author=HUMAN, blocks=(Text(f"What is depth? ({self.task_id})"),))
        return Opening(turns=(system, task), tools=self.tools)

    def reply(self, turn: Turn) -> Reply:
        self.heard.append(turn)
        if not turn.calls:
            return Reply(turns=(), done=True)
        return Reply(
            turns=tuple(
                self._result(call.id, call.name, dict(call.arguments)) for call in turn.calls
            ),
            done=False,
        )

    def _result(self, call_id: str, name: str, arguments: dict[str, Any]) -> Turn:
        if name not in ("Read", "Count"):
            text, wrong = f"No such tool available: {name}", True
        elif name == "Count":
            text, wrong = str(len(FILES)), False
        elif set(arguments) != {"path"}:
            text, wrong = (
                "InputValidationError: Read failed due to the following issue: path is required",
                True,
            )
        else:
            text = FILES.get(str(arguments["path"]), "File does not exist.")
            wrong = arguments["path"] not in FILES
        return Turn(role="tool", author=ENVIRONMENT, blocks=(ToolResult(call_id, text, wrong),))

    def reward(self) -> float:
        return float(bool(self.heard) and "depth is 3" in self.heard[-1].text)

    def measures(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        self.closed += 1


class Talk:
    """Answers every message with words, more or fewer of them by the task, and ends after `rounds`
    messages; a call is an error."""

    def __init__(self, number: int, *, rounds: int) -> None:
        self.task_id, self.max_turns = f"talk-{number}", 20
        self.number, self.rounds, self.said = number, rounds, 0
        self.closed = 0

    def open(self) -> Opening:
        return Opening(
            turns=(
                Turn(role="user", author=HUMAN, blocks=(Text("Say " + "more " * self.number),)),
            ),
            tools=TOOLS,
        )

    def reply(self, turn: Turn) -> Reply:
        self.said += 1
        results = tuple(
            Turn(role="tool", author=ENVIRONMENT, blocks=(ToolResult(c.id, "no tools", True),))
            for c in turn.calls
        )
        word = Turn(
            role="user", author=HUMAN, blocks=(Text("and " * (1 + self.number * self.said % 5)),)
        )
        return Reply(turns=(*results, word), done=self.said >= self.rounds)

    def reward(self) -> float:
        return float(self.number % 2)

    def measures(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        self.closed += 1


def talks(rounds: Sequence[int] = (1, 4, 2, 3)) -> list[Talk]:
    return [Talk(number, rounds=r) for number, r in enumerate(rounds)]


@cache
def tiny(vocab: int, *, arch: str = "qwen3", seed: int = 0, **more: Any) -> Any:
    """Two layers of random weights, scaled up so that greedy choices are not close calls."""
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        **more,
    }
    torch.manual_seed(seed)
    if arch == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape)).eval()
    return Qwen3ForCausalLM(Qwen3Config(head_dim=16, tie_word_embeddings=True, **shape)).eval()


class Parrot(nn.Module):
    """A "model" that writes the given messages one after the other; for one episode at a time."""

    def __init__(self, vocab: int, messages: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.config = LlamaConfig(
            vocab_size=vocab, num_hidden_layers=1, max_position_embeddings=4096
        )
        self.decoder = _ParrotDecoder(vocab, [i for message in messages for i in message])
        self.head = nn.Linear(vocab, vocab, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(vocab))

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class _ParrotDecoder(nn.Module):
    def __init__(self, vocab: int, ids: list[int]) -> None:
        super().__init__()
        self.vocab, self.left = vocab, list(ids)
        self.fed: list[int] = []

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: Any,
        use_cache: bool,
        attention_mask: Any = None,
        position_ids: Any = None,
    ) -> BaseModelOutputWithPast:
        assert input_ids.shape[0] == 1
        self.fed += input_ids[0].tolist()
        hidden = torch.zeros(1, 1, self.vocab)
        hidden[0, 0, self.left.pop(0)] = 30.0
        return BaseModelOutputWithPast(last_hidden_state=hidden)


def message_ids(render: Renderer, message: Turn | str, *, end: bool = True) -> list[int]:
    """The ids of a message as a student would write it; of a text with control tokens in it, as the
    tokenizer reads it."""
    question = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
    if isinstance(message, Turn):
        return list(render.reply([question], message)[1])
    end_ids = render.reply([question], Turn(role="assistant", author=None, blocks=(Text("x"),)))[1][
        -1:
    ]
    return [*render.codec.one_go(message), *(end_ids if end else ())]


def parroted(
    render: Renderer, messages: Sequence[Turn | str], *, env: Any = None, **settings: Any
) -> Any:
    """The rollout of an episode in which the student writes exactly these messages."""
    model = Parrot(len(render.tokenizer), [message_ids(render, m) for m in messages])
    options = Sampling(max_context_tokens=4096, **settings)
    (rollout,) = sample_rollouts(
        model, [env or Shelf()], renderer=render, settings=options, author="tiny"
    )
    # the recorded ids are the model's inputs
    assert list(rollout.ids[: len(model.decoder.fed)]) == model.decoder.fed
    return rollout
