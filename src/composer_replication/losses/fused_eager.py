"""The kernels of the fused losses in eager torch: values and gradients of rows of logits, in place.

losses/fused_sweep.py computes the logits and calls a kernel for a block of rows at a time, so small
that it stays in the cache:

    values_R, factor_R = kernel.rows(z_RV, teacher_RV, ids_R, scratch_SRV, want_gradient)

`z_RV` are the student's logits / temperature * `unit`; `teacher_RV`, the teacher's, and `ids_R`,
the tokens, may be None. With `want_gradient`, z_RV is overwritten: the gradient of each value with
respect to logits / temperature is factor_R[:, None] * z_RV. (The factor of a row is cheaper to
apply to hidden states than to logits.) `unit` = log2(e) turns exponentials into powers of two,
which saves a third of their cost. `scratch_SRV` is allocated once per sweep: allocating it for each
block would keep tens of MiB more. All three backends call row functions this way, by position.

Formulae and conventions are those of losses/divergence.py. For 0 < beta < 1 the terms that
divergence.py adds to make each summand >= 0 cancel between the two halves: value = sum beta p_t r -
m L. An error common to all r and L changes it only in second order.

Shapes: R rows of a block, V vocabulary, S scratch buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.losses.chunk_size import AUTOGRAD_BLOCKS, BLOCKS

LOG2E, LN2 = 1.0 / math.log(2.0), math.log(2.0)
# The floor of both exponents in a JSD, base 2: p_s is never 0, p_t / p_s never infinite, and equal
# rows stay equal.
FLOORS = {torch.float32: -100.0, torch.float64: -900.0}
_MAX_LOG_RATIO, _MAX_EXPONENT = 1e4, 80.0  # those of losses/divergence.py

Rows = Callable[[Tensor, Tensor | None, Tensor | None, Tensor, bool], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel:
    """A row function and what it needs: the unit of its logits, block size and scratch.

    A block has at most `block` logits (rows * vocabulary) on a CPU, the larger of `block` and
    `cuda_block` on a GPU. `scratch` is the number of buffers of a block's size that it uses.
    """

    rows: Rows
    unit: float = LOG2E
    block: int = BLOCKS["cpu"]
    cuda_block: int = BLOCKS["cuda"]
    scratch: int = 3


def eager_divergence(beta: float, curvature: float) -> RowKernel:
    """The kernel of a divergence times `curvature`; beta weighs the teacher.

    beta 0 and 1 are the two KLs.
    """

    def rows(
        z_RV: Tensor,
        teacher_RV: Tensor | None,
        ids_R: Tensor | None,
        scratch: Tensor,
        want_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        assert teacher_RV is not None
        if 0.0 < beta < 1.0:
            values_R, factor_R = _jsd(
                z_RV, teacher_RV, scratch, beta=beta, want_gradient=want_gradient
            )
        else:
            values_R, factor_R = kl(z_RV, teacher_RV, scratch, reverse=beta == 1.0)
        return values_R * curvature, factor_R * curvature

    return RowKernel(rows=rows)


def _jsd(
    z_RV: Tensor, t_RV: Tensor, scratch: Tensor, *, beta: float, want_gradient: bool
) -> tuple[Tensor, Tensor]:
    """With x = 2^z, y = 2^t, X and Y their sums: u = y X / (x Y) - 1 = expm1(r), L = log1p(beta u).

    Both logarithms, L and r = log1p(u), are of the same u. If r were the difference of the logits,
    it would round differently from L, and a divergence of 1e-5 would be off by 1 %. The gradient is
    -(1 - beta) (x / X) (L + KL(p_s || m)).
    """
    z_RV.sub_(z_RV.amax(-1, keepdim=True)).clamp_(min=FLOORS[z_RV.dtype])
    t_RV.sub_(t_RV.amax(-1, keepdim=True)).clamp_(min=FLOORS[t_RV.dtype])
    x_RV, y_RV = torch.exp2(z_RV, out=scratch[0]), torch.exp2(t_RV, out=scratch[1])
    x_R1, y_R1 = x_RV.sum(-1, keepdim=True), y_RV.sum(-1, keepdim=True)
    torch.div(y_RV, x_RV, out=z_RV)
    z_RV.mul_(x_R1 / y_R1).sub_(1.0).clamp_(min=min_excess(z_RV.dtype))
    torch.log1p(z_RV, out=t_RV)
    z_RV.mul_(beta).log1p_()
    student_R = -_dot(x_RV, z_RV, scratch[2]) / x_R1[:, 0]
    teacher_R = _dot(y_RV, t_RV.sub_(z_RV), scratch[2]) / y_R1[:, 0]
    values_R = (beta * teacher_R + (1.0 - beta) * student_R).clamp_min_(0.0)
    if want_gradient:
        z_RV.add_(student_R[:, None]).mul_(x_RV)
    return values_R, (beta - 1.0) / x_R1[:, 0]


def min_excess(dtype: torch.dtype) -> float:
    """The smallest u = p_t / p_s - 1 that is kept, so that r = log1p(u) stays finite.

    If p_t / p_s is that small, p_t r is 0 to the last digit.
    """
    return torch.finfo(dtype).eps - 1.0


def _dot(a_RV: Tensor, b_RV: Tensor, products_RV: Tensor) -> Tensor:
    """The scalar product of each row; torch sums pairwise, unlike a product of vectors."""
    return torch.mul(a_RV, b_RV, out=products_RV).sum(-1)


def kl(z_RV: Tensor, t_RV: Tensor, scratch: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """KL(p_s || p_t) if `reverse`, else KL(p_t || p_s).

    d = p_t - p_s is computed as p_s expm1(r) if that is more exact.
    """
    for logits_RV in (z_RV, t_RV):
        logits_RV.sub_(logits_RV.amax(-1, keepdim=True))
        logits_RV.sub_(torch.exp2(logits_RV, out=scratch[0]).sum(-1, keepdim=True).log2())
    ps_RV, pt_RV = torch.exp2(z_RV, out=scratch[0]), torch.exp2(t_RV, out=scratch[1])
    r_RV = (
        t_RV.sub_(z_RV)
        .mul_(LN2)
        .nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        .clamp_(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    )
    torch.clamp(r_RV, max=_MAX_EXPONENT, out=z_RV)
    d_RV = torch.where(z_RV.abs() < 1.0, z_RV.expm1_().mul_(ps_RV), pt_RV - ps_RV)
    if not reverse:
        values_R = pt_RV.mul_(r_RV).sub_(d_RV).clamp_min_(0.0).sum(-1)
        torch.neg(d_RV, out=z_RV)
    else:
        values_R = torch.addcmul(d_RV, ps_RV, r_RV, value=-1.0).clamp_min_(0.0).sum(-1)
        z_RV.copy_(r_RV.add_(values_R[:, None]).mul_(ps_RV).neg_())
    return values_R, torch.ones_like(values_R)


def _logprob(
    z_RV: Tensor,
    teacher_RV: Tensor | None,
    ids_R: Tensor | None,
    scratch: Tensor,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """z of the token - log sum; gradient: one-hot - p."""
    assert ids_R is not None
    z_RV.sub_(z_RV.amax(-1, keepdim=True))
    token_R1 = z_RV.gather(1, ids_R[:, None])
    x_R1 = z_RV.exp2_().sum(-1, keepdim=True)
    if want_gradient:
        z_RV.scatter_add_(1, ids_R[:, None], -x_R1)
    return token_R1[:, 0] * LN2 - x_R1[:, 0].log(), -1.0 / x_R1[:, 0]


def _entropy(
    z_RV: Tensor,
    teacher_RV: Tensor | None,
    ids_R: Tensor | None,
    scratch: Tensor,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """H = log sum - sum p z; gradient: -p (log p + H)."""
    z_RV.sub_(z_RV.amax(-1, keepdim=True)).clamp_(min=-1e30)  # 0 * -inf would be nan
    x_RV = torch.exp2(z_RV, out=scratch[0])
    x_R = x_RV.sum(-1)
    mean_R = _dot(x_RV, z_RV, scratch[1]) / x_R
    if want_gradient:
        z_RV.sub_(mean_R[:, None]).mul_(x_RV)
    return x_R.log() - LN2 * mean_R, -LN2 / x_R


logprob = RowKernel(rows=_logprob, scratch=0)
entropy = RowKernel(rows=_entropy, scratch=2)


def autograd_rows(fn: Callable[..., Tensor]) -> RowKernel:
    """A kernel from any differentiable row function; autograd takes its gradient block by block."""

    def rows(
        z_RV: Tensor,
        teacher_RV: Tensor | None,
        ids_R: Tensor | None,
        scratch: Tensor,
        want_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        extra_inputs = [g for g in (teacher_RV, ids_R) if g is not None]
        with torch.set_grad_enabled(want_gradient):
            leaf_RV = z_RV.detach().requires_grad_(want_gradient)
            values_R = fn(leaf_RV, *extra_inputs)
            if values_R.shape != z_RV.shape[:1]:
                raise ValueError(
                    f"a row function gave {tuple(values_R.shape)} for {z_RV.shape[0]} rows"
                )
            if want_gradient:
                (grad_RV,) = (
                    torch.autograd.grad(values_R.sum(), leaf_RV)
                    if values_R.requires_grad
                    else (torch.zeros_like(z_RV),)
                )
                z_RV.copy_(grad_RV)
        return values_R.detach(), torch.ones_like(values_R)

    cpu, cuda = AUTOGRAD_BLOCKS["cpu"], AUTOGRAD_BLOCKS["cuda"]
    return RowKernel(rows=rows, unit=1.0, block=cpu, cuda_block=cuda, scratch=0)
