"""Divergences entry by entry: OPSD's clip per vocabulary entry, and a clip per token.

    l_nv = beta p_t (log p_t - log m) + (1 - beta) p_s (log p_s - log m)
           beta = 0: p_t r        beta = 1: -p_s r

Summed over v this is the raw divergence of divergence.py. OPSD (arXiv 2601.18734) clips every entry
from above *before* the sum, so that a few style tokens with a large difference cannot drown the
rest. Entries below 0 are not clipped, so the sum may be negative and is no longer a divergence.
`clip_tokens` clips after the sum; that stays >= 0.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.divergence import logprobs, match_logits

_MAX_EXPONENT = 80.0  # exp(80) is below the largest float32


def entries(logs_NV: Tensor, logt_NV: Tensor, *, beta: float) -> Tensor:
    """Each vocabulary entry's part of the raw generalised divergence of two rows of log-probs.

    >>> half = torch.tensor([[0.5, 0.5]]).log(); other = torch.tensor([[0.25, 0.75]]).log()
    >>> entries(half, other, beta=0.0).double().round(decimals=4).tolist()
    [[-0.1733, 0.3041]]

    The probabilities of a row need not add up to 1.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be within 0 and 1, not {beta}")
    ratio_NV = logt_NV - logs_NV
    if beta == 0.0:
        return logt_NV.exp() * ratio_NV
    if beta == 1.0:
        return -logs_NV.exp() * ratio_NV
    ratio_NV = ratio_NV.clamp(max=_MAX_EXPONENT)
    log_mix_NV = torch.log1p(beta * torch.expm1(ratio_NV))  # log m - log p_s
    return (
        beta * logt_NV.exp() * (ratio_NV - log_mix_NV) - (1.0 - beta) * logs_NV.exp() * log_mix_NV
    )


def entry_clipped(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    entry_clip: float,
    beta: float,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """Raw generalised divergence per token, every vocabulary entry clipped before the sum.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> [round(entry_clipped(z, t, entry_clip=c, beta=0.0).item(), 4) for c in (9.0, 0.05)]
    [0.1109, -0.1168]

    `entry_clip` is in nats. A clipped entry gives no gradient. At identity the value is 0 and the
    gradient is 0 up to rounding.
    """
    if entry_clip <= 0:
        raise ValueError(f"entry_clip must be positive, not {entry_clip}")
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    parts_NV = entries(
        logprobs(student_NV, temperature=temperature),
        logprobs(teacher_NV, temperature=temperature),
        beta=beta,
    )
    return parts_NV.clamp(max=entry_clip).sum(dim=-1)


def clip_tokens(values_N: Tensor, *, maximum: float) -> Tensor:
    """Each token's value clipped to a maximum; a clipped token gives no gradient.

    >>> clip_tokens(torch.tensor([0.2, 3.0]), maximum=1.0).tolist()
    [0.20000000298023224, 1.0]
    """
    return values_N.clamp(max=maximum)
