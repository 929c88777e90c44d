"""Log-probs, entropies and divergences from hidden states and a head, without (N, V) logits.

Logits of N positions over a vocabulary V would be by far the largest tensor of training. Here they
exist for a chunk of rows at a time, and the gradient is taken while they exist: as each row has a
value of its own, its gradient needs nothing outside the chunk. The only matrix products are those
of the logits (student and teacher) and of the gradients of hidden states and head. (Liger-Kernel's
fused linear losses and Apple's cut cross-entropy follow the same idea.)

    values_N = fused_divergence(student_ND, head, teacher_ND, head, divergence="jsd", beta=0.5)
    (values_N.sum() / n).backward()

Values are unreduced, and the gradient is exact for any incoming gradient. The gradient of the
hidden states is kept per row. The gradient of the head is summed over the rows in the forward pass,
with the rows weighted by `weights_N`. If the incoming gradient is a multiple of these weights, that
sum is used; otherwise it is computed again, chunk by chunk. `head_gradient="backward"` computes it
only there: for losses whose gradient per row is known only at the end (dpo, a clipped ratio). A
head whose weight needs no gradient costs nothing.

All sums run in float32 for inputs of any precision (float64 stays), also under autocast: bfloat16
logits drown small divergences. Only `fused_divergence` has kernels for torch.compile and for
Triton; all other functions run in eager torch everywhere. The teacher gets no gradient. Its head
may be a different one, of another hidden size; only the vocabulary must agree.

Shapes: N positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from composer_replication.losses import fused_eager as eager
from composer_replication.losses.fused_eager import RowKernel
from composer_replication.losses.fused_sweep import HeadInput, SweepSettings, apply
from composer_replication.losses.hint_loss import Divergence

Backend = Literal["auto", "eager", "compile", "triton"]
HeadGradient = Literal["forward", "backward"]


class HeadLike(Protocol):
    """An output head: cap(scale * (h W^T + b)), cap(z) = softcap * tanh(z / softcap).

    Without a weight, the hidden states are the logits already (D = V), as a backend hands them over
    that projects by itself. models/forward.py has the implementation; losses must not import
    models.
    """

    @property
    def weight_VD(self) -> Tensor | None: ...
    @property
    def bias_V(self) -> Tensor | None: ...
    @property
    def scale(self) -> float: ...
    @property
    def softcap(self) -> float | None: ...


def fused_divergence(
    student_ND: Tensor,
    head: HeadLike,
    teacher_ND: Tensor,
    teacher_head: HeadLike,
    *,
    divergence: Divergence,
    beta: float = 0.5,
    temperature: float = 1.0,
    raw: bool = False,
    vocab: int | None = None,
    weights_N: Tensor | None = None,
    head_gradient: HeadGradient = "forward",
    chunk: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """The divergence of each position, in nats, unreduced; conventions of losses/divergence.py.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.eye(2), bias_V=None, scale=1.0, softcap=None)
    >>> s, t = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(fused_divergence(s, head, t, head, divergence="jsd", beta=0.5).item(), 4)
    0.1141

    `backend`: "auto" is eager torch, or Triton on CUDA; "compile" is torch.compile, which needs a
    C++ compiler. Raises ValueError if shapes do not match.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be within 0 and 1, not {beta}")
    if divergence not in ("jsd", "kl(student, teacher)", "kl(teacher, student)"):
        raise ValueError(f"unknown divergence {divergence!r}")
    weight = {"jsd": beta, "kl(student, teacher)": 1.0, "kl(teacher, student)": 0.0}[divergence]
    curvature = 1.0 if raw or weight in (0.0, 1.0) else 1.0 / (weight * (1.0 - weight))
    dtypes = [t.dtype for t in (student_ND, head.weight_VD) if t is not None]
    triton_can = student_ND.is_cuda and torch.float64 not in dtypes
    kernel = _divergence_kernel(weight, curvature, backend, triton_can=triton_can)
    return _fused_values(
        kernel,
        student_ND,
        head,
        teachers=[(teacher_ND, teacher_head)],
        temperature=temperature,
        vocab=vocab,
        weights_N=weights_N,
        head_gradient=head_gradient,
        chunk=chunk,
    )


