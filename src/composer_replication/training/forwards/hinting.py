"""The hint channel's settings (train.hint) in the loss: teacher, divergence, clips,
weights, and credit on advantages.

    teacher logits = those of one model, or of the trust region of two (the student now and at the
                     start); with `contrast`, less the effect of another site's hint
    token value    = divergence between student and teacher, estimated as the settings say, chunk by
                     chunk (losses/fused.py)
    then           = min(value, token_clip) * min(policy / sampler, importance_clip) * sqrt(p (1-p))
    mean           = over all target tokens, or over messages, each the mean of its tokens
                     (view_weights)
    credit         = no loss: log p_teacher - log p_student of the sampled token moves its advantage
                     (losses/credit.py)

`teachers` are (hidden states, head) in the order of forwards/passes.py: below the site's hint (the
teacher; with a trust region then the start), and with `contrast` the same below another site's
hint. They never get a gradient. Every trainer calls these functions.
Shapes: N target tokens of the views, A tokens of the policy channel, R rows of a chunk, K teachers,
M token places of a micro-batch, C credited tokens, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.credit import (
    contrast_evidence,
    contrast_target,
    credited_advantage,
    hint_evidence,
)
from composer_replication.losses.entries import clip_tokens, entry_clipped
from composer_replication.losses.entropy import eopd_paper, eopd_soft_gate
from composer_replication.losses.fused import (
    HeadGradient,
    HeadLike,
    fused_divergence,
    fused_logprobs,
    fused_rows,
)
from composer_replication.losses.hint_loss import Divergence, hint_divergence, trust_region
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.sampled import (
    importance_weights,
    kl_estimate,
    ratio,
    sampled_token,
)
from composer_replication.losses.schedules import TaidSchedule
from composer_replication.losses.taid import taid
from composer_replication.losses.topk import topk_divergence
from composer_replication.tokens.batch import Batch, Counts

ScoredHidden = tuple[Tensor, HeadLike]
"""The hidden states (N, D) that a model predicts N tokens from, and the head that scores them."""
PLAIN = ("kl(student, teacher)", "kl(teacher, student)", "jsd")
AT_BOUND = 0.95
"""Credit above this share of its bound counts as being at the bound."""


def hint_loss(
    settings: HintSettings,
    student: ScoredHidden,
    teachers: Sequence[ScoredHidden],
    batch: Batch,
    *,
    counts: Counts,
    t: float | None = None,
) -> ChannelLoss:
    """The hint channel's loss on the tokens of the views, unreduced; `t` is the teacher's share in
    TAID's mixture.

    Metrics, each if its setting is on: `clipped` (share of tokens above token_clip),
    `importance_cut` (share above importance_clip), `raw` (mean divergence before clip and weights;
    TAID's schedule reads it), `k3` (the sampled token's estimate of the KL).
    """
    ids_N, metrics = batch.hint_student.ids_N, {}
    weights_N = view_weights(settings, batch, counts)
    if settings.estimator == "sampled_token" and settings.divergence in PLAIN:
        values_N, metrics["k3"] = _sampled(settings, student, teachers, ids_N)
    else:
        values_N = _divergences(settings, student, teachers, ids_N, weights_N=weights_N, t=t)
        if (
            settings.token_clip
            or settings.importance_clip
            or settings.difficulty
            or settings.divergence == "taid"
        ):
            metrics["raw"] = values_N.detach()
    if settings.token_clip:
        metrics["clipped"] = values_N.detach() > settings.token_clip
        values_N = clip_tokens(values_N, maximum=settings.token_clip)
    if settings.importance_clip:
        with torch.no_grad():
            logp_N = fused_logprobs(*student, ids_N)
        metrics["importance_cut"] = ratio(logp_N, batch.hint_logp_N) > settings.importance_clip
        values_N = values_N * importance_weights(
            logp_N, batch.hint_logp_N, cap=settings.importance_clip
        )
    units = counts.hint_tokens if weights_N is None else 1
    weights_N = None if weights_N is None else weights_N.to(values_N.dtype)
    return ChannelLoss(
        name="hint",
        values=values_N,
        tokens=len(ids_N),
        global_units=units,
        weights=weights_N,
        metrics=metrics,
    )


def view_weights(settings: HintSettings, batch: Batch, counts: Counts) -> Tensor | None:
    """The weight of each target token, so that the weighted sum over the whole step is the mean;
    None = all are equal, 1 / hint_tokens.

    With mean = "site", each token of a message of n tokens weighs 1 / (n * messages): messages of 1
    and 3 tokens give 1/2, 1/6, 1/6, 1/6. Counts are global and no view is cut, so neither ranks nor
    micro-batches nor the layout change a weight.
    """
    if settings.mean == "token":
        return batch.hint_weight_N / counts.hint_weight if settings.difficulty else None
    if settings.difficulty:
        return batch.hint_weight_N / (batch.hint_size_N * counts.hint_view_weight)
    return 1 / (batch.hint_size_N * counts.hint_views)


def teacher_rows(settings: HintSettings, student_RV: Tensor, teachers_KRV: Tensor) -> Tensor:
    """The teacher's logits, from those of its models; `contrast` needs the student's too. All are
    at the same temperature."""
    models = num_models(settings)
    if len(teachers_KRV) != models * (1 + settings.contrast):
        raise AlignmentError(
            f"{len(teachers_KRV)} teachers were scored,"
            f" {models * (1 + settings.contrast)} are needed"
        )
    own_RV = mixed_teacher(settings, teachers_KRV[:models])
    if not settings.contrast:
        return own_RV
    return contrast_target(student_RV, own_RV, mixed_teacher(settings, teachers_KRV[models:])[None])


def plain_divergence(settings: HintSettings) -> Divergence:
    """The divergence that a page shows for a token: that of the settings if it is one of the three
    plain ones, else kl(student, teacher)."""
    return (
        cast(Divergence, settings.divergence)
        if settings.divergence in PLAIN
        else "kl(student, teacher)"
    )


@torch.no_grad()
def shown_values(
    settings: HintSettings, student: ScoredHidden, teachers: Sequence[ScoredHidden], ids_N: Tensor
) -> dict[str, Tensor]:
    """What a page shows for each token: its log-prob under the student and under the teacher, and
    `plain_divergence` between them; the logits exist a chunk at a time, as in a loss.

    Example: shown_values(settings, student, teachers, ids_N)["teacher"] -> tensor([-4.0, -0.2])
    """
    plain = {"divergence": plain_divergence(settings), "estimator": "full", "entry_clip": 0.0}
    shown = settings.model_copy(update={**plain, "contrast": False})
    untempered = shown.model_copy(update={"temperature": 1.0})
    return {
        "student": fused_logprobs(*student, ids_N),
        "teacher": _teacher_logprobs(untempered, teachers, ids_N),
        "divergence": _divergences(shown, student, teachers, ids_N, weights_N=None, t=None),
    }


def num_models(settings: HintSettings) -> int:
    """The number of models that make up a teacher."""
    return 2 if settings.teacher == "trust_region" else 1


def mixed_teacher(settings: HintSettings, models_KRV: Tensor | Sequence[Tensor]) -> Tensor:
    """The logits of the teacher: those of its one model, or the mixture of the trust region's two
    (the student now, then at the start)."""
    return (
        trust_region(models_KRV[1], models_KRV[0], share=settings.trust)
        if settings.teacher == "trust_region"
        else models_KRV[0]
    )


def _divergences(
    settings: HintSettings,
    student: ScoredHidden,
    teachers: Sequence[ScoredHidden],
    ids_N: Tensor,
    *,
    weights_N: Tensor | None,
    t: float | None,
) -> Tensor:
    """The divergence of each token, unweighted; `weights_N` only let the head's gradient be summed
    while the logits of a chunk exist."""
    # a clip or an importance weight is known only once every value is: then the forward cannot
    # know the gradient yet
    head_gradient: HeadGradient = (
        "backward" if settings.token_clip or settings.importance_clip else "forward"
    )
    options = {
        "temperature": settings.temperature,
        "head_gradient": head_gradient,
        "weights_N": weights_N,
    }
    if (
        len(teachers) == 1
        and settings.estimator == "full"
        and not settings.entry_clip
        and settings.divergence in PLAIN
    ):
        return fused_divergence(
            *student,
            *teachers[0],
            divergence=cast(Divergence, settings.divergence),
            beta=settings.beta,
            **options,
        )
    measure, by_token = row_measure(settings, t=t), settings.estimator == "sampled_token"

    def rows(student_RV: Tensor, teachers_KRV: Tensor, ids_R: Tensor | None = None) -> Tensor:
        return measure(student_RV, teacher_rows(settings, student_RV, teachers_KRV), ids_R)

    return fused_rows(
        rows, *student, teachers=teachers, ids_N=ids_N if by_token else None, **options
    )


def row_measure(
    settings: HintSettings, *, t: float | None = None
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """The divergence of these settings as fn(student_RV, teacher_RV, ids_R) -> values_R, on logits
    that are divided by the temperature already.

    >>> student_RV, teacher_RV = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
    >>> measure = row_measure(HintSettings(divergence="kl(student, teacher)"))
    >>> [round(value, 4) for value in measure(student_RV, teacher_RV, None).tolist()]
    [0.1201]
    """
    gate = settings.entropy
    beta = {"kl(student, teacher)": 1.0, "kl(teacher, student)": 0.0}.get(
        settings.divergence, settings.beta
    )

    def measure(student_RV: Tensor, teacher_RV: Tensor, ids_R: Tensor | None) -> Tensor:
        if settings.divergence == "taid":
            if t is None:
                raise AlignmentError("TAID without the teacher's share in its mixture")
            return taid(student_RV, teacher_RV, t=t)
        if settings.divergence == "eopd":
            then_R = None if ids_R is None else token_logprobs(student_RV.detach(), ids_R)
            return eopd_paper(
                student_RV,
                teacher_RV,
                tau=gate.tau,
                k=gate.top,
                alpha=gate.alpha,
                ids_N=ids_R,
                sampled_logp_N=then_R,
            )
        if settings.divergence == "soft_gate":
            return eopd_soft_gate(student_RV, teacher_RV, h_max=gate.h_max or None)
        if settings.estimator == "top_k":
            top_k = {"k": settings.top_k, "support": settings.support, "rest": settings.rest}
            return topk_divergence(
                student_RV, teacher_RV, **top_k, beta=beta, entry_clip=settings.entry_clip or None
            )
        if settings.entry_clip:
            return entry_clipped(student_RV, teacher_RV, entry_clip=settings.entry_clip, beta=beta)
        return hint_divergence(
            student_RV,
            teacher_RV,
            divergence=cast(Divergence, settings.divergence),
            beta=settings.beta,
        )

    return measure


def _sampled(
    settings: HintSettings, student: ScoredHidden, teachers: Sequence[ScoredHidden], ids_N: Tensor
) -> tuple[Tensor, Tensor]:
    """The sampled-token loss of each token, and the k3 estimate of the KL: the loss's own value is
    only right in its gradient."""
    logp_N = fused_logprobs(
        *student, ids_N, temperature=settings.temperature, head_gradient="backward"
    )
    with torch.no_grad():
        if not settings.contrast:
            teacher_N = _teacher_logprobs(settings, teachers, ids_N)
        else:

            def rows(student_RV: Tensor, teachers_KRV: Tensor, ids_R: Tensor) -> Tensor:
                return token_logprobs(teacher_rows(settings, student_RV, teachers_KRV), ids_R)

            teacher_N = fused_rows(
                rows, *student, teachers=teachers, ids_N=ids_N, temperature=settings.temperature
            )
    return sampled_token(logp_N, teacher_N), kl_estimate(logp_N.detach(), teacher_N, kind="k3")


# ---- credit ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Advantages with the hint's credit, and the hint channel's report of it: the mean |credit|,
    without a gradient."""

    advantage_A: Tensor
    loss: ChannelLoss


