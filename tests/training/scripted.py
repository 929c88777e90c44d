"""Rollouts without a model: a scripted player acts, and its messages are written down as if they
had been sampled."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.trace import Sampled, Session, Turn
from composer_replication.models.load_student import Student
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.task_source import TaskSource, open_world
from composer_replication.tokens.messages import tool_messages
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from composer_replication.training.on_policy.live import RolloutSource
from composer_replication.workshop.demonstrators import LEVELS, careless, oracle
from composer_replication.workshop.episodes import play
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv

LEVEL = LEVELS[2].habits


@cache
def tokenizer() -> Any:
    """Trained on a few episodes of the oracle and the careless player."""
    texts = []
    with Sandbox() as sandbox:
        for number, task in enumerate(make_tasks(40, seed=1)):
            env = WorkshopEnv(task, sandbox=sandbox)
            session = play(env, lambda e, n=number: careless(e, random.Random(n), habits=LEVEL))
            texts += [str(block) for turn in session.turns for block in turn.blocks]
            texts += [json.dumps(message) for message in tool_messages(session.tools) or ()]
    return train_tiny_tokenizer(texts, vocab_size=900)


@cache
def renderer() -> Renderer:
    return Renderer.for_tokenizer(tokenizer())


def tiny_student(seed: int = 0) -> Student:
    """Two small layers of random weights: it writes nonsense, fast."""
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
    }
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer()),
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **shape,
    )
    return Student(name="tiny", model=Qwen3ForCausalLM(config), tokenizer=tokenizer())


def as_rollout(
    session: Session,
    render: Renderer,
    *,
    name: str,
    author: str,
    measures: dict[str, float],
    version: int = -1,
) -> Rollout:
    """The session as if its assistant's messages had been sampled; a token's log-prob encodes its
    position."""
    rendering = render.render(session.turns, tools=session.tools)
    turns: list[Turn] = []
    end = 0
    for turn, span in zip(session.turns, rendering.spans, strict=True):
        if turn.role == "assistant":
            (a, end), ids = span.body, rendering.ids[slice(*span.body)]
            logprobs = tuple(-(a + k) / 1000 for k in range(len(ids)))
            turn = replace(turn, author=author, sampled=Sampled(ids, logprobs), context_tokens=a)
        turns.append(turn)
    played = replace(session, id=name, turns=tuple(turns), origin="student")
    return Rollout(
        session=played,
        task_id=session.source.file,
        ids=rendering.ids[:end],
        ended="done",
        num_cut=0,
        num_malformed=0,
        measures=measures,
        version=version,
    )


def scripted(player: Callable[[WorkshopEnv, random.Random], Turn]) -> Callable[..., list[Rollout]]:
    """Replaces `sample_rollouts`; the player's luck depends on seed, label, task and number as the
    sampler's does."""

    def sample(
        model: Any,
        envs: Sequence[Any],
        *,
        renderer: Renderer,
        settings: Any,
        author: str,
        label: str = "",
        version: int = -1,
        **_: Any,
    ) -> list[Rollout]:
        recorded: dict[str, int] = {}
        sampled = []
        for env in envs:
            number = recorded.setdefault(env.task_id, 0)
            recorded[env.task_id] += 1
            name = f"{label}{env.task_id}:{number}"
            rng = random.Random(stage_seed(settings.seed, name))
            session = play(env, lambda e, rng=rng: player(e, rng), session_id=name)
            sampled.append(
                as_rollout(
                    session,
                    renderer,
                    name=name,
                    author=author,
                    measures=dict(env.measures()),
                    version=version,
                )
            )
        return sampled

    return sample


careless_sample = scripted(lambda env, rng: careless(env, rng, habits=LEVEL))
perfect_sample = scripted(lambda env, rng: oracle(env))


def live_config(*, train: dict[str, Any] | None = None, **rollouts: Any) -> Config:
    """A short run on the workshop."""
    channels = {"lm_ce": {"weight": 0.0}, "hint": {"weight": 1.0}, "policy": {"weight": 1.0}}
    health = {"monitor_tasks": 0, "kl_episodes": 4}
    settings = {
        "steps": 4,
        "checkpoint_every": 2,
        "learning_rate": 1e-3,
        **channels,
        "health": health,
        **(train or {}),
    }
    return Config.model_validate(
        {
            "train": settings,
            "rollouts": {"env": "workshop", "groups": 3, "group_size": 4, **rollouts},
        }
    )


def workshop() -> AbstractContextManager[TaskSource]:
    return open_world("workshop")


def make_live(
    world: TaskSource, config: Config | None = None, *, strong_kinds: frozenset[str] | None = None
) -> RolloutSource:
    return RolloutSource(
        config=config or live_config(),
        renderer=renderer(),
        task_source=world,
        kept_kinds=strong_kinds,
    )
