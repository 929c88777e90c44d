"""The loop over rows behind losses/fused.py, and its autograd function.

Rows are taken in *chunks*, whose logits fit a buffer, and a chunk in *blocks*, which fit the
processor's cache (losses/chunk_size.py). For each chunk:

    logits     hidden_CD @ weight_VD.T of student and teachers
    kernel     block by block: a value per row; the gradient replaces the student's logits
    gradients  grad_CV @ weight_VD for the hidden states; grad_CV.T @ hidden_CD for the head

Shapes: N positions, C rows of a chunk, R rows of a block, S scratch buffers, D hidden size, V
vocabulary, K teachers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from composer_replication.losses.chunk_size import chunk_rows
from composer_replication.losses.fused_eager import RowKernel

# A head of lower precision is converted to float32 once if the copy has at most so many bytes, else
# in tiles of the vocabulary.
_MAX_HEAD_COPY = 512 << 20
_TILE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInput:
    """The hidden states of one model and its output head; without a weight they are logits
    already."""

    hidden_ND: Tensor
    weight_VD: Tensor | None
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    @property
    def vocab(self) -> int:
        """The number of logits."""
        return self.hidden_ND.shape[1] if self.weight_VD is None else self.weight_VD.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of hidden states and weight together."""
        hidden = self.hidden_ND.dtype
        return (
            hidden if self.weight_VD is None else torch.promote_types(hidden, self.weight_VD.dtype)
        )

    def detached(self) -> HeadInput:
        """The same tensors without gradient."""
        return replace(
            self,
            hidden_ND=self.hidden_ND.detach(),
            weight_VD=None if self.weight_VD is None else self.weight_VD.detach(),
            bias_V=None if self.bias_V is None else self.bias_V.detach(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Everything a sweep needs except the student's tensors.

    With `stack_teachers` the kernel gets the logits of all teachers as one tensor (K, R, V), even
    if there is only one; otherwise those of the one teacher, if any, as (R, V). `head_early`: the
    head's gradient is computed in the forward, for rows weighted by `weights_N` (None = all 1).
    """

    kernel: RowKernel
    teachers: tuple[HeadInput, ...]
    stack_teachers: bool
    ids_N: Tensor | None
    weights_N: Tensor | None
    scale: float
    softcap: float | None
    temperature: float
    vocab: int
    chunk: int | None
    head_early: bool


@dataclass(slots=True, kw_only=True)
class SweepResult:
    """The values and the requested gradients.

    `hidden_ND` is the gradient of each row's value; `weight_VD` and `bias_V` are gradients of the
    weighted sum over rows.
    """

    values_N: Tensor
    hidden_ND: Tensor | None = None
    weight_VD: Tensor | None = None
    bias_V: Tensor | None = None


def apply(student: HeadInput, settings: SweepSettings) -> Tensor:
    """The values of a sweep, differentiable in the student's hidden states, weight and bias."""
    tensors = (student.hidden_ND, student.weight_VD, student.bias_V)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Fused.apply(*tensors, settings)
    with torch.autocast(student.hidden_ND.device.type, enabled=False):
        return sweep_chunks(student.detached(), settings, None, hidden=False, head=False).values_N


class _Fused(torch.autograd.Function):
    """The sweep for autograd: forward computes the gradients too, backward only scales them.

    The gradient of the hidden states is kept per row, so any incoming gradient can scale it. That
    of the head is a sum over rows, weighted by `weights_N`: if the incoming gradient is not a
    multiple of these weights, backward computes it again. `apply` takes positional arguments only:
    hidden_ND, weight_VD, bias_V, settings.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor | None,
        bias_V: Tensor | None,
        settings: SweepSettings,
    ) -> Tensor:
        student = HeadInput(
            hidden_ND=hidden_ND,
            weight_VD=weight_VD,
            bias_V=bias_V,
            scale=settings.scale,
            softcap=settings.softcap,
        )
        needs_hidden, *needs_head = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            result = sweep_chunks(
                student,
                settings,
                settings.weights_N,
                hidden=needs_hidden,
                head=settings.head_early and any(needs_head),
            )
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, result.hidden_ND)
        ctx.settings = settings
        # the first backward takes these and scales them in place; a second one computes them again
        ctx.head = None if result.weight_VD is None else (result.weight_VD, result.bias_V)
        return result.values_N

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a fused loss has no second derivative: its gradient is made in the forward"
            )
        (grad_N,), settings = grads, ctx.settings
        hidden_ND, weight_VD, bias_V, row_grad_ND = ctx.saved_tensors
        with torch.autocast(hidden_ND.device.type, enabled=False):
            grad_hidden_ND = (
                None if row_grad_ND is None else (row_grad_ND * grad_N[:, None]).to(hidden_ND.dtype)
            )
            if not any(ctx.needs_input_grad[1:3]):
                return grad_hidden_ND, None, None, None
            head, ctx.head = ctx.head, None
            scale = None if head is None else _multiple(grad_N, settings.weights_N)
            if head is None or scale is None:
                student = HeadInput(
                    hidden_ND=hidden_ND,
                    weight_VD=weight_VD,
                    bias_V=bias_V,
                    scale=settings.scale,
                    softcap=settings.softcap,
                )
                result = sweep_chunks(student, settings, grad_N, hidden=False, head=True)
                head, scale = (result.weight_VD, result.bias_V), 1.0
        head_grads = [None if g is None else (g if scale == 1.0 else g.mul_(scale)) for g in head]
        weight = (
            head_grads[0].to(weight_VD.dtype)
            if ctx.needs_input_grad[1] and head_grads[0] is not None
            else None
        )
        bias = (
            head_grads[1].to(bias_V.dtype)
            if ctx.needs_input_grad[2] and head_grads[1] is not None
            else None
        )
        return grad_hidden_ND, weight, bias, None


def _multiple(grad_N: Tensor, weights_N: Tensor | None) -> float | None:
    """The number c with grad_N = c * weights_N up to rounding; None if there is none."""
    if grad_N.numel() == 0:
        return 1.0
    weights_N = torch.ones_like(grad_N) if weights_N is None else weights_N.to(grad_N.dtype)
    largest = int(weights_N.abs().argmax())
    if weights_N[largest] == 0:
        return None
    multiple_N = grad_N[largest] / weights_N[largest]
    matches_N = (grad_N - weights_N * multiple_N).abs() <= 8 * torch.finfo(
        grad_N.dtype
    ).eps * grad_N.abs()
    return float(multiple_N) if bool(matches_N.all()) else None


def sweep_chunks(
    student: HeadInput,
    settings: SweepSettings,
    weights_N: Tensor | None,
    *,
    hidden: bool,
    head: bool,
) -> SweepResult:
    """One pass over all rows, a chunk at a time.

    `weights_N` weighs the rows in the head's gradient (None = all 1).
    """
    # 1. Projections; a teacher that shares the student's head shares its float32 copy, too.
    hidden_ND = student.hidden_ND
    work = torch.promote_types(student.dtype, torch.float32)
    rows, vocab = hidden_ND.shape[0], settings.vocab
    student_projection = Projection(student, settings, work, None)
    teacher_projections = [
        Projection(teacher, settings, work, student_projection) for teacher in settings.teachers
    ]
    chunk = settings.chunk or chunk_rows(
        hidden_ND.device.type, vocab, work.itemsize * (1 + len(teacher_projections))
    )
    # 2. Buffers, allocated once and reused by every chunk.
    shape = (min(chunk, rows), vocab)
    z_CV = torch.empty(shape, dtype=work, device=hidden_ND.device)
    t_KCV = torch.empty((len(teacher_projections), *shape), dtype=work, device=hidden_ND.device)
    block = (
        settings.kernel.block
        if hidden_ND.device.type == "cpu"
        else max(settings.kernel.block, settings.kernel.cuda_block)
    )
    block_rows = max(1, min(block // vocab, shape[0]))
    scratch_SRV = torch.empty(
        (settings.kernel.scratch, block_rows, vocab), dtype=work, device=hidden_ND.device
    )
    result = SweepResult(values_N=torch.empty(rows, dtype=work, device=hidden_ND.device))
    if hidden:
        result.hidden_ND = torch.empty(hidden_ND.shape, dtype=work, device=hidden_ND.device)
    if head and student.weight_VD is not None:
        result.weight_VD = torch.empty(student.weight_VD.shape, dtype=work, device=hidden_ND.device)
        result.weight_VD[vocab if rows else 0 :].zero_()
        result.bias_V = (
            None
            if student.bias_V is None
            else torch.zeros(student.bias_V.shape, dtype=work, device=hidden_ND.device)
        )
    # 3. Chunk by chunk: logits, row mathematics, gradients. The logits' buffer ends up holding
    #    their gradient.
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        chunk_z = z_CV[: part.stop - start]
        student_projection.logits(part, chunk_z)
        for teacher, t_CV in zip(teacher_projections, t_KCV, strict=True):
            teacher.logits(part, t_CV[: len(chunk_z)])
        chunk_t = None
        if teacher_projections:
            chunk_t = (
                t_KCV[:, : len(chunk_z)] if settings.stack_teachers else t_KCV[0, : len(chunk_z)]
            )
        ids_C = None if settings.ids_N is None else settings.ids_N[part]
        values_C, factor_C = run_blocks(
            settings,
            student_projection,
            z_CV=chunk_z,
            t_CV=chunk_t,
            ids_C=ids_C,
            scratch_SRV=scratch_SRV,
            want_gradient=hidden or head,
        )
        result.values_N[part] = values_C
        student_projection.backward(
            result,
            part,
            grad_CV=chunk_z,
            factor_C=factor_C,
            weights_C=None if weights_N is None else weights_N[part].to(work),
        )
    return result


def run_blocks(
    settings: SweepSettings,
    projection: Projection,
    *,
    z_CV: Tensor,
    t_CV: Tensor | None,
    ids_C: Tensor | None,
    scratch_SRV: Tensor,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Run the kernel over a chunk, block by block: values, and factors of the gradient.

    The gradient itself replaces the logits in `z_CV`.
    """
    values, factors = [], []
    for first in range(0, len(z_CV), scratch_SRV.shape[1]):
        block = slice(first, first + scratch_SRV.shape[1])
        z_RV = z_CV[block]
        slope_RV = projection.slope(z_RV) if want_gradient else None
        values_R, factor_R = settings.kernel.rows(
            z_RV,
            None if t_CV is None else t_CV[..., block, :],
            None if ids_C is None else ids_C[block],
            scratch_SRV[:, : len(z_RV)],
            want_gradient,
        )
        if slope_RV is not None:
            z_RV.mul_(slope_RV)
        values.append(values_R)
        factors.append(factor_R)
    return torch.cat(values), torch.cat(factors)


class Projection:
    """The logits of one model and their backward; holds the head in the precision of the products.

    `work` is the precision of all sums. `mixed`: bfloat16 products are summed in float32 by the
    GPU, so the head stays in bfloat16. `shared` is the student's projection: a teacher with the
    same head uses its float32 copy.
    """

    def __init__(
        self, side: HeadInput, settings: SweepSettings, work: torch.dtype, shared: Projection | None
    ) -> None:
        self.side, self.vocab, self.work = side, settings.vocab, work
        self.unit = settings.kernel.unit / settings.temperature
        self.temperature = settings.temperature
        self.source = side.weight_VD
        self.mixed = work == torch.float32 and mixes(side.weight_VD, side.hidden_ND)
        if side.weight_VD is None:
            self.weight_VD = None
        elif shared is not None and self._same(shared):
            self.weight_VD = shared.weight_VD
        else:
            weight_VD = side.weight_VD.detach()[: self.vocab]
            fits = weight_VD.shape[0] * weight_VD.shape[1] * work.itemsize <= _MAX_HEAD_COPY
            self.weight_VD = weight_VD.to(work) if fits and not self.mixed else weight_VD
        # the factor of h W^T + b; with a soft cap the kernel's unit comes after the tanh
        self.inner = side.scale if side.softcap else side.scale * self.unit
        self.bias_V = (
            None
            if side.bias_V is None
            else side.bias_V.detach()[: self.vocab].to(work) * self.inner
        )

    def _same(self, sibling: Projection) -> bool:
        """Whether both heads are the same tensor."""
        a, b = self.source, sibling.source
        return (
            a is not None
            and b is not None
            and a.data_ptr() == b.data_ptr()
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
        )

    def _tiles(self, weight_VD: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Tiles of the vocabulary with their rows of the head, in the precision of the products."""
        if weight_VD.dtype == self.work or self.mixed:
            yield slice(0, self.vocab), weight_VD
            return
        step = max(1, _TILE // (weight_VD.shape[1] * self.work.itemsize))
        for first in range(0, self.vocab, step):
            part = slice(first, min(first + step, self.vocab))
            yield part, weight_VD[part].to(self.work)

    def logits(self, part: slice, out_CV: Tensor) -> None:
        """Write the tempered logits of some rows, times the kernel's unit, into `out_CV`."""
        hidden_CD = self.side.hidden_ND.detach()[part]
        if self.weight_VD is None:
            out_CV.copy_(hidden_CD[:, : self.vocab]).mul_(self.inner)
        elif self.mixed:
            mixed_product(hidden_CD, self.weight_VD.t(), out=out_CV).mul_(self.inner)
        else:
            hidden_CD = hidden_CD.to(self.work) * self.inner
            for tile, weight_TD in self._tiles(self.weight_VD):
                torch.mm(hidden_CD, weight_TD.t(), out=out_CV[:, tile])
        if self.bias_V is not None:
            out_CV.add_(self.bias_V)
        if self.side.softcap:
            out_CV.div_(self.side.softcap).tanh_().mul_(self.side.softcap * self.unit)

    def slope(self, z_RV: Tensor) -> Tensor | None:
        """The derivative of the soft cap at its own output; None without a soft cap."""
        if not self.side.softcap:
            return None
        return torch.square(z_RV / (self.side.softcap * self.unit)).neg_().add_(1.0)

    def backward(
        self,
        result: SweepResult,
        part: slice,
        *,
        grad_CV: Tensor,
        factor_C: Tensor,
        weights_C: Tensor | None,
    ) -> None:
        """Write the rows' gradients into `result`.

        Those of the hidden states are kept per row, those of the head are summed with the weights.
        """
        factor_C = factor_C * (self.side.scale / self.temperature)
        if result.hidden_ND is not None:
            out_CD = result.hidden_ND[part]
            if self.weight_VD is None:
                out_CD[:, : self.vocab] = grad_CV
                out_CD[:, self.vocab :].zero_()
            for tile, weight_TD in () if self.weight_VD is None else self._tiles(self.weight_VD):
                if self.mixed:
                    out_CD.copy_(split_product(grad_CV, weight_TD))
                elif tile.start == 0:
                    torch.mm(grad_CV[:, tile], weight_TD, out=out_CD)
                else:
                    out_CD.addmm_(grad_CV[:, tile], weight_TD)
            out_CD.mul_(factor_C[:, None])
        if result.weight_VD is None:
            return
        if weights_C is not None:
            factor_C = factor_C * weights_C
        if result.bias_V is not None:
            result.bias_V[: self.vocab].addmv_(grad_CV.t(), factor_C)
        hidden_CD, out_VD = self.side.hidden_ND.detach()[part], result.weight_VD[: self.vocab]
        if self.mixed:
            chunk_grad_VD = split_product(grad_CV.mul_(factor_C[:, None]).t(), hidden_CD)
            out_VD.copy_(chunk_grad_VD) if part.start == 0 else out_VD.add_(chunk_grad_VD)
            return
        hidden_CD = hidden_CD.to(self.work) * factor_C[:, None]
        if part.start == 0:
            torch.mm(grad_CV.t(), hidden_CD, out=out_VD)
        else:
            out_VD.addmm_(grad_CV.t(), hidden_CD)


def mixes(weight_VD: Tensor | None, hidden_ND: Tensor) -> bool:
    """Whether the products are of bfloat16 matrices with float32 sums, as GPUs compute them."""
    return (
        weight_VD is not None
        and weight_VD.is_cuda
        and weight_VD.dtype == hidden_ND.dtype == torch.bfloat16
    )


def mixed_product(a_IJ: Tensor, b_JK: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The float32 product of two bfloat16 matrices: exact products, no rounding before the sum."""
    if a_IJ.is_cuda:
        return torch.mm(a_IJ, b_JK, out_dtype=torch.float32, out=out)
    return torch.mm(a_IJ.float(), b_JK.float(), out=out)


def split_product(a_IJ: Tensor, b_JK: Tensor) -> Tensor:
    """A float32 matrix times a bfloat16 one, by two mixed products.

    Rounding the float32 matrix to bfloat16 alone would cost 2e-3.
    """
    high_IJ = a_IJ.bfloat16()
    low_IJ = (a_IJ - high_IJ).bfloat16()
    return mixed_product(high_IJ, b_JK).add_(mixed_product(low_IJ, b_JK))
