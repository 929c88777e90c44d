"""AdamW with a linear warm-up and a linear decay; the learning rate is a function of the step alone."""

from __future__ import annotations

from typing import Any

import torch

from composer_replication.core.config.train import TrainSettings

BETAS = (0.9, 0.95)


def learning_rate(settings: TrainSettings, step: int) -> float:
    """The rate of `step` (from 0): up over warmup_steps, then straight down to 0 behind the last step.

    >>> s = TrainSettings(steps=10, warmup_steps=2, learning_rate=1.0)
    >>> [round(learning_rate(s, step), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    left = settings.steps - step
    return settings.learning_rate * min(1.0, max(0.0, left / max(1, settings.steps - settings.warmup_steps)))


def make_optimiser(model: Any, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW over the trainable weights; weight decay on matrices only."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, betas=BETAS)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate in the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate
