"""From hidden states and an output head to log-probs, entropies and divergences, without a matrix
of all logits.

Logits of N positions over a vocabulary V are the largest tensor of training by far. Here they exist
for one chunk of rows at a time, and the gradient is taken while they exist: a loss of one value per
row needs, for the gradient of its hidden states and of the head, nothing that the chunk does not
hold. So the matrix products are those of the logits (student, teacher) and of the two gradients,
and no others.

    values_N = fused_divergence(student_ND, head, teacher_ND, head, divergence="jsd", beta=0.5)
    (values_N.sum() / n).backward()

Values are unreduced and any gradient of them is answered exactly. The gradient of the hidden states
is kept per row. That of the head is summed over the rows in the forward pass, for rows weighted by
`weights_N`; where the gradient that comes back is a multiple of these weights it is used, otherwise
it is made anew, chunk by chunk. `head_gradient="backward"` makes it only there: for losses whose
gradient of each row is known only at the end (dpo, a clipped ratio). A head whose weight needs no
gradient costs nothing.

All sums run in float32 from inputs of any precision (float64 stays), also under autocast: bfloat16
logits drown small divergences. `fused_divergence` alone has kernels of its own for torch.compile
and for Triton; all other functions here run in eager torch everywhere. The teacher gets no
gradient. Its head may be another one, of another hidden size; only the vocabulary must agree.

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
    """What turns a hidden state into logits: cap(scale * (h W^T + b)), cap(z) = softcap * tanh(z /
    softcap); see models/forward.py."""

    @property
    def weight_VD(self) -> Tensor: ...
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
    """The divergence of each position, in nats, unreduced; conventions and names are those of
    losses/divergence.py.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.eye(2), bias_V=None, scale=1.0, softcap=None)
    >>> s, t = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(fused_divergence(s, head, t, head, divergence="jsd", beta=0.5).item(), 4)
    0.1141

    `backend`: "auto" is eager torch, and Triton on CUDA; "compile" is torch.compile, which needs a
    C++ compiler. Raises ValueError for shapes that do not match.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be within 0 and 1, not {beta}")
    if divergence not in ("jsd", "kl(student, teacher)", "kl(teacher, student)"):
        raise ValueError(f"unknown divergence {divergence!r}")
    weight = {"jsd": beta, "kl(student, teacher)": 1.0, "kl(teacher, student)": 0.0}[divergence]
    curvature = 1.0 if raw or weight in (0.0, 1.0) else 1.0 / (weight * (1.0 - weight))
    triton_can = student_ND.is_cuda and torch.float64 not in (
        student_ND.dtype,
        head.weight_VD.dtype,
    )
    kernel = _divergence_kernel(weight, curvature, backend, triton_can=triton_can)
    return _fused(
        kernel,
        student_ND,
        head,
        teacher_ND,
        teacher_head,
        None,
        temperature,
        vocab,
        weights_N,
        head_gradient,
        chunk,
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
    return _fused(
        eager.logprob,
        hidden_ND,
        head,
        None,
        None,
        ids_N,
        temperature,
        vocab,
        weights_N,
        head_gradient,
        chunk,
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
    return _fused(
        eager.entropy,
        hidden_ND,
        head,
        None,
        None,
        None,
        temperature,
        vocab,
        weights_N,
        head_gradient,
        chunk,
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
    """Any function of rows of logits, `fn(student_RV[, teacher_RV][, ids_R]) -> values_R`, on a few
    rows at a time.

    >>> from types import SimpleNamespace
    >>> head = SimpleNamespace(weight_VD=torch.eye(2), bias_V=None, scale=1.0, softcap=None)
    >>> fused_rows(lambda z_RV: z_RV.logsumexp(-1), torch.zeros(1, 2), head).tolist()
    [0.6931471824645996]

    `fn` gets as many of the three as are given, in this order, and must treat each row on its own:
    how many it sees at once is not fixed. Its gradient is taken by autograd in the forward pass.
    `temperature` divides the logits before `fn` sees them. `teachers` are several models without
    gradient, (hidden states, head) each: `fn` then gets their logits as one tensor (K, R, V).
    """
    kernel, more = eager.autograd_rows(fn), None
    if teachers:
        if teacher_ND is not None:
            raise ValueError("give teacher_ND and its head, or teachers, not both")
        (teacher_ND, teacher_head), *rest = teachers
        more = tuple(_side(own_ND, own_head).detached() for own_ND, own_head in rest)
    return _fused(
        kernel,
        student_ND,
        head,
        teacher_ND,
        teacher_head,
        ids_N,
        temperature,
        vocab,
        weights_N,
        head_gradient,
        chunk,
        more,
    )


def _divergence_kernel(
    beta: float, curvature: float, backend: Backend, *, triton_can: bool
) -> RowKernel:
    """Triton where the tensors are float32 on CUDA and it is installed; elsewhere eager torch,
    which needs no compiler."""
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


def _fused(
    kernel: RowKernel,
    student_ND: Tensor,
    head: HeadLike,
    teacher_ND: Tensor | None,
    teacher_head: HeadLike | None,
    ids_N: Tensor | None,
    temperature: float,
    vocab: int | None,
    weights_N: Tensor | None,
    head_gradient: HeadGradient,
    chunk: int | None,
    more: tuple[HeadInput, ...] | None = None,
) -> Tensor:
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    student = _side(student_ND, head)
    teacher = None
    if teacher_ND is not None:
        if teacher_head is None:
            raise ValueError("teacher_ND is given without teacher_head")
        teacher = _side(teacher_ND, teacher_head).detached()
        for own_ND in (teacher_ND, *(side.hidden_ND for side in more or ())):
            if own_ND.shape[0] != student_ND.shape[0]:
                raise ValueError(
                    f"{student_ND.shape[0]} student rows and {own_ND.shape[0]} teacher rows do not"
                    " match"
                )
    vocab = _vocab(vocab, student, teacher, *(more or ()))
    _check_ids(ids_N, rows=student_ND.shape[0], vocab=vocab)
    if weights_N is not None and weights_N.shape != student_ND.shape[:1]:
        raise ValueError(
            f"weights {tuple(weights_N.shape)} and {student_ND.shape[0]} rows do not match"
        )
    plan = SweepSettings(
        kernel=kernel,
        teacher=teacher,
        more=more,
        ids_N=None if ids_N is None else ids_N.long(),
        weights_N=None if weights_N is None else weights_N.detach(),
        scale=float(head.scale),
        softcap=head.softcap,
        temperature=temperature,
        vocab=vocab,
        chunk=chunk,
        head_early=head_gradient == "forward",
    )
    return apply(student, plan)


def _side(hidden_ND: Tensor, head: HeadLike) -> HeadInput:
    weight_VD, bias_V = head.weight_VD, head.bias_V
    if hidden_ND.ndim != 2 or weight_VD.ndim != 2 or hidden_ND.shape[1] != weight_VD.shape[1]:
        raise ValueError(
            f"hidden states {tuple(hidden_ND.shape)} and head {tuple(weight_VD.shape)} do not match"
        )
    if bias_V is not None and bias_V.shape != weight_VD.shape[:1]:
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


def _vocab(vocab: int | None, student: HeadInput, *teachers: HeadInput | None) -> int:
    sizes = [side.weight_VD.shape[0] for side in (student, *teachers) if side is not None]
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
