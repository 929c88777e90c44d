"""The sum of the channels: the one place where values are reduced.

total = sum over channels of weight * mean / norm. The mean is over the global count. The norm is
the channel's running mean gradient norm at the final hidden states (balance "grad_norm"), or 1
(balance "none"). Raw norms move during a run, so the running mean is exponential: about the last
ten steps decide it, and the first steps are soon forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.losses.channel import ChannelLoss

DECAY = 0.9


@dataclass(slots=True)
class RunningMean:
    """Exponential mean of a channel's gradient norm over the steps in which it had one.

    A norm from k such steps ago weighs DECAY ** k. `weight` is the sum of these weights: dividing
    by it, and not by its limit 1 / (1 - DECAY), is the bias correction, so the first norm is its
    own mean.

    >>> mean = RunningMean()
    >>> for norm in (2.0, 0.0, 4.0): mean.add(norm)
    >>> round(mean.value, 4)  # (0.9 * 2 + 4) / (0.9 + 1)
    3.0526
    """

    total: float = 0.0
    weight: float = 0.0

    def add(self, norm: float) -> None:
        """Add one step; a norm of 0 is a step without a gradient and does not count."""
        if norm > 0:
            self.total = DECAY * self.total + norm
            self.weight = DECAY * self.weight + 1.0

    @property
    def value(self) -> float:
        """The mean; 0 if no step had a gradient yet."""
        return self.total / self.weight if self.weight else 0.0


def channel_scales(
    weights: Mapping[Channel, float],
    means: Mapping[Channel, RunningMean],
    *,
    balance: Literal["grad_norm", "none"],
) -> dict[Channel, float]:
    """The factor of each channel's mean in the total.

    A channel without a gradient so far keeps its weight.

    >>> weights = {"lm_ce": 1.0, "hint": 0.5}
    >>> means = {"lm_ce": RunningMean(4.0, 1), "hint": RunningMean(0.1, 1)}
    >>> channel_scales(weights, means, balance="grad_norm")
    {'lm_ce': 0.25, 'hint': 5.0}
    """
    if balance == "none":
        return dict(weights)
    return {name: weight / (means[name].value or 1.0) for name, weight in weights.items()}


def total_loss(losses: Iterable[ChannelLoss], scales: Mapping[Channel, float]) -> Tensor:
    """The scaled sum of one micro-batch's parts, on their device; a constant 0 without channels.

    >>> part = ChannelLoss(name="lm_ce", values=torch.tensor([1.0, 3.0]), tokens=2, global_units=4)
    >>> total_loss([part], {"lm_ce": 0.5}).item()
    0.5
    """
    parts = [scales[loss.name] * loss.mean_part() for loss in losses]
    return torch.stack(parts).sum() if parts else torch.zeros(())
