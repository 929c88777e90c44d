"""TAID (arXiv 2501.16937): the target moves from the student's own logits to the teacher's.

    q = softmax((1 - t) sg(z_s) + t z_t)        value = -sum_v q log p_s

This is a cross-entropy, as published, not a KL: at t = 0 the value is the student's entropy and the
gradient 0; at t = 1 it is the cross-entropy with the teacher. losses/schedules.py moves t. The
published code interpolates in the logits' own precision; here it is float32 at least. Shapes: N
tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.distances import teacher_cross_entropy
from composer_replication.losses.divergence import match_logits


def taid_target(
    student_NV: Tensor, teacher_NV: Tensor, *, t: float | Tensor, vocab: int | None = None
) -> Tensor:
    """Logits of the mixture that TAID distils from, without gradient.

    >>> taid_target(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]]), t=0.5).tolist()
    [[0.0, 0.5]]

    A column that is -inf on either side is -inf in the mixture, unless that side has share 0. A row
    in which no column is left keeps the student's logits as its target. t may be a tensor of one
    number, as in the authors' code.
    """
    t = share_of(t)
    student_NV, teacher_NV = match_logits(student_NV, teacher_NV, vocab=vocab)
    work = torch.promote_types(
        torch.promote_types(student_NV.dtype, teacher_NV.dtype), torch.float32
    )
    student_NV, teacher_NV = student_NV.detach().to(work), teacher_NV.to(work)
    if t in (0.0, 1.0):  # 0 * -inf would be nan
        return teacher_NV if t == 1.0 else student_NV
    mixed_NV = (1.0 - t) * student_NV + t * teacher_NV
    is_empty_N1 = (mixed_NV == -torch.inf).all(dim=-1, keepdim=True)
    return torch.where(is_empty_N1, student_NV, mixed_NV)


def share_of(t: float | Tensor) -> float:
    """t as a plain number; raises ValueError unless it is a number within 0 and 1.

    >>> share_of(torch.tensor(0.5))
    0.5
    """
    number = t.item() if isinstance(t, Tensor) and t.ndim == 0 else t
    if not isinstance(number, float | int) or not 0.0 <= number <= 1.0:
        raise ValueError(f"t must be a number within 0 and 1, not {t!r}")
    return float(number)


def taid(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    t: float | Tensor,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """TAID's loss per token: cross-entropy of the student with the mixture at t.

    >>> z = torch.tensor([[0.0, 0.0]]); z2 = torch.tensor([[0.0, 2.0]])
    >>> round(taid(z2, z, t=0.0).item(), 4), round(taid(z2, z, t=1.0).item(), 4)
    (0.3653, 1.1269)

    The first is the student's entropy, the second the whole cross-entropy. `temperature` divides
    the student's and the mixture's logits. Columns in which the student has -inf are left out.
    """
    target_NV = taid_target(student_NV, teacher_NV, t=t, vocab=vocab)
    student_NV = student_NV if vocab is None else student_NV[..., :vocab]
    return teacher_cross_entropy(student_NV, target_NV, temperature=temperature)