def hint_credit(
    settings: HintSettings,
    student: ScoredHidden,
    teachers: Sequence[ScoredHidden],
    batch: Batch,
    *,
    counts: Counts,
) -> Credit:
    """Move the advantages of the sampled tokens inside a view by the hint's evidence; the others
    stay the same, bit by bit.

    If two views hold one token, its evidence is their mean. A rollout of a flat group has no
    advantage and gets no credit.
    """
    # 1. The evidence of every target token of the views.
    with torch.no_grad():
        evidence_N = _evidence(settings, student, teachers, batch.hint_student.ids_N)
    # 2. Its mean at every place (row, position) of the micro-batch, read at the policy's tokens.
    width = batch.student.ids_BT.shape[1]
    sums_M, views_M = (
        torch.zeros(len(batch.student) * width, dtype=evidence_N.dtype, device=evidence_N.device)
        for _ in range(2)
    )
    place_N, place_A = (x.row_N * width + x.position_N for x in (batch.hint_student, batch.action))
    sums_M.index_add_(0, place_N, evidence_N)
    views_M.index_add_(0, place_N, torch.ones_like(evidence_N))
    in_view_A = views_M[place_A] > 0
    evidence_A = sums_M[place_A] / views_M[place_A].clamp_min(1.0)
    # 3. The advantages, moved by the bounded evidence.
    advantage_A = batch.advantage_N.to(evidence_N.dtype)
    is_bounded = settings.combination == "bounded"
    limits = {
        "bound": settings.bound if is_bounded else None,
        "keep_sign": is_bounded,
        "dead_zone": settings.dead_zone,
    }
    credited_A = torch.where(
        in_view_A,
        credited_advantage(advantage_A, evidence_A, coefficient=settings.weight, **limits),
        advantage_A,
    )
    # 4. The report: how far advantages moved, and how much credit is at its bound.
    credit_C = (settings.weight * evidence_A)[in_view_A]
    metrics = {}
    if is_bounded:
        credit_C = settings.bound * torch.tanh(credit_C / settings.bound)
        metrics["bounded"] = credit_C.abs() > AT_BOUND * settings.bound
    moved_C = (credited_A - advantage_A)[in_view_A].abs()
    loss = ChannelLoss(
        name="hint",
        values=moved_C,
        tokens=len(moved_C),
        global_units=counts.credited_tokens,
        metrics=metrics,
    )
    return Credit(advantage_A=credited_A, loss=loss)


