"""The sweep over chunks of rows: logits, row mathematics, gradients; and the autograd function
around it.

Shapes: N positions, C rows of a chunk, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from composer_replication.losses.fused_eager import RowKernel

# bytes of logits at a time, student's and teacher's together
_BUFFERS = {"cpu": 160 << 20, "cuda": 1 << 30}
_CUDA_BLOCK = 1 << 26  # numbers; blocks for a processor cache would be too small to fill a GPU
# a head of lower precision is raised to float32 at once up to this many bytes, else tile by tile
_WHOLE = 512 << 20
_TILE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInput:
    """Hidden states and the head that reads them: the student's or the teacher's."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    def detached(self) -> HeadInput:
        """The same without gradient."""
        bias_V = None if self.bias_V is None else self.bias_V.detach()
        return replace(
            self,
            hidden_ND=self.hidden_ND.detach(),
            weight_VD=self.weight_VD.detach(),
            bias_V=bias_V,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What a sweep does; everything but the student's tensors.

    `more` are further teachers: the kernel then gets all their logits as one tensor (K, R, V), also
    where `more` is empty.
    """

    kernel: RowKernel
    teacher: HeadInput | None
    ids_N: Tensor | None
    weights_N: Tensor | None
    scale: float
    softcap: float | None
    temperature: float
    vocab: int
    chunk: int | None
    head_early: bool
    more: tuple[HeadInput, ...] | None = None


@dataclass(slots=True, kw_only=True)
class Swept:
    """The values, and the gradients that were asked for: of each row's value, and of the weighted
    sum for the head."""

    values_N: Tensor
    hidden_ND: Tensor | None = None
    weight_VD: Tensor | None = None
    bias_V: Tensor | None = None


def apply(student: HeadInput, plan: SweepSettings) -> Tensor:
    """The values of a plan, differentiable in the student's hidden states, weight and bias."""
    tensors = (student.hidden_ND, student.weight_VD, student.bias_V)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Fused.apply(*tensors, plan)
    with torch.autocast(student.hidden_ND.device.type, enabled=False):
        return sweep_chunks(student.detached(), plan, None, hidden=False, head=False).values_N


class _Fused(torch.autograd.Function):
    """The gradient is computed in the forward; the backward only weighs it, unless the head's was
    asked for with other weights."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, plan: SweepSettings
    ) -> Tensor:
        student = HeadInput(
            hidden_ND=hidden_ND,
            weight_VD=weight_VD,
            bias_V=bias_V,
            scale=plan.scale,
            softcap=plan.softcap,
        )
        needs_hidden, *needs_head = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            swept = sweep_chunks(
                student,
                plan,
                plan.weights_N,
                hidden=needs_hidden,
                head=plan.head_early and any(needs_head),
            )
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, swept.hidden_ND)
        ctx.plan = plan
        # handed out once and then forgotten, so that it can be scaled in place: a second backward
        # makes it anew
        ctx.head = None if swept.weight_VD is None else (swept.weight_VD, swept.bias_V)
        return swept.values_N

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a fused loss has no second derivative: its gradient is made in the forward"
            )
        (grad_N,), plan = grads, ctx.plan
        hidden_ND, weight_VD, bias_V, unit_ND = ctx.saved_tensors
        with torch.autocast(hidden_ND.device.type, enabled=False):
            grad_hidden_ND = (
                None if unit_ND is None else (unit_ND * grad_N[:, None]).to(hidden_ND.dtype)
            )
            if not any(ctx.needs_input_grad[1:3]):
                return grad_hidden_ND, None, None, None
            head, ctx.head = ctx.head, None
            multiple = None if head is None else _multiple(grad_N, plan.weights_N)
            if head is None or multiple is None:
                student = HeadInput(
                    hidden_ND=hidden_ND,
                    weight_VD=weight_VD,
                    bias_V=bias_V,
                    scale=plan.scale,
                    softcap=plan.softcap,
                )
                swept = sweep_chunks(student, plan, grad_N, hidden=False, head=True)
                head, multiple = (swept.weight_VD, swept.bias_V), 1.0
        made = [None if g is None else (g if multiple == 1.0 else g.mul_(multiple)) for g in head]
        weight = (
            made[0].to(weight_VD.dtype) if ctx.needs_input_grad[1] and made[0] is not None else None
        )
        bias = made[1].to(bias_V.dtype) if ctx.needs_input_grad[2] and made[1] is not None else None
        return grad_hidden_ND, weight, bias, None


def _multiple(grad_N: Tensor, weights_N: Tensor | None) -> float | None:
    """By what number the weights must be multiplied to give the gradient, up to rounding; None
    where there is none."""
    if grad_N.numel() == 0:
        return 1.0
    weights_N = torch.ones_like(grad_N) if weights_N is None else weights_N.to(grad_N.dtype)
    most = int(weights_N.abs().argmax())
    if weights_N[most] == 0:
        return None
    multiple_N = grad_N[most] / weights_N[most]
    near = (grad_N - weights_N * multiple_N).abs() <= 8 * torch.finfo(
        grad_N.dtype
    ).eps * grad_N.abs()
    return float(multiple_N) if bool(near.all()) else None


def sweep_chunks(
    student: HeadInput, plan: SweepSettings, weights_N: Tensor | None, *, hidden: bool, head: bool
) -> Swept:
    """One pass over all rows, a chunk at a time; `weights_N` weighs the rows in the head's gradient
    (None = all 1)."""
    near = student.hidden_ND
    work = torch.promote_types(
        torch.promote_types(near.dtype, student.weight_VD.dtype), torch.float32
    )
    rows, vocab = near.shape[0], plan.vocab
    own = Projection(student, plan, work, None)
    other = None if plan.teacher is None else Projection(plan.teacher, plan, work, own)
    others = (
        []
        if other is None
        else [other, *(Projection(side, plan, work, own) for side in plan.more or ())]
    )
    chunk = plan.chunk or chunk_rows(near.device.type, vocab, work.itemsize * (1 + len(others)))
    size = (min(chunk, rows), vocab)
    z_CV = torch.empty(size, dtype=work, device=near.device)
    t_KCV = torch.empty((len(others), *size), dtype=work, device=near.device)
    block = plan.kernel.block if near.device.type == "cpu" else max(plan.kernel.block, _CUDA_BLOCK)
    step = max(1, min(block // vocab, size[0]))
    scratch_SRV = torch.empty((plan.kernel.scratch, step, vocab), dtype=work, device=near.device)
    swept = Swept(values_N=torch.empty(rows, dtype=work, device=near.device))
    if hidden:
        swept.hidden_ND = torch.empty(near.shape, dtype=work, device=near.device)
    if head:
        swept.weight_VD = torch.empty(student.weight_VD.shape, dtype=work, device=near.device)
        swept.weight_VD[vocab if rows else 0 :].zero_()
        swept.bias_V = (
            None
            if student.bias_V is None
            else torch.zeros(student.bias_V.shape, dtype=work, device=near.device)
        )
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        z = z_CV[: part.stop - start]
        own.logits(part, z)
        for teacher, t_CV in zip(others, t_KCV, strict=True):
            teacher.logits(part, t_CV[: len(z)])
        t = (
            None
            if not others
            else t_KCV[:, : len(z)]
            if plan.more is not None
            else t_KCV[0, : len(z)]
        )
        ids_C = None if plan.ids_N is None else plan.ids_N[part]
        values_C, factor_C = run_blocks(plan, own, z, t, ids_C, scratch_SRV, want=hidden or head)
        swept.values_N[part] = values_C
        own.backward(
            swept, part, z, factor_C, None if weights_N is None else weights_N[part].to(work)
        )
    return swept


def chunk_rows(device: str, vocab: int, row_bytes: int) -> int:
    """How many rows of logits fit the buffers of a device; enough for a matrix product to be
    efficient, in any case.

    >>> chunk_rows("cpu", 151_936, 8)
    128
    """
    rows = _BUFFERS.get(device, _BUFFERS["cuda"]) // (vocab * row_bytes)
    return max(16, min(rows // 16 * 16, 4096)) if rows < 128 else min(rows // 128 * 128, 4096)


def run_blocks(
    plan: SweepSettings,
    own: Projection,
    z_CV: Tensor,
    t_CV: Tensor | None,
    ids_C: Tensor | None,
    scratch_SRV: Tensor,
    *,
    want: bool,
) -> tuple[Tensor, Tensor]:
    """The kernel over a chunk, a block of rows at a time: values, and factors of the gradient that
    now fills `z_CV`."""
    values, factors = [], []
    for first in range(0, len(z_CV), scratch_SRV.shape[1]):
        block = slice(first, first + scratch_SRV.shape[1])
        z_RV = z_CV[block]
        slope_RV = own.slope(z_RV) if want else None
        values_R, factor_R = plan.kernel.rows(
            z_RV,
            None if t_CV is None else t_CV[..., block, :],
            None if ids_C is None else ids_C[block],
            scratch_SRV[:, : len(z_RV)],
            want,
        )
        if slope_RV is not None:
            z_RV.mul_(slope_RV)
        values.append(values_R)
        factors.append(factor_R)
    return torch.cat(values), torch.cat(factors)


class Projection:
    """Logits of one side and their way back; holds the head in the precision of the products."""

    def __init__(
        self, side: HeadInput, plan: SweepSettings, work: torch.dtype, other: Projection | None
    ) -> None:
        self.side, self.vocab, self.work = side, plan.vocab, work
        self.unit = plan.kernel.unit / plan.temperature
        self.temperature = plan.temperature
        self.source = side.weight_VD
        self.mixed = work == torch.float32 and mixes(side.weight_VD, side.hidden_ND)
        if other is not None and self._same(other):
            self.weight_VD = other.weight_VD
        else:
            weight_VD = side.weight_VD.detach()[: self.vocab]
            small = weight_VD.shape[0] * weight_VD.shape[1] * work.itemsize <= _WHOLE
            self.weight_VD = weight_VD.to(work) if small and not self.mixed else weight_VD
        # what multiplies h W^T + b in one go
        self.inner = side.scale if side.softcap else side.scale * self.unit
        self.bias_V = (
            None
            if side.bias_V is None
            else side.bias_V.detach()[: self.vocab].to(work) * self.inner
        )

    def _same(self, other: Projection) -> bool:
        a, b = self.source, other.source
        return (
            a.data_ptr() == b.data_ptr()
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
        )

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        if self.weight_VD.dtype == self.work or self.mixed:
            yield slice(0, self.vocab), self.weight_VD
            return
        step = max(1, _TILE // (self.weight_VD.shape[1] * self.work.itemsize))
        for first in range(0, self.vocab, step):
            part = slice(first, min(first + step, self.vocab))
            yield part, self.weight_VD[part].to(self.work)

    def logits(self, part: slice, out_CV: Tensor) -> None:
        """Tempered logits of some rows, times the kernel's unit."""
        hidden_CD = self.side.hidden_ND.detach()[part]
        if self.mixed:
            mixed_product(hidden_CD, self.weight_VD.t(), out=out_CV).mul_(self.inner)
        else:
            hidden_CD = hidden_CD.to(self.work) * self.inner
            for tile, weight_TD in self._tiles():
                torch.mm(hidden_CD, weight_TD.t(), out=out_CV[:, tile])
        if self.bias_V is not None:
            out_CV.add_(self.bias_V)
        if self.side.softcap:
            out_CV.div_(self.side.softcap).tanh_().mul_(self.side.softcap * self.unit)

    def slope(self, z_RV: Tensor) -> Tensor | None:
        """The derivative of the soft cap at its own output; None without one."""
        if not self.side.softcap:
            return None
        return torch.square(z_RV / (self.side.softcap * self.unit)).neg_().add_(1.0)

    def backward(
        self, swept: Swept, part: slice, grad_CV: Tensor, factor_C: Tensor, weights_C: Tensor | None
    ) -> None:
        """Put the rows' gradients into `swept`: of the hidden states for each row, of the head
        summed with the weights."""
        factor_C = factor_C * (self.side.scale / self.temperature)
        if swept.hidden_ND is not None:
            out_CD = swept.hidden_ND[part]
            for tile, weight_TD in self._tiles():
                if self.mixed:
                    out_CD.copy_(split_product(grad_CV, weight_TD))
                elif tile.start == 0:
                    torch.mm(grad_CV[:, tile], weight_TD, out=out_CD)
                else:
                    out_CD.addmm_(grad_CV[:, tile], weight_TD)
            out_CD.mul_(factor_C[:, None])
        if swept.weight_VD is None:
            return
        if weights_C is not None:
            factor_C = factor_C * weights_C
        if swept.bias_V is not None:
            swept.bias_V[: self.vocab].addmv_(grad_CV.t(), factor_C)
        hidden_CD, out_VD = self.side.hidden_ND.detach()[part], swept.weight_VD[: self.vocab]
        if self.mixed:
            made_VD = split_product(grad_CV.mul_(factor_C[:, None]).t(), hidden_CD)
            out_VD.copy_(made_VD) if part.start == 0 else out_VD.add_(made_VD)
            return
        hidden_CD = hidden_CD.to(self.work) * factor_C[:, None]
        if part.start == 0:
            torch.mm(grad_CV.t(), hidden_CD, out=out_VD)
        else:
            out_VD.addmm_(grad_CV.t(), hidden_CD)


def mixes(weight_VD: Tensor, hidden_ND: Tensor) -> bool:
    """Whether the products are of bfloat16 numbers with sums in float32, for which a GPU has units
    and a CPU has not."""
    return weight_VD.is_cuda and weight_VD.dtype == hidden_ND.dtype == torch.bfloat16


def mixed_product(a_IJ: Tensor, b_JK: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The float32 product of two bfloat16 matrices: each product of numbers is exact, and nothing
    is rounded before the sum."""
    if a_IJ.is_cuda:
        return torch.mm(a_IJ, b_JK, out_dtype=torch.float32, out=out)
    return torch.mm(a_IJ.float(), b_JK.float(), out=out)


def split_product(a_IJ: Tensor, b_JK: Tensor) -> Tensor:
    """A float32 matrix times a bfloat16 one, by two mixed products: rounding the first to bfloat16
    would alone cost 2e-3."""
    high_IJ = a_IJ.bfloat16()
    low_IJ = (a_IJ - high_IJ).bfloat16()
    return mixed_product(high_IJ, b_JK).add_(mixed_product(low_IJ, b_JK))