def fused_logprobs(
    hidden_ND: Tensor,
    head: HeadLike,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    weights_N: Tensor | None = None,
    head_gradient: HeadGradient = "forward",
    chunk: int | None = None,
) -> Tensor:
    """Log-probability of each token, in nats, at the temperature.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.zeros(2, 3), bias_V=None, scale=1.0, softcap=None)
    >>> fused_logprobs(torch.ones(1, 3), head, torch.tensor([1])).tolist()
    [-0.6931471824645996]

    Raises ValueError if an id lies outside the vocabulary.
    """
    return _fused_values(
        eager.logprob,
        hidden_ND,
        head,
        ids_N=ids_N,
        temperature=temperature,
        vocab=vocab,
        weights_N=weights_N,
        head_gradient=head_gradient,
        chunk=chunk,
    )


def fused_entropy(
    hidden_ND: Tensor,
    head: HeadLike,
    *,
    temperature: float = 1.0,
    vocab: int | None = None,
    weights_N: Tensor | None = None,
    head_gradient: HeadGradient = "forward",
    chunk: int | None = None,
) -> Tensor:
    """Entropy of the next-token distribution at each position, in nats.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.zeros(2, 3), bias_V=None, scale=1.0, softcap=None)
    >>> round(fused_entropy(torch.ones(1, 3), head).item(), 6)
    0.693147
    """
    return _fused_values(
        eager.entropy,
        hidden_ND,
        head,
        temperature=temperature,
        vocab=vocab,
        weights_N=weights_N,
        head_gradient=head_gradient,
        chunk=chunk,
    )


def fused_rows(
    fn: Callable[..., Tensor],
    student_ND: Tensor,
    head: HeadLike,
    teacher_ND: Tensor | None = None,
    teacher_head: HeadLike | None = None,
    *,
    teachers: Sequence[tuple[Tensor, HeadLike]] = (),
    ids_N: Tensor | None = None,
    temperature: float = 1.0,
    vocab: int | None = None,
    weights_N: Tensor | None = None,
    head_gradient: HeadGradient = "forward",
    chunk: int | None = None,
) -> Tensor:
    """Any function of rows of logits, `fn(student_RV[, teacher_RV][, ids_R]) -> values_R`.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.eye(2), bias_V=None, scale=1.0, softcap=None)
    >>> fused_rows(lambda z_RV: z_RV.logsumexp(-1), torch.zeros(1, 2), head).tolist()
    [0.6931471824645996]

    `fn` gets as many of the three as are passed here, in this order, and must treat each row on its
    own: how many rows it sees at once is not fixed. Autograd takes its gradient in the forward
    pass. `temperature` divides the logits before `fn` sees them. `teachers` are several models
    without gradient, (hidden states, head) each: `fn` then gets their logits as one tensor (K, R,
    V).
    """
    if teachers and teacher_ND is not None:
        raise ValueError("give teacher_ND and its head, or teachers, not both")
    stack_teachers = bool(teachers)
    if teacher_ND is not None:
        if teacher_head is None:
            raise ValueError("teacher_ND is given without teacher_head")
        teachers = [(teacher_ND, teacher_head)]
    return _fused_values(
        eager.autograd_rows(fn),
        student_ND,
        head,
        teachers=teachers,
        stack_teachers=stack_teachers,
        ids_N=ids_N,
        temperature=temperature,
        vocab=vocab,
        weights_N=weights_N,
        head_gradient=head_gradient,
        chunk=chunk,
    )


def _divergence_kernel(
    beta: float, curvature: float, backend: Backend, *, triton_can: bool
) -> RowKernel:
    """Triton if it is installed and the tensors are float32 on CUDA; otherwise eager torch."""
    if backend == "triton" or (
        backend == "auto" and triton_can and importlib.util.find_spec("triton") is not None
    ):
        if not triton_can:
            raise ValueError("the Triton kernel is for CUDA and for sums in float32")
        from composer_replication.losses import fused_triton

        return fused_triton.triton_divergence(beta, curvature)
    if backend == "compile":
        from composer_replication.losses import fused_compiled

        return fused_compiled.compiled_divergence(beta, curvature)
    return eager.eager_divergence(beta, curvature)


