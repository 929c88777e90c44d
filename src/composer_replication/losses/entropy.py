"""Entropy, and entropy-aware on-policy distillation in two forms that must not be confused.

    eopd_paper       arXiv 2603.07079: KL(student || teacher) on every token, PLUS alpha * the
                     top-k part of KL(teacher || student) on tokens whose teacher entropy is above
                     tau nats (0.8). A hard gate that adds
    eopd_soft_gate   the earlier guide's: w KL(t||s) + (1 - w) KL(s||t),
                     w = clamp(entropy / h_max, 0, 1). A soft gate that mixes

With h_max = log V, the soft gate's default, a teacher at 0.8 nats over 152k tokens has w = 0.067:
that gate is almost always shut. The paper's code estimates its first term from the sampled token
with a clipped ratio; pass `ids_N` and `sampled_logp_N` for that. Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from composer_replication.losses.divergence import (
    kl_student_teacher,
    kl_teacher_student,
    logprobs,
    match_logits,
)
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.sampled import floor_logprobs
from composer_replication.losses.surrogates import ppo_clip
from composer_replication.losses.topk import topk_divergence


def entropy(logits_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None) -> Tensor:
    """Shannon entropy of each row in nats; differentiable.

    >>> entropy(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])).tolist()
    [0.6931471824645996, 0.0]
    """
    log_NV = logprobs(
        logits_NV if vocab is None else logits_NV[..., :vocab], temperature=temperature
    )
    return (log_NV.exp() * -log_NV).sum(dim=-1).clamp_min(0.0)


def teacher_entropy(
    teacher_NV: Tensor, *, temperature: float = 1.0, vocab: int | None = None
) -> Tensor:
    """Entropy of the teacher's rows in nats, without gradient: 0 for a one-hot row, log V for a
    uniform one.

    >>> round(teacher_entropy(torch.zeros(1, 7)).item(), 6)
    1.94591
    """
    return entropy(teacher_NV.detach(), temperature=temperature, vocab=vocab)


def eopd_paper(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    tau: float = 0.8,
    k: int = 16,
    alpha: float = 1.0,
    ids_N: Tensor | None = None,
    sampled_logp_N: Tensor | None = None,
    clip: float = 0.2,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """Entropy-aware OPD as published, per token.

    KL(student || teacher) everywhere, plus the teacher's top-k part if its entropy is above tau.

    >>> s = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> t = torch.tensor([[0.0, 1.0], [0.0, 9.0]])  # entropies 0.58 and 0.001
    >>> eopd_paper(s, t, tau=0.5).double().round(decimals=4).tolist()
    [0.2311, 3.807]

    Without `ids_N` the first term is KL(student || teacher) over the vocabulary. With `ids_N` and
    `sampled_logp_N` it is the paper's estimate: -min(r A, clamp(r) A), A = log p_t(y) - log
    p_sampled(y). The gate is strict (> tau); the top-k part is neither renormalised nor clipped.
    """
    gate_N = teacher_entropy(teacher_NV, temperature=temperature, vocab=vocab) > tau
    topk_N = topk_divergence(
        student_NV,
        teacher_NV,
        k=k,
        support="teacher",
        rest="dropped",
        beta=0.0,
        temperature=temperature,
        vocab=vocab,
    )
    if ids_N is None:
        first_N = kl_student_teacher(student_NV, teacher_NV, temperature=temperature, vocab=vocab)
    else:
        if sampled_logp_N is None:
            raise ValueError(
                "ids_N needs sampled_logp_N: the log-probs under which the tokens were sampled"
            )
        sampled_logp_N = floor_logprobs(sampled_logp_N.detach())
        student_columns_NV, teacher_columns_NV = match_logits(
            student_NV, teacher_NV.detach(), temperature=temperature, vocab=vocab
        )
        dtype = torch.promote_types(
            torch.promote_types(student_columns_NV.dtype, teacher_columns_NV.dtype), torch.float32
        )
        logp_N = token_logprobs(student_columns_NV.to(dtype) / temperature, ids_N)
        teacher_logp_N = token_logprobs(teacher_columns_NV.to(dtype) / temperature, ids_N)
        first_N = ppo_clip(
            logp_N,
            sampled_logp_N,
            floor_logprobs(teacher_logp_N) - sampled_logp_N,
            clip_low=clip,
            clip_high=clip,
        )
    return first_N + alpha * torch.where(gate_N, topk_N, 0.0)


def soft_gate(
    teacher_NV: Tensor,
    *,
    h_max: float | None = None,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """clamp(teacher entropy / h_max, 0, 1) per token; h_max defaults to log V.

    >>> soft_gate(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])).tolist()
    [1.0, 0.0]


    With a single column the gate is 0.
    """
    width = teacher_NV.shape[-1] if vocab is None else vocab
    # log 1 = 0 would divide by 0; the entropy of one column is 0, so any divisor will do
    top = (math.log(width) or 1.0) if h_max is None else h_max
    if not top > 0:
        raise ValueError(f"h_max must be positive, not {top}")
    return (teacher_entropy(teacher_NV, temperature=temperature, vocab=vocab) / top).clamp(0.0, 1.0)


def eopd_soft_gate(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    h_max: float | None = None,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """The earlier guide's gate per token: w KL(t || s) + (1 - w) KL(s || t), w = `soft_gate`.

    >>> uniform, peaked = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    >>> round(eopd_soft_gate(peaked, uniform).item(), 4)  # w = 1: only KL(teacher || student)
    0.1201
    """
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    w_N = soft_gate(teacher_NV, h_max=h_max, temperature=temperature)
    forward_N = kl_teacher_student(student_NV, teacher_NV, temperature=temperature)
    return w_N * forward_N + (1.0 - w_N) * kl_student_teacher(
        student_NV, teacher_NV, temperature=temperature
    )
