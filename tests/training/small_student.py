"""A tiny model, a stand-in tokenizer and made-up examples: a test of the trainer takes about a
second."""

from __future__ import annotations

import dataclasses
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.config.root import Config
from composer_replication.core.rundir import RunDir, create_run
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import count, micro_batches
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    Span,
    TrainingExample,
)
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.step import accumulate

VOCAB = 40


@dataclass
class WordTokenizer:
    """The trainer's needs of a tokenizer: a pad id, an end id, the text of a token, and saving."""

    pad_token_id: int | None = 0
    eos_token_id: int = 1
    bos_token_id: int | None = None
    chat_template: str | None = None
    added_tokens_decoder: dict[int, Any] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return VOCAB

    def get_vocab(self) -> dict[str, int]:
        return {f"w{i}": i for i in range(VOCAB)}

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{i}" for i in ids)

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}", encoding="utf-8")


def small_model(*, family: str = "qwen3", seed: int = 0, dropout: float = 0.0) -> Any:
    """Two layers, hidden size 32; float32."""
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "tie_word_embeddings": family == "qwen3",
        "attention_dropout": dropout,
    }
    torch.manual_seed(seed)
    return (
        Qwen3ForCausalLM(Qwen3Config(head_dim=16, **shape))
        if family == "qwen3"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )


def make_student(**options: Any) -> Student:
    """A student around `small_model`."""
    return Student(name="test", model=small_model(**options), tokenizer=WordTokenizer())


def make_example(
    number: int, *, length: int = 24, hints: int = 1, lm: bool = True, low: int = 2
) -> TrainingExample:
    """P .. trained .. [hint] T ..: random ids, `hints` views over spans at the end, one trained
    span near the start."""
    rng = random.Random(number)
    ids = tuple(rng.randrange(low, VOCAB) for _ in range(length))
    views = []
    for k in range(hints):
        b = length - 4 * k
        a = b - 3
        views.append(
            HintView(
                site_id=f"s{number}:{k}:c",
                kind=("unknown_tool", "bad_args")[k % 2],
                at=a - 1,
                hint_ids=tuple(rng.randrange(low, VOCAB) for _ in range(4 + k)),
                span=(a, b),
                target_ids=ids[a:b],
            )
        )
    return TrainingExample(
        id=f"e{number}",
        session_id=f"s{number}",
        ids=ids,
        lm_spans=((4, 9),) if lm else (),
        hints=tuple(views),
    )


def make_rollout(
    number: int,
    *,
    advantage: float = 0.5,
    anchored: bool = False,
    spans: tuple[Span, ...] = ((3, 6), (10, 13)),
    **shape: Any,
) -> TrainingExample:
    """`make_example` whose student sampled `spans`, under a policy that has since moved: log-probs
    around those of a flat guess.

    The anchor is at (14, 17), which is free in the shortest example with one hint view.
    """
    rng = random.Random(2000 + number)
    actions = tuple(
        SampledMessage(
            span=(a, b),
            logprobs=tuple(-3.7 + rng.gauss(0, 0.3) for _ in range(a, b)),
            advantage=advantage,
        )
        for a, b in spans
    )
    return dataclasses.replace(
        make_example(number, **shape), actions=actions, anchored=((14, 17),) if anchored else ()
    )


def make_pair(
    number: int, *, prefix: int = 6, chosen: int = 4, rejected: int = 5
) -> PreferencePair:
    """Random ids of the given lengths."""
    rng = random.Random(1000 + number)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, VOCAB) for _ in range(n))

    return PreferencePair(
        id=f"p{number}",
        session_id=f"s{number}",
        prefix_ids=draw(prefix),
        chosen_ids=draw(chosen),
        rejected_ids=draw(rejected),
    )


def make_config(**train: Any) -> Config:
    """Settings of a short run; keyword arguments are fields of `train`. The environment's
    TEST_LAYOUT tries every test in that layout."""
    settings = {
        "steps": 4,
        "batch_examples": 4,
        "learning_rate": 1e-3,
        "checkpoint_every": 2,
        "grad_every": 3,
        **train,
    }
    settings.setdefault("layout", os.environ.get("TEST_LAYOUT", "tree"))
    return Config.model_validate({"train": settings})


def start_trainer(config: Config, student: Student) -> Trainer:
    """A trainer at step 0 on this process's device."""
    return make_trainer(config, student=student, accelerator=Accelerator())


def gradients(
    trainer: Trainer,
    examples: list[TrainingExample],
    pairs: list[PreferencePair],
    scales: dict,
    **train: Any,
) -> list[torch.Tensor]:
    """The parameter gradients of the scaled sum; the trainer is left without gradients."""
    settings = trainer.settings.model_copy(update=train)
    accumulate(
        trainer,
        micro_batches(examples, pairs, micro_tokens=settings.micro_tokens),
        count(examples, pairs),
        scales=scales,
    )
    gradient_list = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trainer.trainable()
    ]
    trainer.optimiser.zero_grad()
    return gradient_list


def make_run(folder: Path, config: Config, *, name: str = "") -> RunDir:
    """A fresh run directory under `folder`."""
    return create_run(
        folder / "runs",
        resolved=config.model_dump(mode="json"),
        command="recompose train",
        seed=config.seed,
        name=name,
    )
