"""Estimates from the log-probs of the sampled token alone: ratios, importance weights, k1 / k2 /
k3, the sampled-token hint loss.

Every exponential of a log-ratio is taken of the ratio clamped to +-20, as verl and lasgroup/SDPO
do: exp(20) = 4.9e8 is finite in every dtype from bfloat16 on, and a token that far off gives no
gradient through its ratio. TRL does not clamp.
Shapes: N tokens, S sequences.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
LEAST_LOGP = -1e4
"""Where a log-prob of -inf is held before it is compared with another: that of
losses/divergence.py, so that every loss is finite."""
Estimator = Literal["k1", "k2", "k3", "abs"]


def log_ratio(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    """logp - sampled, held within +-20; the sampler's log-probs get no gradient.

    >>> log_ratio(torch.tensor([-1.0, 0.0]), torch.tensor([-1.5, -200.0])).tolist()
    [0.5, 20.0]
    """
    return (held(logp_N) - held(sampled_logp_N.detach())).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def held(logp_N: Tensor) -> Tensor:
    """Log-probs not below LEAST_LOGP: a token that cannot occur costs much and gives no gradient,
    and two of them differ by nothing.

    >>> held(torch.tensor([-2.0, -torch.inf])).tolist()
    [-2.0, -10000.0]
    """
    return logp_N.clamp(min=LEAST_LOGP)


def ratio(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    """exp(log_ratio): how much likelier the token is now than when it was sampled; finite and
    differentiable.

    >>> ratio(torch.tensor([-1.0]), torch.tensor([-1.0])).tolist()
    [1.0]
    """
    return torch.exp(log_ratio(logp_N, sampled_logp_N))


def importance_weights(logp_N: Tensor, sampled_logp_N: Tensor, *, cap: float) -> Tensor:
    """The ratio cut off at `cap`, without gradient: a factor on a loss whose tokens an older policy
    sampled (lasgroup's `is_clip`, 2).

    >>> importance_weights(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -9.0]), cap=2.0).tolist()
    [1.0, 2.0]
    """
    return ratio(logp_N.detach(), sampled_logp_N).clamp(max=cap)


def sampled_token(student_logp_N: Tensor, teacher_logp_N: Tensor) -> Tensor:
    """sg(log p_s(y) - log p_t(y)) * log p_s(y): its gradient estimates that of KL(student ||
    teacher); its value means nothing.

    >>> sampled_token(torch.tensor([-2.0]), torch.tensor([-1.0])).tolist()
    [2.0]

    Unbiased only for tokens that the student itself sampled. The same in TRL, lasgroup/SDPO and
    OPSD. Report k3, not this value.
    """
    student_logp_N = held(student_logp_N)
    return (student_logp_N - held(teacher_logp_N)).detach() * student_logp_N


def kl_estimate(
    logp_N: Tensor, ref_logp_N: Tensor, *, kind: Estimator, straight_through: bool = False
) -> Tensor:
    """Estimate of KL(policy || reference) per token the policy sampled, with d = log p_ref - log p.

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1 (>= 0), abs = |d|; see Schulman, "Approximating KL
    divergence" (2020).

    >>> [round(kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.5]), kind=kind).item(), 4) for kind in ("k1", "k2", "k3", "abs")]
    [0.5, 0.125, 0.1065, 0.5]

    The gradient of k1 has mean 0 and that of k3 belongs to KL(reference || policy): only k2's is
    the one of KL(policy || reference). `straight_through` keeps the value and takes k2's gradient
    (verl's "+"). TRL's bias correction is `ratio(...) * kl_estimate(...)`.
    """
    d_N = held(ref_logp_N.detach()) - held(logp_N)
    if kind == "k3":
        held_N = d_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        value_N = torch.expm1(held_N) - held_N
    elif kind in ("k1", "k2", "abs"):
        value_N = {"k1": -d_N, "k2": 0.5 * d_N.square(), "abs": d_N.abs()}[kind]
    else:
        raise ValueError(f"unknown estimator {kind!r}")
    if not straight_through:
        return value_N
    second_N = 0.5 * d_N.square()
    return second_N - second_N.detach() + value_N.detach()


def sequence_sums(values_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Sum of each sequence's values; a sequence without a token has 0.

    >>> sequence_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), num_sequences=3).tolist()
    [3.0, 0.0, 4.0]
    """
    return torch.zeros(num_sequences, dtype=values_N.dtype, device=values_N.device).index_add(
        0, sequence_N, values_N
    )


def sequence_means(values_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Mean of each sequence's values; a sequence without a token has 0.

    >>> sequence_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), num_sequences=3).tolist()
    [1.5, 0.0, 4.0]
    """
    lengths_S = torch.bincount(sequence_N, minlength=num_sequences).clamp_min(1)
    return sequence_sums(values_N, sequence_N, num_sequences=num_sequences) / lengths_S
