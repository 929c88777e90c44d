"""One fixed batch through verl's own worker and through the reference trainer: `python -m
tests.backends_verl.frozen_verl OUT [RAY_WORKERS]`, under torchrun for several ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.root import Config
from composer_replication.models.load_student import Student
from composer_replication.training.backends.step_check import StepComparison, check_steps
from composer_replication.training.inputs import StepInputs
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_student,
)

INPUTS = StepInputs(
    [
        make_rollout(0, advantage=0.5, hints=2, anchored=True, length=30),
        make_rollout(1, advantage=-0.25),
        make_rollout(2, advantage=-0.5, hints=0),
        make_example(3),
        make_example(4, hints=0),
    ],
    [make_pair(0), make_pair(1, prefix=9), make_pair(2, chosen=7)],
    num_rollouts=4,
)
"""Items of different numbers of rows and tokens, so that ranks and micro-batches differ."""
TRAIN: dict[str, Any] = {
    "backend": "verl",
    "policy": {"weight": 1.0},
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.5},
    "preference": {"weight": 0.3, "anchor": 0.5},
    "micro_tokens": 90,
}


def settings(**train: Any) -> Config:
    """The run's settings."""
    return make_config(**{**TRAIN, **train})


def sharp_student() -> Student:
    """A student whose distributions depend on the context: a hint moves them."""
    student = make_student()
    with torch.no_grad():
        for parameter in student.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return student


def compare(config: Config, inputs: StepInputs = INPUTS) -> list[StepComparison]:
    """Every scenario with both trainers."""
    return check_steps(config, student=sharp_student(), inputs=inputs)


if __name__ == "__main__":
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    comparisons = compare(settings(**options))
    lines = [{"text": c.text(), "passes": c.passes, **c.differences} for c in comparisons]
    if os.environ.get("RANK", "0") == "0":
        Path(sys.argv[1]).write_text(json.dumps(lines), "utf-8")
