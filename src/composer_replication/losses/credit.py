"""The hint's signal as credit on the policy's advantages, and how the two channels are combined.

For each sampled token, a hinted teacher says how much likelier the token becomes with the hint:
evidence e = log p_t(y) - log p_s(y), detached. Minimising a divergence to that teacher as a loss of
its own was measured to destroy multi-turn tool use while the loss looked good (arXiv 2606.12634:
0.317 against 0.583 for GRPO). Evidence can instead reshape the advantage, within bounds, so that
the reward stays in charge.

    combination   policy loss        hint loss   source
    additive      weight 1           weight w    two channels in one sum (losses/total.py)
    convex        weight 1 - w       weight w    SDPO: lambda A_GRPO + (1 - lambda) A_SDPO;
                                                 TRL's `distillation_weight`
    advantage     A + c e            none        OpenClaw-RL, arXiv 2603.10165
    bounded       A + bounded credit none        RLCSD (2606.11709): lambda tanh(e / tau), which
                                                 never turns the sign of A

Shapes: N tokens, K wrong hints, G groups, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from composer_replication.losses.divergence import logprobs, match_logits
from composer_replication.losses.sampled import floor_logprobs

Combination = Literal["additive", "convex", "advantage", "bounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelShares:
    """The factors of the policy loss and of the hint's own loss under a combination.

    Example: ChannelShares(policy=0.9, hint=0.1)
    """

    policy: float
    hint: float


def channel_shares(combination: Combination, *, hint_weight: float) -> ChannelShares:
    """The factors of the policy loss and the hint loss under a combination.

    The hint's factor is 0 if its signal goes into the advantages instead.

    >>> channel_shares("convex", hint_weight=0.25), channel_shares("bounded", hint_weight=0.25)
    (ChannelShares(policy=0.75, hint=0.25), ChannelShares(policy=1.0, hint=0.0))
    """
    if combination == "additive":
        return ChannelShares(policy=1.0, hint=hint_weight)
    if combination == "convex":
        if not 0.0 <= hint_weight <= 1.0:
            raise ValueError(
                f"a convex combination needs a hint_weight within 0 and 1, not {hint_weight}"
            )
        return ChannelShares(policy=1.0 - hint_weight, hint=hint_weight)
    if combination in ("advantage", "bounded"):
        return ChannelShares(policy=1.0, hint=0.0)
    raise ValueError(f"unknown combination {combination!r}")


def hint_evidence(student_logp_N: Tensor, teacher_logp_N: Tensor) -> Tensor:
    """log p_t(y) - log p_s(y) of each sampled token, without gradient.

    It is above 0 if the hint makes the token likelier.

    >>> hint_evidence(torch.tensor([-2.0]), torch.tensor([-0.5])).tolist()
    [1.5]
    """
    return (floor_logprobs(teacher_logp_N) - floor_logprobs(student_logp_N)).detach()


def contrast_evidence(right_logp_N: Tensor, wrong_logp_KN: Tensor) -> Tensor:
    """By how much the right hint changes a token's log-prob more than wrong hints do.

    log p_right(y) - log(mean over K of p_wrong(y)), without gradient.

    >>> right, wrong = torch.tensor([0.5]).log(), torch.tensor([[0.2], [0.3]]).log()
    >>> round(contrast_evidence(right, wrong).item(), 4)  # log(0.5 / 0.25)
    0.6931

    RLCSD, arXiv 2606.11709, eq. 7: any hint makes a model terser and more certain. If the hints
    differ in content only (one template, the same place), that shift is in both terms and cancels.
    The mean is taken over probabilities, before the logarithm.
    """
    if (
        wrong_logp_KN.ndim != right_logp_N.ndim + 1
        or wrong_logp_KN.shape[0] == 0
        or wrong_logp_KN.shape[1:] != right_logp_N.shape
    ):
        raise ValueError(
            f"wrong hints' log-probs {tuple(wrong_logp_KN.shape)} are not K times the right one's"
            f" {tuple(right_logp_N.shape)}"
        )
    return (
        floor_logprobs(right_logp_N)
        - (torch.logsumexp(floor_logprobs(wrong_logp_KN), dim=0) - math.log(wrong_logp_KN.shape[0]))
    ).detach()


def contrast_target(
    student_NV: Tensor,
    right_NV: Tensor,
    wrong_KNV: Tensor,
    *,
    strength: float = 1.0,
    bound: float | None = 5.0,
    temperature: float = 1.0,
    vocab: int | None = None,
) -> Tensor:
    """Logits of a teacher that keeps only what the right hint changes more than wrong hints do.

    >>> student, style = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 2.0]])
    >>> content = torch.tensor([[0.0, 3.0, 2.0]])
    >>> target = contrast_target(student, content, style[None]).softmax(-1)
    >>> target.double().round(decimals=3).tolist()  # both hints raise the third token: it cancels
    [[0.045, 0.909, 0.045]]

    log p* = log p_s + strength * clamp(log p_right - log mean p_wrong, +-bound) up to a constant,
    all at `temperature`, without gradient. RLCSD defines the contrast for a sampled token;
    extending it to whole distributions is ours. Use the result as the teacher of any divergence at
    the same temperature. If the right and wrong hints are equal, the result is the student and the
    divergence is exactly 0.
    """
    if wrong_KNV.ndim != right_NV.ndim + 1 or wrong_KNV.shape[0] == 0:
        raise ValueError(
            f"wrong hints' logits {tuple(wrong_KNV.shape)} are not K times the right one's"
            f" {tuple(right_NV.shape)}"
        )
    student_NV, right_NV = match_logits(student_NV, right_NV, temperature=temperature, vocab=vocab)
    wrong_KNV = wrong_KNV[..., : student_NV.shape[-1]].detach()
    wrong_logp_NV = torch.logsumexp(logprobs(wrong_KNV, temperature=temperature), dim=0) - math.log(
        wrong_KNV.shape[0]
    )
    shift_NV = logprobs(right_NV, temperature=temperature) - wrong_logp_NV
    if bound is not None:
        shift_NV = shift_NV.clamp(-bound, bound)
    return student_NV.detach().to(shift_NV.dtype) + temperature * strength * shift_NV


def credited_advantage(
    advantage_N: Tensor,
    evidence_N: Tensor,
    *,
    coefficient: float = 1.0,
    bound: float | None = None,
    keep_sign: bool = False,
    dead_zone: float = 0.0,
) -> Tensor:
    """Advantage plus credit, without gradient; the credit is coefficient * evidence, or bounded.

    With a `bound` the credit is bound * tanh(coefficient * evidence / bound).

    >>> a, e = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.5, -8.0, 8.0])
    >>> credited_advantage(a, e).tolist()
    [1.5, -7.0, 7.0]
    >>> credited_advantage(a, e, bound=0.5).double().round(decimals=3).tolist()
    [1.381, 0.5, -0.5]

    |credit| <= bound, and its slope at 0 is the coefficient: RLCSD's lambda tanh(e / tau) is bound
    = lambda, coefficient = lambda / tau. `keep_sign` holds the result at 0 if the credit would turn
    the advantage's sign (RLCSD's clamp); credit within `dead_zone` counts as 0 (RLCSD's delta). A
    coefficient of 0 returns the advantages bit for bit.
    """
    if coefficient == 0.0:
        return advantage_N.detach()
    credit_N = coefficient * evidence_N.detach()
    if bound is not None:
        if not bound > 0:
            raise ValueError(f"bound must be positive, not {bound}")
        credit_N = bound * torch.tanh(credit_N / bound)
    credit_N = torch.where(credit_N.abs() > dead_zone, credit_N, 0.0)
    credited_N = advantage_N.detach() + credit_N
    if not keep_sign:
        return credited_N
    return torch.where(
        advantage_N > 0,
        credited_N.clamp_min(0.0),
        torch.where(advantage_N < 0, credited_N.clamp_max(0.0), 0.0),
    )


def difficulty_weight(success_rate_G: Tensor) -> Tensor:
    """sqrt(p (1 - p)) of each group's success rate p.

    It is 0 for tasks that are always or never solved and 1/2 for tasks that are solved half the
    time.

    >>> difficulty_weight(torch.tensor([0.0, 0.5, 0.9])).double().round(decimals=3).tolist()
    [0.0, 0.5, 0.3]

    SC-SDPO, arXiv 2605.27765: the factor left over by GRPO's division by the group's standard
    deviation, applied to the hint loss. The paper also normalises over the batch; that needs a
    global count, so it is the caller's part. Raises ValueError for rates outside 0 and 1.
    """
    if (
        success_rate_G.numel()
        and not 0.0 <= float(success_rate_G.min()) <= float(success_rate_G.max()) <= 1.0
    ):
        raise ValueError("success rates must lie within 0 and 1")
    return (success_rate_G * (1.0 - success_rate_G)).sqrt().detach()
