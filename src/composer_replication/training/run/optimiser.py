"""AdamW with a linear warm-up and a linear decay; gradients are clipped if they are outliers.

The learning rate is a function of the step alone. A balanced total (train.balance) has a gradient
of any length over the weights: 20 to 200 was measured. A fixed bound of 1 would rescale every step
to one length, and remove everything that the size of a loss means: a channel that fades with its
sites, Dr.GRPO's division by all rollouts. So the bound follows the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.total import RunningMean
from composer_replication.models.quantised_base import load_bitsandbytes
from composer_replication.models.sharding import part_of

BETAS = (0.9, 0.95)
_CODES = ("qmap1", "qmap2")  # the numbers that 8-bit states stand for
_TABLES = (*_CODES, "absmax1", "absmax2")  # and the scale of each block of 256


def learning_rate(settings: TrainSettings, step: int) -> float:
    """The rate of `step` (from 0): up over warmup_steps, then linearly down to 0 after the last
    step.

    >>> s = TrainSettings(steps=10, warmup_steps=2, learning_rate=1.0)
    >>> [round(learning_rate(s, step), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    left = settings.steps - step
    return settings.learning_rate * min(
        1.0, max(0.0, left / max(1, settings.steps - settings.warmup_steps))
    )


def make_optimiser(model: Any, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW over the trainable weights; weight decay on matrices only.

    Raises MissingExtraError for states in 8 bits without bitsandbytes.
    """
    kind: Any = torch.optim.AdamW
    if settings.optimiser == "adamw_8bit":
        kind = load_bitsandbytes().optim.AdamW8bit
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return kind([g for g in groups if g["params"]], lr=settings.learning_rate, betas=BETAS)


def saved_states(optimiser: torch.optim.Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """(parameter, name, value) of each state, in memory of its own.

    With 8 bits the number of steps is an int, and all parameters share the tables of codes.
    """
    for parameter, states in optimiser.state.items():
        for name, value in states.items():
            value = torch.as_tensor(value).detach()
            yield parameter, name, value.clone() if name in _CODES else value


def load_state(
    optimiser: torch.optim.Optimizer, parameter: Tensor, *, name: str, value: Tensor
) -> bool:
    """Put a saved state back; False if it does not fit the parameter, or is another optimiser's."""
    is_8bit = not isinstance(optimiser, torch.optim.AdamW)
    per_number = ("state1", "state2") if is_8bit else ("exp_avg", "exp_avg_sq")
    if name == "step":
        # AdamW keeps its step count on the CPU
        optimiser.state[parameter][name] = int(value) if is_8bit else value
        return True
    fits = value.shape == parameter.shape if name in per_number else is_8bit and name in _TABLES
    if fits:
        optimiser.state[parameter][name] = part_of(value.to(parameter.device), like=parameter)
    return fits


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate in the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate


@dataclass(slots=True, kw_only=True)
class GradientClip:
    """Shortens a gradient that is longer than `ratio` times the running mean of the norms before
    it, or than `max_norm`; 0 = off.

    The mean is over about ten steps. A clipped step counts with its clipped norm, so one outlier
    does not let the next one pass. The first step has nothing to be compared with.

    >>> clip = GradientClip(ratio=4.0)
    >>> clip.limit
    inf
    >>> weight = torch.zeros(1, requires_grad=True); weight.grad = torch.tensor([2.0])
    >>> clip.apply([weight], norm=2.0), clip.limit
    (False, 8.0)
    >>> weight.grad = torch.tensor([80.0])
    >>> clip.apply([weight], norm=80.0), round(weight.grad.item(), 3)
    (True, 8.0)
    """

    ratio: float = 0.0
    max_norm: float = 0.0
    mean: RunningMean = field(default_factory=RunningMean)

    @property
    def limit(self) -> float:
        """The largest norm that passes unchanged in the next step."""
        outlier = self.ratio * self.mean.value if self.ratio and self.mean.weight else math.inf
        return min(outlier, self.max_norm or math.inf)

    def apply(self, parameters: list[Tensor], *, norm: float) -> bool:
        """Clip the gradients, whose norm is `norm`, and count the step; returns whether they were
        clipped."""
        limit = self.limit
        if clipped := norm > limit:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))
        self.mean.add(min(norm, limit))
        return clipped
