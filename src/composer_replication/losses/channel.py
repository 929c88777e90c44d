"""The loss of one channel in one micro-batch, and the channel's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from composer_replication.core.channel_names import Channel, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoss:
    """The unreduced loss of one channel in one micro-batch, and the count that divides its sum.

    `values` has one entry per token (policy, lm_ce, hint, anchors) or per pair (preference);
    `tokens` is the number of loss tokens behind them. `global_units` is the divisor: tokens, or
    rollouts for the policy, counted over every micro-batch and rank of the step, so the parts of a
    step add up to the same total however it was cut. `weights`, one per value, is for a channel
    that mixes pairs with anchors; None = all 1. `metrics` are further unreduced values by name;
    only their plain mean is reported.

    Example: ChannelLoss(name="hint", values=<12 values>, tokens=12, global_units=40).mean_part() is
    this micro-batch's share of the step's mean.
    """

    name: Channel
    values: Tensor
    tokens: int
    global_units: int
    weights: Tensor | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def mean_part(self) -> Tensor:
        """Weighted sum of the values over the global count: this micro-batch's share of the mean.

        Without values it is 0.
        """
        values = self.values if self.weights is None else self.values * self.weights
        return values.sum() / max(self.global_units, 1)


def channel_status(
    *, weight: float, inputs: int, tokens: int, grad_norm: float, was_active: bool
) -> Status:
    """The status of a channel in one step; all counts are global.

    `inputs` counts what the producer supplied before any masking (rollouts with an advantage,
    lm_spans, hint views, pairs and anchors). A producer that has inputs supplies some in every step
    (training/draws/batch_sampler.py), so a step without inputs means that none exist.

    >>> channel_status(weight=1.0, inputs=3, tokens=40, grad_norm=0.2, was_active=False)
    'active'
    >>> channel_status(weight=1.0, inputs=3, tokens=40, grad_norm=0.0, was_active=True)
    'dead'

    Nothing is left to correct, which is fine; or there never was anything:

    >>> channel_status(weight=1.0, inputs=0, tokens=0, grad_norm=0.0, was_active=True)
    'exhausted'
    >>> channel_status(weight=1.0, inputs=0, tokens=0, grad_norm=0.0, was_active=False)
    'starved'
    """
    if weight == 0:
        return "off"
    if tokens > 0:
        return "active" if grad_norm > 0 else "dead"
    return "starved" if inputs > 0 or not was_active else "exhausted"
