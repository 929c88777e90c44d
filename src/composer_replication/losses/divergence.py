"""Divergences between two next-token distributions, named by the order of their arguments.

    kl_student_teacher   KL(p_s || p_t) = sum_v p_s (log p_s - log p_t)
    kl_teacher_student   KL(p_t || p_s) = sum_v p_t (log p_t - log p_s)
    jsd(beta)            beta KL(p_t || m) + (1 - beta) KL(p_s || m),  m = (1 - beta) p_s + beta p_t

The third is eq. 1 of GKD (arXiv 2306.13649): beta weighs the teacher. beta = 0 is
kl_teacher_student and beta = 1 is kl_student_teacher by definition (the limits are 0). For other
beta the JSD is scaled by 1 / (beta (1 - beta)), so that all three have the same curvature at
student = teacher and a channel's weight keeps its meaning; `raw=True` leaves the scale out.

Near equality the textbook formula is a small difference of large numbers. With r = log p_t - log
p_s, L = log(m / p_s) = log1p(beta expm1(r)) and d = p_t - p_s = p_s expm1(r), every summand below
is >= 0, and exactly 0 if p_s = p_t:

    KL(p_t||p_s) = sum p_t r - d        KL(p_t||m) = sum p_t (r - L) - (1 - beta) d
    KL(p_s||p_t) = sum d - p_s r        KL(p_s||m) = sum beta d - p_s L

(the added terms sum to 0). Gradients are analytic: p_s - p_t, p_s (-r - KL), (1 - beta) p_s (-L -
KL(p_s||m)).

Shapes: N tokens, V vocabulary. Logits of lower precision are raised to float32; that cannot undo
the rounding they already have, so compute them in float32. A column with a logit of -inf on both
sides does not exist. With -inf only in the distribution that a KL divides by, the KL is huge but
finite (log-ratios are clamped to 1e4) and the JSD stays at its bound.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MAX_LOG_RATIO = 1e4
_MAX_EXPONENT = 80.0  # exp(80) is below the largest float32


def kl_student_teacher(
    student_NV: Tensor, teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> Tensor:
    """KL(student || teacher) per token, in nats; gradient flows to the student only.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> round(kl_student_teacher(z, t).item(), 4)
    0.1201

    `temperature` divides both logits; the value is not multiplied by its square. `vocab` is the
    number of real columns; those behind it are padding of the embedding. Raises ValueError if the
    shapes do not match.
    """
    return _apply(student_NV, teacher_NV, beta=1.0, temperature=temperature, vocab=vocab)


def kl_teacher_student(
    student_NV: Tensor, teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> Tensor:
    """KL(teacher || student) per token, in nats; arguments as in `kl_student_teacher`.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> round(kl_teacher_student(z, t).item(), 4)
    0.1109
    """
    return _apply(student_NV, teacher_NV, beta=0.0, temperature=temperature, vocab=vocab)


def jsd(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    beta: float,
    temperature: float = 1.0,
    vocab: int | None = None,
    raw: bool = False,
) -> Tensor:
    """Generalised Jensen-Shannon divergence per token; beta weighs the teacher.

    beta 0 and 1 are the two KLs.

    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> round(jsd(z, t, beta=0.5, raw=True).item(), 4), round(jsd(z, t, beta=0.5).item(), 4)
    (0.0285, 0.1141)
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be within 0 and 1, not {beta}")
    value_N = _apply(student_NV, teacher_NV, beta=beta, temperature=temperature, vocab=vocab)
    return value_N if raw or beta in (0.0, 1.0) else value_N / (beta * (1.0 - beta))


