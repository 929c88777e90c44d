"""Estimates from the log-probs of the sampled token alone.

Ratios, importance weights, k1 / k2 / k3 and the sampled-token hint loss. Every exponential of a
log-ratio is taken after clamping the log-ratio to +-20, as in verl and lasgroup/SDPO: exp(20) =
4.9e8 is finite in every dtype from bfloat16 up, and a token that far off gets no gradient through
its ratio. TRL does not clamp. Shapes: N tokens, S sequences.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
MIN_LOGP = -1e4
"""The floor of a log-prob before it is compared with another, as in losses/divergence.py: every
loss stays finite."""
Estimator = Literal["k1", "k2", "k3", "abs"]


def log_ratio(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    """logp - sampled, clamped to +-20; the sampler's log-probs get no gradient.

    >>> log_ratio(torch.tensor([-1.0, 0.0]), torch.tensor([-1.5, -200.0])).tolist()
    [0.5, 20.0]
    """
    return (floor_logprobs(logp_N) - floor_logprobs(sampled_logp_N.detach())).clamp(
        -MAX_LOG_RATIO, MAX_LOG_RATIO
    )


def floor_logprobs(logp_N: Tensor) -> Tensor:
    """Log-probs clamped to at least MIN_LOGP.

    A token that cannot occur is costly and gives no gradient; two such tokens differ by 0.

    >>> floor_logprobs(torch.tensor([-2.0, -torch.inf])).tolist()
    [-2.0, -10000.0]
    """
    return logp_N.clamp(min=MIN_LOGP)


def ratio(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    """exp(log_ratio): the token's probability now over its probability when it was sampled.

    It is finite and differentiable.

    >>> ratio(torch.tensor([-1.0]), torch.tensor([-1.0])).tolist()
    [1.0]
    """
    return torch.exp(log_ratio(logp_N, sampled_logp_N))


def importance_weights(logp_N: Tensor, sampled_logp_N: Tensor, *, cap: float) -> Tensor:
    """The ratio capped at `cap`, without gradient (lasgroup's `is_clip`, 2).

    A factor on a loss whose tokens were sampled by an older policy.

    >>> importance_weights(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -9.0]), cap=2.0).tolist()
    [1.0, 2.0]
    """
    return ratio(logp_N.detach(), sampled_logp_N).clamp(max=cap)


def sampled_token(student_logp_N: Tensor, teacher_logp_N: Tensor) -> Tensor:
    """sg(log p_s(y) - log p_t(y)) * log p_s(y), whose gradient estimates KL(student || teacher)'s.

    >>> sampled_token(torch.tensor([-2.0]), torch.tensor([-1.0])).tolist()
    [2.0]

    Its value means nothing; report k3 instead. Unbiased only for tokens that the student itself
    sampled. TRL, lasgroup/SDPO and OPSD use the same form.
    """
    student_logp_N = floor_logprobs(student_logp_N)
    return (student_logp_N - floor_logprobs(teacher_logp_N)).detach() * student_logp_N


def kl_estimate(
    logp_N: Tensor, ref_logp_N: Tensor, *, kind: Estimator, straight_through: bool = False
) -> Tensor:
    """Estimate of KL(policy || reference) per token the policy sampled, with d = log p_ref - log p.

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1 (>= 0), abs = |d|; see Schulman, "Approximating KL
    divergence" (2020).

    >>> logp, ref = torch.tensor([-1.0]), torch.tensor([-1.5])
    >>> kinds = ("k1", "k2", "k3", "abs")
    >>> [round(kl_estimate(logp, ref, kind=kind).item(), 4) for kind in kinds]
    [0.5, 0.125, 0.1065, 0.5]

    The gradient of k1 has mean 0 and that of k3 belongs to KL(reference || policy); only k2's is
    the gradient of KL(policy || reference). `straight_through` keeps the value and takes k2's
    gradient (verl's "+"). TRL's bias correction is `ratio(...) * kl_estimate(...)`.
    """
    d_N = floor_logprobs(ref_logp_N.detach()) - floor_logprobs(logp_N)
    if kind == "k3":
        clamped_N = d_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        value_N = torch.expm1(clamped_N) - clamped_N
    elif kind in ("k1", "k2", "abs"):
        value_N = {"k1": -d_N, "k2": 0.5 * d_N.square(), "abs": d_N.abs()}[kind]
    else:
        raise ValueError(f"unknown estimator {kind!r}")
    if not straight_through:
        return value_N
    k2_N = 0.5 * d_N.square()
    return k2_N - k2_N.detach() + value_N.detach()


def sequence_sums(values_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Sum of each sequence's values; a sequence without a token has 0.

    >>> values_N, sequence_N = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2])
    >>> sequence_sums(values_N, sequence_N, num_sequences=3).tolist()
    [3.0, 0.0, 4.0]
    """
    return torch.zeros(num_sequences, dtype=values_N.dtype, device=values_N.device).index_add(
        0, sequence_N, values_N
    )


def sequence_means(values_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Mean of each sequence's values; a sequence without a token has 0.

    >>> values_N, sequence_N = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2])
    >>> sequence_means(values_N, sequence_N, num_sequences=3).tolist()
    [1.5, 0.0, 4.0]
    """
    lengths_S = torch.bincount(sequence_N, minlength=num_sequences).clamp_min(1)
    return sequence_sums(values_N, sequence_N, num_sequences=num_sequences) / lengths_S
