"""Row mathematics of the fused divergences by torch.compile, for hosts with a C++ compiler.

On a GPU, Triton takes this role. Shapes: C rows of a chunk, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from composer_replication.losses.fused_eager import FLOORS, RowKernel, kl, min_excess


def compiled_divergence(beta: float, curvature: float) -> RowKernel:
    """The kernel of a divergence, with the results of `fused_eager.eager_divergence`."""

    def rows(
        z_CV: Tensor,
        teacher_CV: Tensor | None,
        ids_C: Tensor | None,
        scratch: Tensor,
        want_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        assert teacher_CV is not None
        if not 0.0 < beta < 1.0:  # compiled, a KL gains nothing over the eager one
            values_C, factor_C = kl(z_CV, teacher_CV, scratch, reverse=beta == 1.0)
        else:
            values_C, factor_C = _compiled()(
                z_CV, teacher_CV, beta, FLOORS[z_CV.dtype], want_gradient
            )
        return values_C * curvature, factor_C * curvature

    return RowKernel(
        rows=rows,
        scratch=0 if 0.0 < beta < 1.0 else 2,
        block=1 << 62 if 0.0 < beta < 1.0 else 1 << 18,
    )


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_jsd)


def _jsd(
    z_CV: Tensor, t_CV: Tensor, beta: float, floor: float, want_gradient: bool
) -> tuple[Tensor, Tensor]:
    """`fused_eager._jsd` written for a compiler that fuses operations: no scratch buffers.

    The gradient is written into `z_CV`. Arguments are positional because the compiled function is
    called on every chunk.
    """
    z, t = (x - x.amax(-1, keepdim=True) for x in (z_CV, t_CV))
    x, y = torch.exp2(z.clamp(min=floor)), torch.exp2(t)
    x_C1, y_C1 = x.sum(-1, keepdim=True), y.sum(-1, keepdim=True)
    u = (y / x * (x_C1 / y_C1) - 1.0).clamp(min=min_excess(z_CV.dtype))
    mix = torch.log1p(beta * u)
    student_C = -(x * mix).sum(-1) / x_C1[:, 0]
    teacher_C = (y * (torch.log1p(u) - mix)).sum(-1) / y_C1[:, 0]
    values_C = (beta * teacher_C + (1.0 - beta) * student_C).clamp(min=0.0)
    if want_gradient:
        z_CV.copy_((mix + student_C[:, None]) * x)
    return values_C, (beta - 1.0) / x_C1[:, 0]
