"""Row mathematics of the fused losses in eager torch, in place, a few rows at a time so that what is read again is still in the cache.

A kernel gets a block of logits z_RV (the tempered ones times `unit`) and gives a value per row and its gradient:

    values_R, factor_R = kernel.rows(z_RV, teacher_RV or None, ids_R or None, want_gradient)

The gradient with respect to the tempered logits is then factor_R[:, None] * z_RV: z_RV has been overwritten. Factors of a whole row are
cheaper on the hidden states than on the logits. `unit` = log2(e) lets the exponentials be powers of two, which cost a third.

Formulae and conventions are those of losses/divergence.py. For 0 < beta < 1 the terms that it adds to make each summand >= 0 cancel
between the two halves: value = sum beta p_t r - m L, which an error common to all r changes only in second order.

Shapes: R rows of a block, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LOG2E, LN2 = 1.0 / math.log(2.0), math.log(2.0)
_MAX_LOG_RATIO, _MAX_EXPONENT = 1e4, 80.0  # those of losses/divergence.py

Rows = Callable[[Tensor, Tensor | None, Tensor | None, bool], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerKernel:
    """A row function, in which unit it wants its logits, and how many numbers a block may have."""

    rows: Rows
    unit: float = LOG2E
    block: int = 1 << 18


def divergence(beta: float, curvature: float) -> EagerKernel:
    """The kernel of a divergence: `beta` weighs the teacher, 0 and 1 are the two KLs; all is multiplied by `curvature`."""

    def rows(z_RV: Tensor, teacher_RV: Tensor | None, ids_R: Tensor | None, want: bool) -> tuple[Tensor, Tensor]:
        assert teacher_RV is not None
        if 0.0 < beta < 1.0:
            values_R, factor_R = _jsd(z_RV, teacher_RV, beta, want)
        else:
            values_R, factor_R = _kl(z_RV, teacher_RV, reverse=beta == 1.0)
        return values_R * curvature, factor_R * curvature

    return EagerKernel(rows=rows)


def _jsd(z_RV: Tensor, t_RV: Tensor, beta: float, want: bool) -> tuple[Tensor, Tensor]:
    """With x = 2^z, y = 2^t, X and Y their sums: L = log1p(beta (y X / (x Y) - 1)), gradient -(1 - beta) (x / X) (L + KL(p_s || m))."""
    floor = -126.0 if z_RV.dtype == torch.float32 else -1022.0  # 2^floor is the smallest normal number: x is never 0, r never nan
    z_RV.sub_(z_RV.amax(-1, keepdim=True)).clamp_(min=floor)
    t_RV.sub_(t_RV.amax(-1, keepdim=True)).clamp_(min=floor)
    x_RV, y_RV = torch.exp2(z_RV), torch.exp2(t_RV)
    x_R1, y_R1 = x_RV.sum(-1, keepdim=True), y_RV.sum(-1, keepdim=True)
    t_RV.sub_(z_RV).sub_(y_R1.log2() - x_R1.log2())  # r, base 2
    torch.div(y_RV, x_RV, out=z_RV)
    z_RV.mul_(beta * (x_R1 / y_R1)).sub_(beta).log1p_()  # L
    student_R = -torch.linalg.vecdot(x_RV, z_RV) / x_R1[:, 0]
    teacher_R = (torch.linalg.vecdot(y_RV, t_RV) * LN2 - torch.linalg.vecdot(y_RV, z_RV)) / y_R1[:, 0]
    values_R = (beta * teacher_R + (1.0 - beta) * student_R).clamp_min_(0.0)
    if want:
        z_RV.add_(student_R[:, None]).mul_(x_RV)
    return values_R, (beta - 1.0) / x_R1[:, 0]


def _kl(z_RV: Tensor, t_RV: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """KL(p_s || p_t) where `reverse`, else KL(p_t || p_s); d = p_t - p_s is p_s expm1(r) where that is the more exact."""
    for logits_RV in (z_RV, t_RV):
        logits_RV.sub_(logits_RV.amax(-1, keepdim=True))
        logits_RV.sub_(torch.exp2(logits_RV).sum(-1, keepdim=True).log2())
    ps_RV, pt_RV = torch.exp2(z_RV), torch.exp2(t_RV)
    r_RV = t_RV.sub_(z_RV).mul_(LN2).nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf).clamp_(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    torch.clamp(r_RV, max=_MAX_EXPONENT, out=z_RV)
    d_RV = torch.where(z_RV.abs() < 1.0, z_RV.expm1_().mul_(ps_RV), pt_RV - ps_RV)
    if not reverse:
        values_R = pt_RV.mul_(r_RV).sub_(d_RV).clamp_min_(0.0).sum(-1)
        torch.neg(d_RV, out=z_RV)
    else:
        values_R = torch.addcmul(d_RV, ps_RV, r_RV, value=-1.0).clamp_min_(0.0).sum(-1)
        z_RV.copy_(r_RV.add_(values_R[:, None]).mul_(ps_RV).neg_())
    return values_R, torch.ones_like(values_R)


def _logprob(z_RV: Tensor, teacher_RV: Tensor | None, ids_R: Tensor | None, want: bool) -> tuple[Tensor, Tensor]:
    """z of the token - log sum; gradient one-hot - p."""
    assert ids_R is not None
    z_RV.sub_(z_RV.amax(-1, keepdim=True))
    token_R1 = z_RV.gather(1, ids_R[:, None])
    x_R1 = z_RV.exp2_().sum(-1, keepdim=True)
    if want:
        z_RV.scatter_add_(1, ids_R[:, None], -x_R1)
    return token_R1[:, 0] * LN2 - x_R1[:, 0].log(), -1.0 / x_R1[:, 0]


def _entropy(z_RV: Tensor, teacher_RV: Tensor | None, ids_R: Tensor | None, want: bool) -> tuple[Tensor, Tensor]:
    """H = log sum - sum p z; gradient -p (log p + H)."""
    z_RV.sub_(z_RV.amax(-1, keepdim=True)).clamp_(min=-1e30)  # 0 * -inf would be nan
    x_RV = torch.exp2(z_RV)
    x_R = x_RV.sum(-1)
    mean_R = torch.linalg.vecdot(x_RV, z_RV) / x_R
    if want:
        z_RV.sub_(mean_R[:, None]).mul_(x_RV)
    return x_R.log() - LN2 * mean_R, -LN2 / x_R


logprob = EagerKernel(rows=_logprob)
entropy = EagerKernel(rows=_entropy)


def autograd_rows(fn: Callable[..., Tensor]) -> EagerKernel:
    """A kernel from any differentiable row function; autograd takes the gradient of a few rows at a time."""

    def rows(z_RV: Tensor, teacher_RV: Tensor | None, ids_R: Tensor | None, want: bool) -> tuple[Tensor, Tensor]:
        given = [g for g in (teacher_RV, ids_R) if g is not None]
        with torch.set_grad_enabled(want):
            leaf_RV = z_RV.detach().requires_grad_(want)
            values_R = fn(leaf_RV, *given)
            if values_R.shape != z_RV.shape[:1]:
                raise ValueError(f"a row function gave {tuple(values_R.shape)} for {z_RV.shape[0]} rows")
            if want:
                (grad_RV,) = torch.autograd.grad(values_R.sum(), leaf_RV) if values_R.requires_grad else (torch.zeros_like(z_RV),)
                z_RV.copy_(grad_RV)
        return values_R.detach(), torch.ones_like(values_R)

    return EagerKernel(rows=rows, unit=1.0, block=1 << 20)
