"""The hint channel of one micro-batch: settings (train.hint) and hidden states in, a loss out.

The student and the teacher score the same target tokens, the teacher with the hint in its context.
forwards/channels.py calls `hint_loss`, or `hint_credit` if the signal goes into the advantages:

    teacher   the logits of one model; teacher = "trust_region" mixes two (the student now and at
              the start); with `contrast`, another site's hint is scored as well, and what both
              hints change alike is taken out (losses/credit.py, RLCSD 2606.11709)
    value     D(student, teacher) of each target token, by train.hint.divergence and `estimator`,
              for a chunk of rows at a time (losses/fused.py)
    clips     min(value, token_clip) * min(p / p_sampled, importance_clip)
    mean      over target tokens, or over messages (mean = "site"); `difficulty` weighs a message by
              sqrt(p (1 - p)), p the success rate of its group (SC-SDPO 2605.27765)
    credit    no loss: log p_teacher - log p_student of each sampled token is added to its advantage

A `ScoredHidden` is (hidden states, output head). `teachers` come in the order of
forwards/passes.py: the models of the teacher (the live one, then the start if there is a trust
region) on the contexts with the site's hint, then, with `contrast`, the same models on those with
the other site's hint. None has a gradient. Backends call these functions as well.

Shapes: N target tokens of the hint views, A tokens of the policy channel, R rows of a chunk, K
teachers, P positions of a micro-batch (rows * width), C credited tokens, V vocabulary, D hidden
size.
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
"""The hidden states (N, D) from which a model predicts N tokens, and its output head."""
PLAIN_DIVERGENCES = ("kl(student, teacher)", "kl(teacher, student)", "jsd")
AT_BOUND = 0.95
"""Credit above this share of its bound counts as being at the bound."""


def hint_loss(
    settings: HintSettings,
    student: ScoredHidden,
    teachers: Sequence[ScoredHidden],
    batch: Batch,
    *,
    counts: Counts,
    taid_t: float | None = None,
) -> ChannelLoss:
    """The hint channel's unreduced loss on the target tokens of the views.

    `taid_t` is the teacher's share in TAID's mixture, None for other divergences. Metrics, each if
    its setting is on: `clipped` (share of tokens above token_clip), `importance_cut` (share of
    ratios above importance_clip), `raw` (mean divergence before clips and weights; TAID's schedule
    reads it), `k3` (estimate of the KL from the sampled tokens).
    """
    ids_N, metrics = batch.hint_student.ids_N, {}
    weights_N = view_weights(settings, batch, counts)
    if settings.estimator == "sampled_token" and settings.divergence in PLAIN_DIVERGENCES:
        values_N, metrics["k3"] = _sampled(settings, student, teachers, ids_N)
    else:
        values_N = _divergences(
            settings, student, teachers, ids_N, weights_N=weights_N, taid_t=taid_t
        )
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
    return ChannelLoss(
        name="hint",
        values=values_N,
        tokens=len(ids_N),
        # weights are the mean already
        global_units=counts.hint_tokens if weights_N is None else 1,
        weights=None if weights_N is None else weights_N.to(values_N.dtype),
        metrics=metrics,
    )


def view_weights(settings: HintSettings, batch: Batch, counts: Counts) -> Tensor | None:
    """The weight (N,) of each target token: the weighted sum over the whole step is the channel's
    mean. None = every token weighs 1 / counts.hint_tokens.

    With mean = "site", each of the n tokens of a message weighs 1 / (n * number of messages): two
    messages of 1 and 3 tokens give 1/2, 1/6, 1/6, 1/6. `counts` are those of the whole step and a
    view is never cut, so weights depend neither on ranks nor on micro-batches nor on the layout.
    """
    if settings.mean == "token":
        return batch.hint_weight_N / counts.hint_weight if settings.difficulty else None
    if settings.difficulty:
        return batch.hint_weight_N / (batch.hint_size_N * counts.hint_view_weight)
    return 1 / (batch.hint_size_N * counts.hint_views)


def teacher_rows(settings: HintSettings, student_RV: Tensor, teachers_KRV: Tensor) -> Tensor:
    """The teacher's logits (R, V), combined from those of its models; all at one temperature.

    With `contrast`, the target is the student plus what the site's hint changes more than another
    site's hint, so the student's logits are needed too.
    """
    num = num_models(settings)
    num_needed = num * (1 + settings.contrast)
    if len(teachers_KRV) != num_needed:
        raise AlignmentError(f"{len(teachers_KRV)} teachers were scored, {num_needed} are needed")
    right_RV = mixed_teacher(settings, teachers_KRV[:num])
    if not settings.contrast:
        return right_RV
    wrong_RV = mixed_teacher(settings, teachers_KRV[num:])
    return contrast_target(student_RV, right_RV, wrong_RV[None])


def plain_divergence(settings: HintSettings) -> Divergence:
    """The divergence that the report shows for a token: that of the settings if it is a KL or the
    JSD, else kl(student, teacher)."""
    if settings.divergence in PLAIN_DIVERGENCES:
        return cast(Divergence, settings.divergence)
    return "kl(student, teacher)"


@torch.no_grad()
def shown_values(
    settings: HintSettings, student: ScoredHidden, teachers: Sequence[ScoredHidden], ids_N: Tensor
) -> dict[str, Tensor]:
    """What the report shows for each token, (N,) each: its log-prob under the student and under the
    teacher, and `plain_divergence` between them. Logits exist for a chunk at a time, as in a loss.

    Example: shown_values(settings, student, teachers, ids_N)["teacher"] -> tensor([-4.0, -0.2])
    """
    shown = settings.model_copy(
        update={
            "divergence": plain_divergence(settings),
            "estimator": "full",
            "entry_clip": 0.0,
            "contrast": False,
        }
    )
    untempered = shown.model_copy(update={"temperature": 1.0})
    return {
        "student": fused_logprobs(*student, ids_N),
        "teacher": _teacher_logprobs(untempered, teachers, ids_N),
        "divergence": _divergences(shown, student, teachers, ids_N, weights_N=None, taid_t=None),
    }


def num_models(settings: HintSettings) -> int:
    """The number of models whose logits make up the teacher's."""
    return 2 if settings.teacher == "trust_region" else 1


