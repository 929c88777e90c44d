"""Loss functions under the names of the earlier guide: thin fronts that return one mean.

    generalized_jsd_loss(student_logits, teacher_logits, labels=labels, beta=0.5)
    simpo_loss(chosen_mean, rejected_mean, beta=2.0, gamma=1.0)
    taid_loss(student_logits, teacher_logits, mask, t)
    TAIDScheduler(num_train_steps).update_t(loss, global_step)
    entropy_aware_opd_loss(student_logits, teacher_logits, mask, h_max=None)

The first is raw, as in OPSD and TRL: JSD(.5) has a quarter of a KL's gradient. Differences from the
guide: shapes that do not match, a mask with other values than 0 and 1, and t = None raise; an empty
mask gives 0 with a zero gradient; sums run in float32 at least. The trainers do not use these: a
mean taken here ignores other micro-batches and ranks.

Shapes: B rows, T length, V vocabulary; position t of the logits predicts the token of position t of
mask and labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from composer_replication.losses.divergence import jsd
from composer_replication.losses.entries import entry_clipped
from composer_replication.losses.entropy import eopd_paper, eopd_soft_gate
from composer_replication.losses.preference import simpo
from composer_replication.losses.schedules import TaidSchedule
from composer_replication.losses.taid import taid
from composer_replication.losses.topk import topk_divergence

IGNORED = -100


def generalized_jsd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["batchmean", "sum", "mean", "none"] = "batchmean",
    token_clip: float | None = None,
    top_k: int | None = None,
) -> Tensor:
    """Return the raw generalised JSD of full logits.

    beta weighs the teacher: 0 is KL(teacher || student), 1 is KL(student || teacher).

    >>> z = torch.tensor([[[0.0, 0.0]]]); t = torch.tensor([[[0.0, 1.0]]])
    >>> [round(generalized_jsd_loss(z, t, beta=beta).item(), 4) for beta in (0.5, 0.0)]
    [0.0285, 0.1109]

    With `labels`, positions of -100 do not count, and "batchmean" and "mean" divide by the number
    of the others. Without, "batchmean" divides by B, as TRL and OPSD do, and "mean" by all tokens.
    `token_clip` clips each (token, vocabulary) entry from above before the sum, so the value may be
    negative; `top_k` keeps the teacher's top k entries and renormalises both sides. "none" returns
    the values of the counted positions, in order.
    """
    student_NV, teacher_NV = _rows(
        student_logits, teacher_logits, None if labels is None else labels != IGNORED
    )
    if top_k is not None:
        topk_options = {
            "k": top_k,
            "support": "teacher",
            "rest": "renormalised",
            "entry_clip": token_clip,
        }
        values_N = topk_divergence(
            student_NV, teacher_NV, beta=beta, temperature=temperature, **topk_options
        )  # pyright: ignore[reportArgumentType]
    elif token_clip is not None:
        values_N = entry_clipped(
            student_NV, teacher_NV, entry_clip=token_clip, beta=beta, temperature=temperature
        )
    else:
        values_N = jsd(student_NV, teacher_NV, beta=beta, temperature=temperature, raw=True)
    if reduction == "none":
        return values_N
    if reduction not in ("batchmean", "sum", "mean"):
        raise ValueError(f"reduction is 'batchmean', 'sum', 'mean' or 'none', not {reduction!r}")
    divisor = (
        student_logits.shape[0] if labels is None and reduction == "batchmean" else values_N.numel()
    )
    return values_N.sum() / (1 if reduction == "sum" else max(divisor, 1))


def simpo_loss(
    policy_chosen_logps: Tensor,
    policy_rejected_logps: Tensor,
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return SimPO's mean over pairs, from the mean log-prob per token of each side.

    gamma is the margin itself, not its ratio to beta.

    >>> round(simpo_loss(torch.tensor([-0.5]), torch.tensor([-1.0])).item(), 6)
    0.693147

    Raises ValueError for sides of different length and for a log-prob that is no number (an empty
    response).
    """
    if policy_chosen_logps.shape != policy_rejected_logps.shape:
        sides = (
            f"{tuple(policy_chosen_logps.shape)} chosen and {tuple(policy_rejected_logps.shape)}"
            " rejected"
        )
        raise ValueError(f"{sides} log-probs do not make pairs")
    if bool(torch.isnan(policy_chosen_logps).any() | torch.isnan(policy_rejected_logps).any()):
        raise ValueError("a mean log-prob is not a number: is a response empty?")
    values_P = simpo(
        policy_chosen_logps,
        policy_rejected_logps,
        beta=beta,
        gamma=gamma,
        label_smoothing=label_smoothing,
    )
    return values_P.sum() / max(values_P.numel(), 1)


