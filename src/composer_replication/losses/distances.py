"""Other distances of DistiLLM's and TAID's repositories.

Cross-entropy with the teacher, total variation, skewed KL and symmetric KL. The divergences here
are true divergences: 0 at identity. DistiLLM's `forward_kl` and `skewed_forward_kl` and TAID's
`forward_kl` are cross-entropies, i.e. the KL plus `entropy(teacher)`, whose gradient is the same.

    skewed_kl_teacher_student(skew)   KL(p_t || skew p_t + (1 - skew) p_s)
    skewed_kl_student_teacher(skew)   KL(p_s || skew p_s + (1 - skew) p_t)

Skew 0 is the plain KL. Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.divergence import (
    kl_student_teacher,
    kl_teacher_student,
    logprobs,
    match_logits,
)

_MAX_EXPONENT = 80.0  # exp(80) is below the largest float32


def teacher_cross_entropy(
    student_NV: Tensor, teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> Tensor:
    """-sum_v p_t log p_s per token, in nats: KL(teacher || student) plus the teacher's entropy.

    >>> student, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(teacher_cross_entropy(student, teacher).item(), 4)
    0.6931

    A column in which the student has -inf is left out, as in SakanaAI/TAID and DistiLLM.
    """
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    logs_NV = torch.where(
        student_NV == -torch.inf, 0.0, logprobs(student_NV, temperature=temperature)
    )
    return -(logprobs(teacher_NV, temperature=temperature).exp() * logs_NV).sum(dim=-1)


def total_variation(
    student_NV: Tensor, teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> Tensor:
    """Half the sum of |p_s - p_t| per token, between 0 and 1.

    >>> round(total_variation(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item(), 4)
    0.2311
    """
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    p_s, p_t = (
        logprobs(student_NV, temperature=temperature).exp(),
        logprobs(teacher_NV, temperature=temperature).exp(),
    )
    return 0.5 * (p_s - p_t).abs().sum(dim=-1)


def skewed_kl_teacher_student(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    skew: float,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """KL(teacher || skew * teacher + (1 - skew) * student) per token.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> [round(skewed_kl_teacher_student(z, t, skew=skew).item(), 4) for skew in (0.0, 0.1)]
    [0.1109, 0.0906]

    DistiLLM's default skew is 0.1.
    """
    if _plain(skew):
        return kl_teacher_student(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    ratio_NV, log_mix_NV, p_s, p_t = _mixed(
        student_NV.detach(), teacher_NV, share=skew, temperature=temperature, vocab=vocab
    )
    value_N = (p_t * (ratio_NV - log_mix_NV) - (1.0 - skew) * _difference(ratio_NV, p_s, p_t)).sum(
        dim=-1
    )
    # The analytic gradient, exactly 0 at identity: -(1 - skew) p_s (p_t / m - 1) with respect to
    # log p_s. Autograd would leave a rounding error there.
    slope_NV = -(1.0 - skew) * p_s * torch.expm1(ratio_NV - log_mix_NV)
    carrier_N = (
        slope_NV
        * logprobs(
            student_NV if vocab is None else student_NV[..., :vocab], temperature=temperature
        )
    ).sum(dim=-1)
    return value_N + (carrier_N - carrier_N.detach())


def skewed_kl_student_teacher(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    skew: float,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """KL(student || skew * student + (1 - skew) * teacher) per token.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> [round(skewed_kl_student_teacher(z, t, skew=skew).item(), 4) for skew in (0.0, 0.1)]
    [0.1201, 0.095]

    DistiLLM's default skew is 0.1.
    """
    if _plain(skew):
        return kl_student_teacher(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    ratio_NV, log_mix_NV, p_s, p_t = _mixed(
        student_NV, teacher_NV, share=1.0 - skew, temperature=temperature, vocab=vocab
    )
    return ((1.0 - skew) * _difference(ratio_NV, p_s, p_t) - p_s * log_mix_NV).sum(dim=-1)


def symmetric_kl(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    lam: float = 0.9,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """lam * KL(student || teacher) + (1 - lam) * KL(teacher || student) per token.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> round(symmetric_kl(z, t, lam=0.5).item(), 4)
    0.1155
    """
    reverse_N = kl_student_teacher(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    return lam * reverse_N + (1.0 - lam) * kl_teacher_student(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )


def _plain(skew: float) -> bool:
    if not 0.0 <= skew < 1.0:
        raise ValueError(f"skew must be at least 0 and below 1, not {skew}")
    return skew == 0.0


def _mixed(
    student_NV: Tensor, teacher_NV: Tensor, *, share: float, temperature: float, vocab: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log(p_t / p_s), log(m / p_s) for m = (1 - share) p_s + share p_t, p_s and p_t."""
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    logs_NV, logt_NV = (
        logprobs(student_NV, temperature=temperature),
        logprobs(teacher_NV, temperature=temperature),
    )
    ratio_NV = (logt_NV - logs_NV).clamp(max=_MAX_EXPONENT)
    return ratio_NV, torch.log1p(share * torch.expm1(ratio_NV)), logs_NV.exp(), logt_NV.exp()


def _difference(ratio_NV: Tensor, p_s: Tensor, p_t: Tensor) -> Tensor:
    """p_t - p_s without cancellation for small ratios.

    torch.where evaluates both branches, so the clamp keeps the branch that is not chosen finite.
    """
    return torch.where(
        ratio_NV.abs() < 1.0, p_s * torch.expm1(ratio_NV.clamp(-1.0, 1.0)), p_t - p_s
    )