def match_logits(
    student_NV: Tensor, teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> tuple[Tensor, Tensor]:
    """The real columns of both logits, the teacher's detached; raises ValueError for a mismatch.

    >>> s, t = match_logits(torch.zeros(2, 9), torch.zeros(2, 9), vocab=7)
    >>> tuple(s.shape), t.requires_grad
    ((2, 7), False)
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if vocab is not None:
        if vocab > min(student_NV.shape[-1], teacher_NV.shape[-1]):
            raise ValueError(
                f"vocab {vocab} is wider than the logits {student_NV.shape[-1]} and"
                f" {teacher_NV.shape[-1]}"
            )
        student_NV, teacher_NV = student_NV[..., :vocab], teacher_NV[..., :vocab]
    if student_NV.shape != teacher_NV.shape:
        raise ValueError(
            f"student logits {tuple(student_NV.shape)} and teacher logits {tuple(teacher_NV.shape)}"
            " do not match"
        )
    return student_NV, teacher_NV.detach()


def logprobs(logits_NV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities in float32 (float64 stays float64), clamped to at least -1e4.

    The clamp makes a column of -inf finite, with probability 0.

    >>> logprobs(torch.tensor([[0.0, 0.0, -torch.inf]])).tolist()
    [[-0.6931471824645996, -0.6931471824645996, -10000.0]]
    """
    work = torch.promote_types(logits_NV.dtype, torch.float32)
    return torch.log_softmax(logits_NV.to(work) / temperature, dim=-1).clamp_min(-_MAX_LOG_RATIO)


def _apply(
    student_NV: Tensor, teacher_NV: Tensor, *, beta: float, temperature: float, vocab: int | None
) -> Tensor:
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    return _Divergence.apply(student_NV, teacher_NV, beta, 1.0 / temperature)


class _Divergence(torch.autograd.Function):
    """Value and gradient in one pass: the loss separates over tokens, so forward knows both.

    `apply` takes positions only: student, teacher, beta, 1 / temperature.
    """

    @staticmethod
    def forward(
        ctx: Any, student_NV: Tensor, teacher_NV: Tensor, beta: float, inverse_temperature: float
    ) -> Tensor:
        work = torch.promote_types(
            torch.promote_types(student_NV.dtype, teacher_NV.dtype), torch.float32
        )
        logs_NV = torch.log_softmax(student_NV.to(work) * inverse_temperature, dim=-1)
        logt_NV = torch.log_softmax(teacher_NV.to(work) * inverse_temperature, dim=-1)
        # nan comes from -inf on both sides: a column that does not exist
        ratio_NV = (logt_NV - logs_NV).nan_to_num_(nan=0.0).clamp_(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        ps_NV, pt_NV = logs_NV.exp(), logt_NV.exp()
        expm1_NV = torch.expm1(ratio_NV.clamp(max=_MAX_EXPONENT))
        # p_s expm1(r) is exact for small r; for large r it would overflow
        diff_NV = torch.where(ratio_NV.abs() < 1.0, ps_NV * expm1_NV, pt_NV - ps_NV)
        if beta == 0.0:
            value_N = _sum(pt_NV * ratio_NV - diff_NV)
            grad_NV = -diff_NV
        elif beta == 1.0:
            value_N = _sum(diff_NV - ps_NV * ratio_NV)
            grad_NV = ps_NV * (-ratio_NV - value_N.unsqueeze(-1))
        else:
            ratio_NV = ratio_NV.clamp(max=_MAX_EXPONENT)
            log_mix_NV = torch.log1p(beta * expm1_NV)
            student_N = _sum(beta * diff_NV - ps_NV * log_mix_NV)
            teacher_N = _sum(pt_NV * (ratio_NV - log_mix_NV) - (1.0 - beta) * diff_NV)
            value_N = beta * teacher_N + (1.0 - beta) * student_N
            grad_NV = (1.0 - beta) * ps_NV * (-log_mix_NV - student_N.unsqueeze(-1))
        ctx.save_for_backward(grad_NV.mul_(inverse_temperature))
        ctx.student_dtype = student_NV.dtype
        return value_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a divergence has no second derivative: its gradient is made in the forward"
            )
        (grad_NV,) = ctx.saved_tensors
        return (grad_NV * grads[0].unsqueeze(-1)).to(ctx.student_dtype), None, None, None


def _sum(summand_NV: Tensor) -> Tensor:
    """Sum over the vocabulary; a summand below 0 can only be rounding."""
    return summand_NV.clamp_min(0.0).sum(dim=-1)
