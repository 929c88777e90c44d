"""The weight of each channel in the loss of a step, and as the health rules see it."""

from __future__ import annotations

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.credit import channel_shares


def channel_weights(settings: TrainSettings) -> dict[Channel, float]:
    """The weight of each channel's loss under the combination of policy and hint; 0 = off.

    Credit on advantages is not a loss, so its weight here is 0.
    """
    shares = channel_shares(settings.hint.combination, hint_weight=settings.hint.weight)
    return {
        "policy": settings.policy.weight * shares.policy,
        "lm_ce": settings.lm_ce.weight,
        "hint": shares.hint,
        "preference": settings.preference.weight,
    }


def health_weights(settings: TrainSettings) -> dict[Channel, float]:
    """The weights that training/run/health.py reads: a hint channel that gives credit is on."""
    weights = channel_weights(settings)
    if settings.hint.is_credit:
        weights["hint"] = settings.hint.weight
    return weights
