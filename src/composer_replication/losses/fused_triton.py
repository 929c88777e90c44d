"""Row mathematics of the fused divergences in Triton: one program per row of logits, in tiles.

**Not run on a GPU yet.** What is checked is its arithmetic, in Triton's interpreter on the CPU
(tests/losses/test_fused_triton.py). It is chosen on CUDA only, and only for float32;
`backend="eager"` avoids it. Each row is read four times and written once.

Formulae are those of losses/fused_eager.py. The logits come in base 2; a logit far below the
largest of its row is clamped.

Shapes: C rows of a chunk, V vocabulary.
"""

# Triton comes with torch's CUDA builds only, and `kernel[grid]` is its own syntax.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from composer_replication.losses.fused_eager import RowKernel

_TILE = 4096
_LN2 = tl.constexpr(math.log(2.0))
_FLOOR = tl.constexpr(-100.0)
_LOWEST = tl.constexpr(2.0**-23 - 1.0)


def triton_divergence(beta: float, curvature: float) -> RowKernel:
    """The kernel of a divergence, with the results of `fused_eager.eager_divergence`."""

    def rows(
        z_CV: Tensor,
        teacher_CV: Tensor | None,
        ids_C: Tensor | None,
        scratch: Tensor,
        want_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        assert teacher_CV is not None
        values_C = torch.empty(len(z_CV), dtype=z_CV.dtype, device=z_CV.device)
        if len(z_CV):
            _rows[(len(z_CV),)](
                z_CV,
                teacher_CV,
                values_C,
                z_CV.shape[1],
                z_CV.stride(0),
                teacher_CV.stride(0),
                beta,
                BETA=_kind(beta),
                WANT=want_gradient,
                TILE=_TILE,
            )
        return values_C * curvature, torch.full_like(values_C, curvature)

    return RowKernel(rows=rows, block=1 << 62, scratch=0)


def _kind(beta: float) -> int:
    return {0.0: 0, 1.0: 1}.get(beta, 2)


@triton.jit
def _ratio(z, t):
    """r in nats from two log-probabilities in base 2; clamped as in losses/divergence.py.

    -inf on both sides gives 0.
    """
    r = (t - z) * _LN2
    r = tl.where(r == r, r, 0.0)
    return tl.minimum(tl.maximum(r, -1e4), 1e4)


@triton.jit
def _difference(ps, pt, r):
    """p_t - p_s, as p_s expm1(r) if they are near: the series is exact to 3e-8 for |r| < 1."""
    e = 1.0 + r * (1.0 / 10.0)
    for k in tl.static_range(9, 1, -1):
        e = 1.0 + r * e * (1.0 / k)
    return tl.where(tl.abs(r) < 1.0, ps * r * e, pt - ps)


@triton.jit
def _log1p(u):
    """log(1 + u); near 0 it is 2 atanh(u / (2 + u)).

    There the hardware's logarithm is only absolutely exact, not relatively.
    """
    s = u / (2.0 + u)
    q = s * s
    near = 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0)))))
    return tl.where(tl.abs(u) < 0.3, near, tl.log(1.0 + u))


@triton.jit
def _log_sum(ptr, vocab, TILE: tl.constexpr):
    """The largest logit of a row, and log2 of the sum of 2^(logit - largest)."""
    column = tl.arange(0, TILE)
    top = tl.full([TILE], -float("inf"), tl.float32)
    for start in range(0, vocab, TILE):
        top = tl.maximum(
            top, tl.load(ptr + start + column, mask=start + column < vocab, other=-float("inf"))
        )
    highest = tl.max(top, 0)
    sums = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        sums += tl.exp2(
            tl.load(ptr + start + column, mask=start + column < vocab, other=-float("inf"))
            - highest
        )
    return highest, tl.log2(tl.sum(sums, 0))


@triton.jit
def _tile(z_ptr, t_ptr, column, vocab, z_max, z_lse, t_max, t_lse, BETA: tl.constexpr):
    """p_s, p_t and their comparison in one tile of a row.

    The comparison is p_t / p_s - 1, clamped above -1, for a JSD and the log-ratio in nats for a KL.
    """
    inside = column < vocab
    z = tl.load(z_ptr + column, mask=inside, other=-float("inf")) - z_max
    t = tl.load(t_ptr + column, mask=inside, other=-float("inf")) - t_max
    if BETA == 2:
        ps, pt = tl.exp2(tl.maximum(z, _FLOOR) - z_lse), tl.exp2(tl.maximum(t, _FLOOR) - t_lse)
        apart = tl.maximum(pt / ps - 1.0, _LOWEST)
    else:
        z, t = z - z_lse, t - t_lse
        ps, pt, apart = tl.exp2(z), tl.exp2(t), _ratio(z, t)
    return ps, pt, apart


@triton.jit
def _rows(
    z_ptr,
    t_ptr,
    values_ptr,
    vocab,
    z_stride,
    t_stride,
    beta,
    BETA: tl.constexpr,
    WANT: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * z_stride
    t_ptr += row * t_stride
    column = tl.arange(0, TILE)
    z_max, z_lse = _log_sum(z_ptr, vocab, TILE)
    t_max, t_lse = _log_sum(t_ptr, vocab, TILE)
    first = tl.zeros([TILE], tl.float32)  # jsd: sum of p_s L; a KL: its summands
    second = tl.zeros([TILE], tl.float32)  # jsd: sum of p_t (r - L)
    for start in range(0, vocab, TILE):
        inside = start + column < vocab
        ps, pt, apart = _tile(z_ptr, t_ptr, start + column, vocab, z_max, z_lse, t_max, t_lse, BETA)
        if BETA == 2:
            mix = _log1p(beta * apart)
            first += tl.where(inside, ps * mix, 0.0)
            second += tl.where(inside, pt * (_log1p(apart) - mix), 0.0)
        else:
            d = _difference(ps, pt, apart)
            summand = pt * apart - d if BETA == 0 else d - ps * apart
            first += tl.where(inside, tl.maximum(summand, 0.0), 0.0)
            if WANT and BETA == 0:
                tl.store(z_ptr + start + column, -d, mask=inside)
    student = tl.sum(first, 0)
    if BETA == 2:
        student = -student
        tl.store(
            values_ptr + row, tl.maximum(beta * tl.sum(second, 0) + (1.0 - beta) * student, 0.0)
        )
    else:
        tl.store(values_ptr + row, student)
    if WANT and BETA != 0:
        for start in range(0, vocab, TILE):
            ps, pt, apart = _tile(
                z_ptr, t_ptr, start + column, vocab, z_max, z_lse, t_max, t_lse, BETA
            )
            grad = (
                (beta - 1.0) * ps * (_log1p(beta * apart) + student)
                if BETA == 2
                else -ps * (apart + student)
            )
            tl.store(z_ptr + start + column, grad, mask=start + column < vocab)