def taid_loss(
    student_logits: Tensor, teacher_logits: Tensor, mask: Tensor, t: float | Tensor
) -> Tensor:
    """Return TAID's mean over the mask, with the target softmax((1 - t) sg(student) + t teacher).

    For equal logits it is their entropy, not 0.

    >>> z = torch.tensor([[[0.0, 0.0]]])
    >>> round(taid_loss(z, z, torch.ones(1, 1), 0.4).item(), 4)
    0.6931

    Raises ValueError unless t is within 0 to 1.
    """
    student_NV, teacher_NV = _rows(student_logits, teacher_logits, _mask(mask))
    return _mean(taid(student_NV, teacher_NV, t=t))


def entropy_aware_opd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    mask: Tensor | None = None,
    *,
    h_max: float | None = None,
    gate: Literal["soft", "paper"] = "soft",
    tau: float = 0.8,
    k: int = 16,
    alpha: float = 1.0,
) -> Tensor:
    """Return the mean entropy-aware distillation loss over the mask.

    gate="soft" is the guide's loss, "paper" the published one; they differ (losses/entropy.py). For
    a uniform teacher the soft gate gives KL(teacher || student):

    >>> z = torch.tensor([[[0.0, 1.0]]]); u = torch.zeros(1, 1, 2)
    >>> round(entropy_aware_opd_loss(z, u).item(), 4)
    0.1201

    "soft" reads `h_max`; "paper" reads `tau`, `k` and `alpha`.
    """
    student_NV, teacher_NV = _rows(
        student_logits, teacher_logits, None if mask is None else _mask(mask)
    )
    if gate == "soft":
        return _mean(eopd_soft_gate(student_NV, teacher_NV, h_max=h_max))
    if gate != "paper":
        raise ValueError(f"gate is 'soft' or 'paper', not {gate!r}")
    return _mean(eopd_paper(student_NV, teacher_NV, tau=tau, k=k, alpha=alpha))


@dataclass(slots=True)
class TAIDScheduler:
    """TAID's schedule under the guide's names; `t` is its current value.

    >>> schedule = TAIDScheduler(1000)
    >>> schedule.update_t(2.0, 0), schedule.update_t(1.9, 1)
    (0.4, 0.4006)

    A step without a site must not update the schedule: pass `tokens=0`, or do not call. A loss of
    exactly 0 counts as such a step, because a cross-entropy over tokens is never 0.
    """

    num_train_steps: int
    t_start: float = 0.4
    t_end: float = 1.0
    alpha: float = 5e-4
    beta: float = 0.99
    disable_adaptive: bool = False
    schedule: TaidSchedule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bounds = {
            "t_start": self.t_start,
            "t_end": self.t_end,
            "alpha": self.alpha,
            "beta": self.beta,
        }
        self.schedule = TaidSchedule(
            num_steps=self.num_train_steps, adaptive=not self.disable_adaptive, **bounds
        )

    @property
    def t(self) -> float:
        """The share of the teacher in the mixture."""
        return self.schedule.t

    def update_t(
        self, loss: float | Tensor, global_step: int, *, tokens: int | None = None
    ) -> float:
        """Take one step's mean `taid_loss` and return the new t."""
        value = float(loss)
        counted = tokens if tokens is not None else int(value != 0.0)
        return self.schedule.update(value, step=global_step, tokens=counted)


def _rows(student: Tensor, teacher: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return both logits as (N, V) at the kept positions; raises ValueError if shapes differ."""
    if student.shape != teacher.shape:
        raise ValueError(
            f"student logits {tuple(student.shape)} and teacher logits {tuple(teacher.shape)} do"
            " not match"
        )
    if keep is not None and keep.shape != student.shape[:-1]:
        raise ValueError(
            f"a mask or labels of {tuple(keep.shape)} do not match logits {tuple(student.shape)}"
        )
    if keep is None:
        return student.reshape(-1, student.shape[-1]), teacher.reshape(-1, teacher.shape[-1])
    return student[keep], teacher[keep]


def _mask(mask: Tensor) -> Tensor:
    """Return the mask as bool; raises ValueError for values other than 0 and 1.

    A -100 would flip the sign of the loss.
    """
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("a mask holds 0 and 1 only; labels with -100 are no mask")
    return mask == 1


def _mean(values_N: Tensor) -> Tensor:
    return values_N.sum() / max(values_N.numel(), 1)
