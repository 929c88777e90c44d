"""One channel's part of a step, and the word for how it fares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Channel = Literal["policy", "lm_ce", "hint", "preference"]
CHANNELS: tuple[Channel, ...] = ("policy", "lm_ce", "hint", "preference")
Status = Literal["off", "active", "exhausted", "starved", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoss:
    """The unreduced values of one channel in one micro-batch, and by what their sum is divided.

    `values` has one entry per token (policy, lm_ce, hint, anchors) or per pair (preference);
    `tokens` is how many loss tokens they stand for. `global_units` counts over every micro-batch
    and rank of the step what the sum is divided by (tokens; rollouts for the policy), so the parts
    of a step add up to the same whole however it was cut. `weights`, one per value, is for a
    channel whose values are not all alike (pairs and anchors); None = all 1. `metrics` are further
    unreduced values by name, whose plain mean is only reported.
    Example: ChannelLoss(name="hint", values=<12 values>, tokens=12, global_units=40).mean_part() is
    this part of the step's mean
    """

    name: Channel
    values: Tensor
    tokens: int
    global_units: int
    weights: Tensor | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def mean_part(self) -> Tensor:
        """Weighted sum of the values over the global count: this micro-batch's share of the step's
        mean, 0 without values."""
        values = self.values if self.weights is None else self.values * self.weights
        return values.sum() / max(self.global_units, 1)


def channel_status(
    *, weight: float, inputs: int, tokens: int, grad_norm: float, was_active: bool
) -> Status:
    """How a channel fares in one step; all counts are global.

    `inputs` counts what the step's producer gave before any masking (rollouts with an advantage,
    trained spans, hint views, pairs and anchors). A producer that holds inputs gives some of them
    in every step (training/batch_sampler.py does), so a step without inputs means that it found
    none.

    >>> channel_status(weight=1.0, inputs=3, tokens=40, grad_norm=0.2, was_active=False)
    'active'
    >>> channel_status(weight=1.0, inputs=3, tokens=40, grad_norm=0.0, was_active=True)
    'dead'
    >>> channel_status(weight=1.0, inputs=0, tokens=0, grad_norm=0.0, was_active=True)  # nothing left to correct: fine
    'exhausted'
    >>> channel_status(weight=1.0, inputs=0, tokens=0, grad_norm=0.0, was_active=False)  # never was anything
    'starved'
    """
    if weight == 0:
        return "off"
    if tokens > 0:
        return "active" if grad_norm > 0 else "dead"
    return "starved" if inputs > 0 or not was_active else "exhausted"
