"""Divergence on the k likeliest tokens of one side, with three ways to treat the rest.

The divergence over the full vocabulary is exact; this is another, biased objective. It saves the
storage of a remote teacher's distribution, not computation: both normalisers are still needed. The
caller must say whose top k it is and what happens to the rest:

    rest = "tail"          one more column holds all other tokens: log(1 - sum of the k). Both
                           stay distributions
    rest = "renormalised"  the k columns are scaled up to sum to 1. The rest has no effect
    rest = "dropped"       the k columns as they are; the value may be negative and is no divergence

SDPO (TRL, lasgroup): support "student", "tail". OPSD: support "teacher", "renormalised". verl OPD
and the entropy-aware OPD: support "teacher", "dropped". Values are raw: not scaled to unit
curvature. Shapes: N tokens, V vocabulary, K of them kept.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from composer_replication.losses.divergence import jsd, logprobs, match_logits
from composer_replication.losses.entries import entries

Support = Literal["student", "teacher"]
Rest = Literal["tail", "renormalised", "dropped"]


def topk_divergence(
    student_NV: Tensor,
    teacher_NV: Tensor,
    *,
    k: int,
    support: Support,
    rest: Rest,
    beta: float,
    temperature: float = 1.0,
    vocab: int | None = None,
    entry_clip: float | None = None,
    logp_min: float | None = None,
    tail_floor: float = 0.0,
) -> Tensor:
    """Raw generalised divergence per token on the top k of one side; beta weighs the teacher.

    >>> s, t = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[2.0, 0.0, 1.0]])
    >>> def value(rest): return topk_divergence(s, t, k=2, support="teacher", rest=rest, beta=0.0)
    >>> {rest: round(value(rest).item(), 4) for rest in ("tail", "renormalised", "dropped")}
    {'tail': 0.2662, 'renormalised': 0.1109, 'dropped': 0.3841}

    beta 0 and 1 are the two KLs. k is cut to the vocabulary; with the whole vocabulary and "tail"
    this is `jsd(raw=True)`. `entry_clip` clips each kept entry's part to that many nats (OPSD's
    `token_clip`). `logp_min` raises log-probs to it first and needs "dropped" (verl's
    `log_prob_min_clamp`). `tail_floor` is the least probability of a tail: here the tail is exact;
    TRL and lasgroup compute it as 1 - sum and floor it at 1e-7.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if logp_min is not None and rest != "dropped":
        raise ValueError('logp_min needs rest="dropped": the others would renormalise it away')
    student_NV, teacher_NV = match_logits(
        student_NV, teacher_NV, temperature=temperature, vocab=vocab
    )
    support_NV = _side(student_NV, teacher_NV, support)
    ids_NK = support_NV.topk(min(k, support_NV.shape[-1]), dim=-1).indices
    if rest == "dropped":
        logs_NK = logprobs(student_NV, temperature=temperature).gather(-1, ids_NK)
        logt_NK = logprobs(teacher_NV, temperature=temperature).gather(-1, ids_NK)
        if logp_min is not None:
            logs_NK, logt_NK = logs_NK.clamp_min(logp_min), logt_NK.clamp_min(logp_min)
        return _clipped_sum(entries(logs_NK, logt_NK, beta=beta), entry_clip)
    tail = _tail_wanted(rest)
    student_NK, teacher_NK = (
        _reduced(z_NV, ids_NK, temperature=temperature, tail=tail, floor=tail_floor)
        for z_NV in (student_NV, teacher_NV)
    )
    if entry_clip is None:
        return jsd(student_NK, teacher_NK, beta=beta, raw=True)
    return _clipped_sum(entries(logprobs(student_NK), logprobs(teacher_NK), beta=beta), entry_clip)


def _side(student_NV: Tensor, teacher_NV: Tensor, support: str) -> Tensor:
    if support not in ("student", "teacher"):
        raise ValueError(f"support is 'student' or 'teacher', not {support!r}")
    return student_NV.detach() if support == "student" else teacher_NV


def _tail_wanted(rest: str) -> bool:
    if rest not in ("tail", "renormalised"):
        raise ValueError(f"rest is 'tail', 'renormalised' or 'dropped', not {rest!r}")
    return rest == "tail"


def _reduced(
    logits_NV: Tensor, ids_NK: Tensor, *, temperature: float, tail: bool, floor: float
) -> Tensor:
    """Log-probs of the kept columns and, with a tail, of all others together.

    Their softmax is exactly the reduced distribution.
    """
    log_NV = logprobs(logits_NV, temperature=temperature)
    kept_NK = log_NV.gather(-1, ids_NK)
    if not tail or ids_NK.shape[-1] == log_NV.shape[-1]:
        return kept_NK
    others_NV = log_NV.scatter(-1, ids_NK, -torch.inf)
    tail_N1 = torch.logsumexp(others_NV, dim=-1, keepdim=True)
    return torch.cat(
        [kept_NK, tail_N1.clamp_min(math.log(floor)) if floor > 0 else tail_N1], dim=-1
    )


def _clipped_sum(parts_NK: Tensor, entry_clip: float | None) -> Tensor:
    return (parts_NK if entry_clip is None else parts_NK.clamp(max=entry_clip)).sum(dim=-1)
