"""The hint channel: how far the policy is, on the mistaken message, from the same model that has
read the hint.

Shapes: N target tokens, V vocabulary. Row k of both logits predicts the same token id;
tokens/batch.py sees to that.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from composer_replication.losses.divergence import jsd, kl_student_teacher, kl_teacher_student

Divergence = Literal["kl(student, teacher)", "kl(teacher, student)", "jsd"]


def hint_divergence(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    divergence: Divergence,
    beta: float = 0.5,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """The chosen divergence of each target token, unreduced; the teacher gets no gradient.

    >>> import torch
    >>> z = torch.tensor([[0.0, 0.0]]); t = torch.tensor([[0.0, 1.0]])
    >>> round(hint_divergence(z, t, divergence="kl(teacher, student)").item(), 4)
    0.1109
    """
    if divergence == "jsd":
        return jsd(student_NV, teacher_NV, beta=beta, temperature=temperature, vocab=vocab)
    if divergence == "kl(student, teacher)":
        return kl_student_teacher(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    if divergence == "kl(teacher, student)":
        return kl_teacher_student(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    raise ValueError(f"unknown divergence {divergence!r}")


def trust_region(start_NV: Tensor, live_NV: Tensor, *, share: float) -> Tensor:
    """Logits of a teacher held near the start: (1 - share) * start + share * live, without
    gradient.

    >>> import torch
    >>> trust_region(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]]), share=0.25).tolist()
    [[0.0, 0.5]]

    SDPO (arXiv 2601.20802, section 2.3): q proportional to p_start^(1 - share) * p_live^share; its
    code mixes the logits, which is the same after the softmax. Both have read the hint. Share 0 is
    the frozen teacher, 1 the live one.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be within 0 and 1, not {share}")
    if share in (0.0, 1.0):  # 0 times -inf is no number
        return (live_NV if share == 1.0 else start_NV).detach()
    return (1.0 - share) * start_NV.detach() + share * live_NV.detach()
