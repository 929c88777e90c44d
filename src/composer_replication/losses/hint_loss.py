"""The hint channel: the divergence, on the mistaken message, from the model that read the hint.

Shapes: N target tokens, V vocabulary. Row k of both logits predicts the same token id;
tokens/batch.py ensures that.
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


def trust_region(reference_NV: Tensor, live_NV: Tensor, *, share: float) -> Tensor:
    """Logits of a teacher near the reference, detached: (1 - share) * reference + share * live.

    >>> import torch
    >>> trust_region(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]]), share=0.25).tolist()
    [[0.0, 0.5]]

    SDPO (arXiv 2601.20802, section 2.3): q proportional to p_reference^(1 - share) * p_live^share;
    its code mixes the logits, which gives the same softmax. Both models have read the hint. Share 0
    is the frozen teacher, 1 the live one.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share must be within 0 and 1, not {share}")
    if share in (0.0, 1.0):  # 0 * -inf would be nan
        return (live_NV if share == 1.0 else reference_NV).detach()
    return (1.0 - share) * reference_NV.detach() + share * live_NV.detach()
