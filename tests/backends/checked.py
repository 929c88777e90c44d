"""The check of TRL's step on the frozen batch (frozen.py): `python -m tests.backends.checked OUT
TRAIN`, under any number of ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.root import Config
from composer_replication.models.load_student import Student
from composer_replication.training.backends.step_check import StepComparison, check_steps
from composer_replication.training.inputs import StepInputs
from tests.backends.frozen import GROUP_SIZE, GROUPS, _acted, pairs, start_model, tokenizer

TRAIN: dict[str, Any] = {
    "backend": "trl",
    "policy": {"weight": 0.7},
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.4, "divergence": "kl(student, teacher)"},
    "preference": {"weight": 1.3, "anchor": 0.0, "batch_pairs": 4},
    "micro_tokens": 4096,
}


def settings(**train: Any) -> Config:
    """The settings of the check; a forward holds four of the eight rows."""
    return Config.model_validate(
        {
            "train": {**TRAIN, **train},
            "rollouts": {"env": "workshop", "max_context_tokens": 1024},
        }
    )


def student(*, lora: bool = False) -> Student:
    """Random weights with sharp logits: both directions of a KL differ."""
    model = start_model(lora=lora)
    with torch.no_grad():
        (model.get_base_model() if lora else model).model.norm.weight.mul_(3.0)
    return Student(name="frozen", model=model, tokenizer=tokenizer(), lora=lora)


def compare(config: Config, *, lora: bool = False) -> list[StepComparison]:
    """Every scenario by TRL and by the reference trainer. One rollout is not among the examples:
    flat, and without a hint."""
    played = student(lora=lora)
    rows = [_acted(played.model, row) for row in range(GROUPS * GROUP_SIZE) if row != 7]
    inputs = StepInputs(rows, pairs(), num_rollouts=GROUPS * GROUP_SIZE)
    return check_steps(config, student=played, inputs=inputs)


if __name__ == "__main__":
    out, train = Path(sys.argv[1]), json.loads(sys.argv[2])
    lines = [
        {
            "text": comparison.text(),
            "passes": comparison.passes,
            "gradient": comparison.differences["gradient"],
        }
        for comparison in compare(settings(**train))
    ]
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(lines), "utf-8")