def mixed_teacher(settings: HintSettings, models_KRV: Tensor | Sequence[Tensor]) -> Tensor:
    """The teacher's logits (R, V): those of its one model, or the mixture of the trust region's
    two, which come in the order (student now, student at the start)."""
    if settings.teacher == "trust_region":
        live_RV, start_RV = models_KRV[0], models_KRV[1]
        return trust_region(start_RV, live_RV, share=settings.trust)
    return models_KRV[0]


def _divergences(
    settings: HintSettings,
    student: ScoredHidden,
    teachers: Sequence[ScoredHidden],
    ids_N: Tensor,
    *,
    weights_N: Tensor | None,
    taid_t: float | None,
) -> Tensor:
    """The divergence (N,) of each token, unweighted.

    `weights_N` are what the caller will multiply them with: with these, the gradient of the output
    head can be summed in the forward, while the logits of a chunk exist (losses/fused.py).
    """
    # a clip or an importance weight changes the gradient after the values are known, so the head's
    # gradient cannot be computed in the forward
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
        and settings.divergence in PLAIN_DIVERGENCES
    ):
        return fused_divergence(
            *student,
            *teachers[0],
            divergence=cast(Divergence, settings.divergence),
            beta=settings.beta,
            **options,
        )
    measure = row_measure(settings, taid_t=taid_t)

    def rows(student_RV: Tensor, teachers_KRV: Tensor, ids_R: Tensor | None = None) -> Tensor:
        return measure(student_RV, teacher_rows(settings, student_RV, teachers_KRV), ids_R)

    sampled_ids_N = ids_N if settings.estimator == "sampled_token" else None
    return fused_rows(rows, *student, teachers=teachers, ids_N=sampled_ids_N, **options)