def _fused_values(
    kernel: RowKernel,
    student_ND: Tensor,
    head: HeadLike,
    *,
    teachers: Sequence[tuple[Tensor, HeadLike]] = (),
    stack_teachers: bool = False,
    ids_N: Tensor | None = None,
    temperature: float,
    vocab: int | None,
    weights_N: Tensor | None,
    head_gradient: HeadGradient,
    chunk: int | None,
) -> Tensor:
    """Check the inputs of a fused function and run its kernel over all rows."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    student = _side(student_ND, head)
    teacher_sides = tuple(_side(hidden_ND, its_head).detached() for hidden_ND, its_head in teachers)
    for side in teacher_sides:
        if side.hidden_ND.shape[0] != student_ND.shape[0]:
            raise ValueError(
                f"{student_ND.shape[0]} student rows and {side.hidden_ND.shape[0]} teacher rows do"
                " not match"
            )
    vocab = _vocab(vocab, student, *teacher_sides)
    _check_ids(ids_N, rows=student_ND.shape[0], vocab=vocab)
    if weights_N is not None and weights_N.shape != student_ND.shape[:1]:
        raise ValueError(
            f"weights {tuple(weights_N.shape)} and {student_ND.shape[0]} rows do not match"
        )
    settings = SweepSettings(
        kernel=kernel,
        teachers=teacher_sides,
        stack_teachers=stack_teachers,
        ids_N=None if ids_N is None else ids_N.long(),
        weights_N=None if weights_N is None else weights_N.detach(),
        scale=float(head.scale),
        softcap=head.softcap,
        temperature=temperature,
        vocab=vocab,
        chunk=chunk,
        head_early=head_gradient == "forward",
    )
    return apply(student, settings)


def _side(hidden_ND: Tensor, head: HeadLike) -> HeadInput:
    weight_VD, bias_V = head.weight_VD, head.bias_V
    if weight_VD is None and (bias_V is not None or hidden_ND.ndim != 2):
        raise ValueError(f"logits {tuple(hidden_ND.shape)} are not (N, V), or have a bias to add")
    if weight_VD is not None and (
        hidden_ND.ndim != 2 or weight_VD.ndim != 2 or hidden_ND.shape[1] != weight_VD.shape[1]
    ):
        raise ValueError(
            f"hidden states {tuple(hidden_ND.shape)} and head {tuple(weight_VD.shape)} do not match"
        )
    if weight_VD is not None and bias_V is not None and bias_V.shape != weight_VD.shape[:1]:
        raise ValueError(
            f"bias {tuple(bias_V.shape)} and head {tuple(weight_VD.shape)} do not match"
        )
    return HeadInput(
        hidden_ND=hidden_ND,
        weight_VD=weight_VD,
        bias_V=bias_V,
        scale=float(head.scale),
        softcap=head.softcap,
    )


def _vocab(vocab: int | None, *sides: HeadInput) -> int:
    sizes = [side.vocab for side in sides]
    if vocab is None and len(set(sizes)) > 1:
        raise ValueError(
            f"student and teacher have {sizes[0]} and {sizes[1]} logits; say with vocab= how many"
            " of them are tokens of both"
        )
    if vocab is not None and not 0 < vocab <= min(sizes):
        raise ValueError(f"vocab {vocab} does not lie within the heads' {sizes}")
    return vocab if vocab is not None else sizes[0]


def _check_ids(ids_N: Tensor | None, *, rows: int, vocab: int) -> None:
    if ids_N is None:
        return
    if ids_N.shape != (rows,):
        raise ValueError(f"ids {tuple(ids_N.shape)} and {rows} rows do not match")
    if ids_N.numel() and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < vocab:
        raise ValueError(
            f"token ids {int(ids_N.min())}..{int(ids_N.max())} lie outside a vocabulary of {vocab}"
        )
