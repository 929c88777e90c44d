"""Policy losses of the field, one value per token, negated and unreduced: smaller is better.

A published name means a surrogate here *and* a reduction in losses/reduction.py (`PUBLISHED` there,
docs/math.md): GRPO, BNPO, DAPO, Dr.GRPO and LUSPO share `ppo_clip` and differ in weights.
Advantages are per token.

    ppo_clip   -min(r A, clamp(r, 1 - low, 1 + high) A)
               arXiv 1707.06347; clip-higher: 2503.14476; dual clip: 1912.09729
    gspo       the same with r = exp(mean log-ratio of the sequence); arXiv 2507.18071
    cispo      -sg(clamp(r, floor, cap)) A log p; arXiv 2506.13585
    sapo       -4 / tau * sigmoid(tau (r - 1)) A
               a soft gate instead of a clip, tau by the advantage's sign
    vespo      -sg(phi(w)) A log p, w = exp(sum of the sequence's log-ratios),
               phi(w) = e^lambda w^k e^(-lambda w)

r = exp(log p - log p_sampled), its logarithm clamped to +-20 (losses/sampled.py). Shapes: N tokens,
S sequences.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from composer_replication.losses.sampled import (
    MAX_LOG_RATIO,
    floor_logprobs,
    log_ratio,
    ratio,
    sequence_means,
    sequence_sums,
)


def ppo_clip(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    delta: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """The clipped surrogate of each token; `clip_high` above `clip_low` is DAPO's clip-higher.

    >>> now, then = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.25]).log()  # ratio 2
    >>> ppo_clip(now, then, torch.tensor([1.0, -1.0]), clip_low=0.2, clip_high=0.28).tolist()
    [-1.2799999713897705, 2.0]

    `delta` (TRL) caps the unclipped ratio for both signs; `dual_clip` (verl's `clip_ratio_c`) caps
    the loss of a negative advantage at dual_clip * |A|. Both bound the effect of a token that
    became far too likely.
    """
    return _clipped_surrogate(
        ratio(logp_N, sampled_logp_N),
        advantage_N,
        clip_low=clip_low,
        clip_high=clip_high,
        delta=delta,
        dual_clip=dual_clip,
    )


def sequence_ratio(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    gradient: Literal["sequence", "token"] = "sequence",
) -> Tensor:
    """GSPO's ratio, exp(mean log-ratio of the token's sequence), at each token.

    >>> now, then = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -1.0, -3.0])
    >>> ratio_N = sequence_ratio(now, then, torch.tensor([0, 0, 1]), num_sequences=2)
    >>> ratio_N.double().round(decimals=4).tolist()  # exp(-1 / 2), exp(0)
    [0.6065, 0.6065, 1.0]

    `gradient`: "sequence" lets it flow through the mean (TRL); "token" detaches the mean and lets
    it flow through the token's own log-prob (verl, GSPO-token). If all advantages of a sequence are
    equal and none is clipped, the sums over the sequence agree.
    """
    mean_N = sequence_means(
        floor_logprobs(logp_N) - floor_logprobs(sampled_logp_N.detach()),
        sequence_N,
        num_sequences=num_sequences,
    )[sequence_N]
    if gradient == "token":
        mean_N = floor_logprobs(logp_N) - floor_logprobs(logp_N.detach()) + mean_N.detach()
    elif gradient != "sequence":
        raise ValueError(f"gradient is 'sequence' or 'token', not {gradient!r}")
    return torch.exp(mean_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def gspo(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    clip_low: float,
    clip_high: float,
    delta: float | None = None,
    gradient: Literal["sequence", "token"] = "sequence",
) -> Tensor:
    """The clipped surrogate with the sequence's ratio, at each token.

    >>> now, then = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0])
    >>> advantage, sequence = torch.ones(2), torch.tensor([0, 0])
    >>> value = gspo(now, then, advantage, sequence, num_sequences=1, clip_low=0.2, clip_high=0.2)
    >>> value.double().round(decimals=4).tolist()
    [-0.6065, -0.6065]

    Published clips are of the order of 3e-4 and 4e-4.
    """
    r_N = sequence_ratio(
        logp_N, sampled_logp_N, sequence_N, num_sequences=num_sequences, gradient=gradient
    )
    return _clipped_surrogate(r_N, advantage_N, clip_low=clip_low, clip_high=clip_high, delta=delta)


def cispo(
    logp_N: Tensor, sampled_logp_N: Tensor, advantage_N: Tensor, *, cap: float, floor: float = 0.0
) -> Tensor:
    """REINFORCE with a clipped, detached importance weight: every token keeps a gradient.

    >>> now, then = torch.tensor([0.5]).log(), torch.tensor([0.125]).log()  # ratio 4, cut to 2
    >>> round(cispo(now, then, torch.tensor([1.0]), cap=2.0).item(), 4)
    1.3863

    `cap` is the largest weight itself: TRL's `epsilon_high` = cap; verl's `clip_ratio_high` = cap -
    1, `clip_ratio_low` = 1 - floor.
    """
    weight_N = ratio(logp_N.detach(), sampled_logp_N).clamp(floor, cap)
    return _reinforced(-weight_N * advantage_N, logp_N)


def sapo(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> Tensor:
    """A smooth gate in place of the clip; its slope is 1 at ratio 1 and fades on both sides.

    >>> p = torch.tensor([-1.0])
    >>> sapo(p, p, torch.tensor([1.0])).tolist()  # at ratio 1: -2 A / temperature
    [-2.0]

    TRL's `sapo`.
    """
    tau_N = _by_sign(advantage_N > 0, temperature_positive, temperature_negative, logp_N)
    gate_N = torch.sigmoid(tau_N * (ratio(logp_N, sampled_logp_N) - 1.0)) * 4.0 / tau_N
    return -gate_N * advantage_N


def vespo(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> Tensor:
    """REINFORCE weighted by phi(w) of the whole sequence's ratio w, detached; phi(1) = 1.

    >>> p, sequence = torch.tensor([-1.0, -2.0]), torch.tensor([0, 0])
    >>> vespo(p, p, torch.tensor([1.0, 1.0]), sequence, num_sequences=1).tolist()
    [1.0, 2.0]

    TRL's `vespo`.
    """
    sums_S = sequence_sums(
        log_ratio(logp_N.detach(), sampled_logp_N), sequence_N, num_sequences=num_sequences
    )
    log_w_N = sums_S.clamp(math.log(1e-8), MAX_LOG_RATIO)[sequence_N]
    positive_N = advantage_N >= 0
    k_N = _by_sign(positive_N, k_positive, k_negative, logp_N)
    lam_N = _by_sign(positive_N, lambda_positive, lambda_negative, logp_N)
    phi_N = torch.exp(lam_N + k_N * log_w_N - lam_N * log_w_N.exp())
    return _reinforced(-phi_N * advantage_N, logp_N)


def off_policy_keep(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    threshold: float,
) -> Tensor:
    """The tokens that DeepSeek-V3.2's off-policy mask keeps.

    A token is kept if A >= 0, or if its sequence's mean log p_sampled - log p is at most threshold.

    >>> now, then = torch.tensor([-3.0, -1.0]), torch.tensor([-1.0, -1.0])
    >>> advantage, sequence = torch.tensor([-1.0, -1.0]), torch.tensor([0, 1])
    >>> off_policy_keep(now, then, advantage, sequence, num_sequences=2, threshold=0.5).tolist()
    [False, True]
    """
    drift_S = sequence_means(
        (floor_logprobs(sampled_logp_N) - floor_logprobs(logp_N)).detach(),
        sequence_N,
        num_sequences=num_sequences,
    )
    return (advantage_N >= 0) | (drift_S[sequence_N] <= threshold)


def _by_sign(positive_N: Tensor, yes: float, no: float, like_N: Tensor) -> Tensor:
    """One of two numbers per token, in the log-probs' precision.

    torch.where() on plain numbers would round them to float32.
    """
    return torch.where(positive_N, like_N.new_tensor(yes), like_N.new_tensor(no))


def _reinforced(slope_N: Tensor, logp_N: Tensor) -> Tensor:
    """slope * logp; the log-prob of a token that cannot occur is clamped, since 0 * -inf is nan."""
    return slope_N * floor_logprobs(logp_N)


def _clipped_surrogate(
    r_N: Tensor,
    advantage_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    delta: float | None,
    dual_clip: float | None = None,
) -> Tensor:
    capped_N = r_N if delta is None else r_N.clamp(max=delta)
    value_N = -torch.minimum(
        capped_N * advantage_N, r_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage_N
    )
    if dual_clip is None:
        return value_N
    if dual_clip <= 1.0:
        raise ValueError(f"dual_clip must be above 1, not {dual_clip}")
    return torch.where(advantage_N < 0, torch.minimum(value_N, -advantage_N * dual_clip), value_N)