def row_measure(
    settings: HintSettings, *, taid_t: float | None = None
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """The divergence of these settings as a function of logits that the temperature has divided
    already: fn(student_RV, teacher_RV, ids_R) -> values_R, in nats.

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
            if taid_t is None:
                raise AlignmentError("TAID without the teacher's share in its mixture")
            return taid(student_RV, teacher_RV, t=taid_t)
        if settings.divergence == "eopd":
            # the current weights count as the sampler's: the ratio in EOPD's clip is 1
            sampled_logp_R = None if ids_R is None else token_logprobs(student_RV.detach(), ids_R)
            return eopd_paper(
                student_RV,
                teacher_RV,
                tau=gate.tau,
                k=gate.top,
                alpha=gate.alpha,
                ids_N=ids_R,
                sampled_logp_N=sampled_logp_R,
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
    """(sampled-token loss, k3 estimate of the KL) of each token, (N,) each. Only the gradient of
    the first means something, so the second is what a run reports."""
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
    """The advantages (A,) after credit, and the hint channel's report: |change| of each credited
    token's advantage, as a loss without a gradient."""

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
    """Add the hint's evidence to the advantages of the sampled tokens that lie in a hint view; all
    other advantages stay the same, bit by bit.

    If two views hold one token, its evidence is their mean. A rollout of a flat group has no
    advantage and gets no credit.
    """
    # 1. The evidence of each target token of the views, matched to the policy channel's tokens.
    with torch.no_grad():
        evidence_N = _evidence(settings, student, teachers, batch.hint_student.ids_N)
    evidence_A, in_view_A = _evidence_at_actions(evidence_N, batch)
    # 2. The advantages plus credit: the evidence times the channel's weight, bounded if so set.
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
    # 3. The report: how far advantages moved, and the share of credit at its bound.
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


def _evidence_at_actions(evidence_N: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(evidence_A, in_view_A): the mean evidence at each token of the policy channel over the views
    that hold it, and whether any does. Tokens are matched by (row, position) of the student
    rows."""
    num_rows, width = batch.student.ids_BT.shape
    views, actions = batch.hint_student, batch.action
    index_N = views.row_N * width + views.position_N
    index_A = actions.row_N * width + actions.position_N
    sums_P = evidence_N.new_zeros(num_rows * width).index_add_(0, index_N, evidence_N)
    num_views_P = torch.zeros_like(sums_P).index_add_(0, index_N, torch.ones_like(evidence_N))
    evidence_A = sums_P[index_A] / num_views_P[index_A].clamp_min(1.0)
    return evidence_A, num_views_P[index_A] > 0


def _evidence(
    settings: HintSettings, student: ScoredHidden, teachers: Sequence[ScoredHidden], ids_N: Tensor
) -> Tensor:
    """How much likelier the hint makes each target token, in nats (N,): against the student, or
    with `contrast` against another site's hint."""
    num = num_models(settings)
    right_N = _teacher_logprobs(settings, teachers[:num], ids_N)
    if settings.contrast:
        wrong_N = _teacher_logprobs(settings, teachers[num:], ids_N)
        return contrast_evidence(right_N, wrong_N[None])
    student_N = fused_logprobs(*student, ids_N, temperature=settings.temperature)
    return hint_evidence(student_N, right_N)


def _teacher_logprobs(
    settings: HintSettings, models: Sequence[ScoredHidden], ids_N: Tensor
) -> Tensor:
    """The log-prob (N,) of each target token under the teacher made of these models."""
    if len(models) == 1:
        return fused_logprobs(*models[0], ids_N, temperature=settings.temperature)

    def rows(first_RV: Tensor, models_KRV: Tensor, ids_R: Tensor) -> Tensor:
        return token_logprobs(mixed_teacher(settings, models_KRV), ids_R)

    return fused_rows(
        rows, *models[0], teachers=models, ids_N=ids_N, temperature=settings.temperature
    )


def taid_schedule(settings: HintSettings, *, steps: int) -> TaidSchedule | None:
    """The schedule by which t, the teacher's share in TAID's mixture, grows; None if the run does
    not use TAID, or keeps t at `taid.t_start`."""
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