def _evidence(
    settings: HintSettings, student: ScoredHidden, teachers: Sequence[ScoredHidden], ids_N: Tensor
) -> Tensor:
    models = num_models(settings)
    own_N = _teacher_logprobs(settings, teachers[:models], ids_N)
    if settings.contrast:
        return contrast_evidence(own_N, _teacher_logprobs(settings, teachers[models:], ids_N)[None])
    return hint_evidence(fused_logprobs(*student, ids_N, temperature=settings.temperature), own_N)


def _teacher_logprobs(
    settings: HintSettings, models: Sequence[ScoredHidden], ids_N: Tensor
) -> Tensor:
    if len(models) == 1:
        return fused_logprobs(*models[0], ids_N, temperature=settings.temperature)

    def rows(first_RV: Tensor, models_KRV: Tensor, ids_R: Tensor) -> Tensor:
        return token_logprobs(mixed_teacher(settings, models_KRV), ids_R)

    return fused_rows(
        rows, *models[0], teachers=models, ids_N=ids_N, temperature=settings.temperature
    )


def taid_schedule(settings: HintSettings, *, steps: int) -> TaidSchedule | None:
    """The schedule of TAID's mixture in a run in which it moves; None in any other run, where t
    stays `taid.t_start`."""
    if settings.divergence != "taid" or settings.taid.schedule == "fixed":
        return None
    taid_settings = settings.taid
    return TaidSchedule(
        num_steps=steps,
        adaptive=taid_settings.schedule == "adaptive",
        t_start=taid_settings.t_start,
        t_end=taid_settings.t_end,
        alpha=taid_settings.alpha,
        beta=taid_settings.momentum,
    )
