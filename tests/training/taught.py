"""A tiny student that has been taught a few episodes of a small environment, so that it ends its
messages, calls tools and makes mistakes.

Nothing in it is scripted: its sampled messages include ends, good calls, wrong arguments, unknown
tools and right answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.config.root import Config
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import MakeEnv
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from composer_replication.training.on_policy.live import RolloutSource
from tests.rollouts.small_world import TOOLS, Shelf
from tests.training.small_student import make_pair

AUTHOR = "taught"
CALM = {"monitor_tasks": 0, "kl_episodes": 4, "max_kl": 9.0, "max_unresolvable": 1.0}
"""Health rules that let a tiny student do as it likes."""
PAIRS = [make_pair(i) for i in range(3)]


def call(name: str, **arguments: Any) -> Turn:
    return Turn(role="assistant", author=AUTHOR, blocks=(ToolCall("c", name, arguments),))


def text_turn(text: str) -> Turn:
    return Turn(role="assistant", author=AUTHOR, blocks=(Text(text),))


LESSONS: tuple[tuple[Turn, ...], ...] = (
    (call("Read", path="a.py"), text_turn("depth is 3")),
    (call("Read", file="a.py"), call("Read", path="a.py"), text_turn("depth is 3")),
    (call("Peek", path="a.py"), text_turn("no idea")),
    (text_turn("no idea"),),
)


class Desk(Shelf):
    """A shelf with an environment's name, on which environments of one batch answer in the
    sampler's own thread."""

    runs_in = "caller"


def lesson(messages: Sequence[Turn]) -> tuple[Turn, ...]:
    """One episode in which the student writes these messages."""
    env = Desk("t0")
    turns = list(env.open().turns)
    for number, message in enumerate(messages):
        blocks = tuple(
            ToolCall(f"c{number}", b.name, b.arguments) if isinstance(b, ToolCall) else b
            for b in message.blocks
        )
        reply = Turn(role="assistant", author=AUTHOR, blocks=blocks)
        turns += [reply, *env.reply(reply).turns]
    return tuple(turns)


@cache
def tokenizer() -> Any:
    """Trained on the lessons as the template writes them, so that the tools and the system prompt
    take few tokens."""
    texts = [
        str(block) for messages in LESSONS for turn in lesson(messages) for block in turn.blocks
    ]
    first = train_tiny_tokenizer(texts, vocab_size=400)
    corpus = [
        Renderer.for_tokenizer(first).render(lesson(messages), tools=TOOLS).ids
        for messages in LESSONS
    ]
    return train_tiny_tokenizer([*texts, *map(first.decode, corpus)] * 3, vocab_size=900)


@cache
def renderer() -> Renderer:
    return Renderer.for_tokenizer(tokenizer())


def _fresh(*, dropout: float = 0.0) -> Any:
    shape = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_size": 48,
        "intermediate_size": 96,
    }
    more = {
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "attention_dropout": dropout,
    }
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer()), head_dim=24, **shape, **more))


@cache
def _weights(steps: int = 100) -> dict[str, torch.Tensor]:
    """Cross-entropy on the messages of the lessons; the same weights every time on the same
    machine."""
    model, rows = (
        _fresh(),
        [renderer().render(lesson(messages), tools=TOOLS) for messages in LESSONS],
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in rows])
    labels = torch.full_like(ids, -100)
    for number, row in enumerate(rows):
        for span in (span for span in row.spans if span.role == "assistant"):
            labels[number, slice(*span.body)] = ids[number, slice(*span.body)]
    for _ in range(steps):
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def untaught() -> dict[str, torch.Tensor]:
    """Random weights, for tests in which the student's own text does not matter."""
    return {name: p.detach() for name, p in _fresh().named_parameters()}


def taught_student(
    *, dropout: float = 0.0, weights: Mapping[str, torch.Tensor] | None = None
) -> Student:
    """The student; pass the `weights` of an earlier call to skip the training."""
    model = _fresh(dropout=dropout)
    model.load_state_dict(dict(weights or _weights()), strict=False)
    return Student(name=AUTHOR, model=model, tokenizer=tokenizer())


def desks() -> TaskSource:
    """Ten tasks that differ by their name, again and again."""

    def tasks(seed: int) -> Iterator[MakeEnv]:
        number = seed
        while True:
            yield partial(Desk, f"t{number % 10}", max_turns=4)
            number += 1

    return TaskSource(
        name="desks",
        train=tasks,
        monitor=lambda seed, count: [partial(Desk, f"m{i}", max_turns=4) for i in range(count)],
    )


def live_config(*, train: dict[str, Any] | None = None, **rollouts: Any) -> Config:
    """All three channels on the taught student's rollouts, in the tree layout, with an EMA
    teacher."""
    channels = {
        "lm_ce": {"weight": 0.0},
        "policy": {"weight": 1.0},
        "hint": {"weight": 1.0, "teacher": "ema"},
        "preference": {"weight": 1.0, "anchor": 0.0, "batch_pairs": 2},
    }
    settings = {
        "steps": 6,
        "checkpoint_every": 2,
        "keep_checkpoints": 2,
        "learning_rate": 2e-3,
        "grad_every": 3,
        "starved_steps": 9,
    }
    played = {
        "env": "workshop",
        "groups": 2,
        "group_size": 4,
        "max_new_tokens": 40,
        "max_context_tokens": 1024,
        "hint_sites": 4,
    }
    merged = {**settings, **channels, "health": CALM, **(train or {})}
    return Config.model_validate({"train": merged, "rollouts": {**played, **rollouts}})


def live(config: Config, world: TaskSource | None = None) -> RolloutSource:
    return RolloutSource(config=config, renderer=renderer(), task_source=world or desks())
