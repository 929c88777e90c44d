"""The policy's objective, by its published name: surrogate, reduction, clips and advantage.

    name      surrogate of each token       sum over the step divided by          advantage
    dr_grpo   ppo_clip 0.2                  all rollouts                          centred
    grpo      ppo_clip 0.2                  the rollout's tokens, all rollouts    scaled
    dapo      ppo_clip 0.2, 0.28            tokens of groups that are not flat    scaled
    gspo      ppo_clip 3e-4, 4e-4 of the    the rollout's tokens, all rollouts    scaled
              rollout's mean ratio
    cispo     REINFORCE, weight at most 5   tokens of groups that are not flat    scaled
    dppo      dppo 0.2 of the probability   tokens of groups that are not flat    centred
    dppo_symmetric
              dppo_symmetric 0.1            tokens of groups that are not flat    centred

The last two are prime-rl's, with its kl_tau of 1e-3; the bound is on p - p_sampled, not on a ratio.
"All rollouts" counts those of flat groups too. Centred is the reward minus the group's mean; scaled
is that divided by the group's deviation.
A sequence is a whole rollout: all messages that the student sampled in it. The deviation is that of
the group's sample, plus 1e-4, as in TRL and verl. Formulae: losses/surrogates.py; reductions:
losses/reduction.py. DAPO's dynamic sampling is rollouts.extra_groups, except that the same task is
never sampled again. Shapes: N tokens.
"""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor

from composer_replication.core.config.train_settings import PolicySettings
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.policy import dr_grpo, is_clipped
from composer_replication.losses.reduction import PUBLISHED, Reduction, Units, weights
from composer_replication.losses.sampled import importance_weights, ratio
from composer_replication.losses.surrogates import cispo, gspo, ppo_clip, sequence_ratio
from composer_replication.losses.trust_region import dppo, dppo_symmetric, outside_region
from composer_replication.tokens.batch import Batch, Counts

CLIPS: MappingProxyType[str, tuple[float, float]] = MappingProxyType(
    {
        "dr_grpo": (0.2, 0.2),
        "grpo": (0.2, 0.2),
        "dapo": (0.2, 0.28),
        "gspo": (3e-4, 4e-4),
        "cispo": (1.0, 4.0),
        "dppo": (0.2, 0.2),
        "dppo_symmetric": (0.1, 0.1),
    }
)
"""The distances (low, high) by which the ratio may fall below and rise above 1, as published;
cispo's weight lies in [1 - low, 1 + high] (TRL's cap of 5). For dppo, the distances of the
probability."""
SCALED = frozenset({"grpo", "dapo", "gspo", "cispo"})
"""Objectives whose advantages are divided by the group's standard deviation."""


def clips(settings: PolicySettings) -> tuple[float, float]:
    """(low, high) of these settings; 0 in the settings means the published value.

    >>> clips(PolicySettings(objective="dapo")), clips(PolicySettings(clip=0.1))
    ((0.2, 0.28), (0.1, 0.1))
    """
    low, high = CLIPS[settings.objective]
    if settings.clip:
        low, high = settings.clip, settings.clip if settings.objective != "cispo" else high
    return low, settings.clip_high or high


def reduction_of(objective: str) -> Reduction:
    """The divisor of an objective's sum over the step. prime-rl's functions sum, and its trainer
    divides by the tokens.

    >>> reduction_of("dppo"), reduction_of("dr_grpo")
    ('token_mean', 'constant')
    """
    published = PUBLISHED[objective]
    return "token_mean" if published == "sum" else published


def policy_loss(
    logp_N: Tensor, batch: Batch, counts: Counts, settings: PolicySettings
) -> ChannelLoss:
    """The policy channel of one micro-batch under the objective of the settings.

    With `importance_cap` the surrogate's ratio is taken to the current policy (so the ratio and its
    factor in the gradient are 1), and the values are weighted by min(p / p_sampler, cap) without a
    gradient: truncated importance sampling.
    """
    sampled_N = batch.sampled_logp_N
    then_N = logp_N.detach() if settings.importance_cap else sampled_N
    sequence_N, num_sequences = batch.action.row_N, len(batch.student)
    values_N, outside_N = _surrogate(
        logp_N,
        then_N=then_N,
        advantage_N=batch.advantage_N,
        sequence_N=sequence_N,
        num_sequences=num_sequences,
        settings=settings,
    )
    if settings.importance_cap:
        values_N = values_N * importance_weights(logp_N, sampled_N, cap=settings.importance_cap)
        outside_N = ratio(logp_N.detach(), sampled_N) > settings.importance_cap
    fields = {
        "name": "policy",
        "values": values_N,
        "tokens": len(batch.action),
        "metrics": {"clipped": outside_N, "sampler_kl": _sampler_kl(logp_N.detach(), sampled_N)},
    }
    reduction = reduction_of(settings.objective)
    if reduction == "constant":
        return ChannelLoss(**fields, global_units=counts.sampled_rollouts)
    units = Units(tokens=counts.policy_tokens, sequences=counts.sampled_rollouts)
    return ChannelLoss(
        **fields,
        global_units=1,
        weights=weights(sequence_N, reduction=reduction, counts=units, dtype=values_N.dtype),
    )


def _sampler_kl(logp_N: Tensor, sampled_N: Tensor) -> Tensor:
    """The divergence of the policy from the sampler of its tokens, KL(sampler || policy): an
    estimate by token, r - 1 - log r with r = p / p_sampler (k3 of Schulman 2020)."""
    difference_N = logp_N - sampled_N
    return difference_N.expm1() - difference_N


def _surrogate(
    logp_N: Tensor,
    *,
    then_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    num_sequences: int,
    settings: PolicySettings,
) -> tuple[Tensor, Tensor]:
    """The values, and which tokens get no gradient because their ratio is too far from 1 (cispo:
    whose weight is cut)."""
    ratio_inputs, (low, high) = (logp_N, then_N, advantage_N), clips(settings)
    if settings.objective == "cispo":
        r_N = ratio(logp_N.detach(), then_N)
        return cispo(*ratio_inputs, cap=1.0 + high, floor=1.0 - low), (r_N > 1.0 + high) | (
            r_N < 1.0 - low
        )
    if settings.objective == "dppo":
        outside_N = outside_region(*ratio_inputs, mask_low=low, mask_high=high)
        return dppo(*ratio_inputs, mask_low=low, mask_high=high), outside_N
    if settings.objective == "dppo_symmetric":
        moved_N = logp_N.detach().exp() - then_N.exp()
        return dppo_symmetric(*ratio_inputs, threshold=low), moved_N.abs() > low
    if settings.objective == "gspo":
        sequences = {"sequence_N": sequence_N, "num_sequences": num_sequences}
        r_N = sequence_ratio(logp_N.detach(), then_N, **sequences)
        return gspo(*ratio_inputs, **sequences, clip_low=low, clip_high=high), _is_outside(
            r_N, advantage_N, low, high
        )
    if low == high:
        return dr_grpo(*ratio_inputs, clip=low), is_clipped(*ratio_inputs, clip=low)
    r_N = ratio(logp_N.detach(), then_N)
    return ppo_clip(*ratio_inputs, clip_low=low, clip_high=high), _is_outside(
        r_N, advantage_N, low, high
    )


def _is_outside(r_N: Tensor, advantage_N: Tensor, low: float, high: float) -> Tensor:
    return ((advantage_N > 0) & (r_N > 1.0 + high)) | ((advantage_N < 0) & (r_N < 1.0 - low))
