"""The hint channel's controls (train.hint): which teacher, which divergence, what is clipped and
weighed, and credit on advantages.

    teacher logits = one model's, or the trust region of two (start and now); with `contrast` less what another site's hint does too
    value of a token = divergence of its row, estimated as asked for                     chunk by chunk (losses/fused.py)
    then             = min(value, token_clip) * min(policy / sampler, importance_clip) * sqrt(p (1 - p))
    mean             = over all target tokens, or over messages, each the mean of its tokens (view_weights)
    credit           = no loss: log p_teacher - log p_student of the sampled token moves its advantage (losses/credit.py)

`teachers` are (hidden states, head) in the order of training/passes.py: below the site's hint (the
teacher; with a trust region then the start), and with `contrast` the same below another site's
hint. They never get a gradient. Every trainer calls these functions.
Shapes: N target tokens of the views, A tokens of the policy channel, R rows of a chunk, K teachers,
V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.core.errors import AlignmentError, ConfigError
from composer_replication.evaluation.hint_lift import shuffled_views
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
from composer_replication.models.forward import Head
from composer_replication.tokens.batch import Batch, Counts
from composer_replication.tokens.example import HintView, TrainingExample

Rated = tuple[Tensor, Head]
PLAIN = ("kl(student, teacher)", "kl(teacher, student)", "jsd")
AT_BOUND = 0.95
"""Credit above this share of its bound counts as standing at it."""


def hint_loss(
    how: HintSettings,
    student: Rated,
    teachers: Sequence[Rated],
    batch: Batch,
    *,
    counts: Counts,
    t: float | None = None,
) -> ChannelLoss:
    """The hint channel's own loss on the tokens of the views, unreduced; `t` is where TAID's
    mixture stands.

    Told beside it where the control is on: `clipped` (share of tokens above token_clip),
    `importance_cut` (share above importance_clip), `raw` (mean divergence before clip and weights;
    TAID's schedule reads it), `k3` (the sampled token's estimate of the KL).
    """
    ids_N, told = batch.hint_student.ids_N, {}
    weights_N = view_weights(how, batch, counts)
    if how.estimator == "sampled_token" and how.divergence in PLAIN:
        values_N, told["k3"] = _sampled(how, student, teachers, ids_N)
    else:
        values_N = _divergences(how, student, teachers, ids_N, weights_N=weights_N, t=t)
        if how.token_clip or how.importance_clip or how.difficulty or how.divergence == "taid":
            told["raw"] = values_N.detach()
    if how.token_clip:
        told["clipped"] = values_N.detach() > how.token_clip
        values_N = clip_tokens(values_N, maximum=how.token_clip)
    if how.importance_clip:
        with torch.no_grad():
            logp_N = fused_logprobs(*student, ids_N)
        told["importance_cut"] = ratio(logp_N, batch.hint_logp_N) > how.importance_clip
        values_N = values_N * importance_weights(logp_N, batch.hint_logp_N, cap=how.importance_clip)
    units = counts.hint_tokens if weights_N is None else 1
    weights_N = None if weights_N is None else weights_N.to(values_N.dtype)
    return ChannelLoss(
        name="hint",
        values=values_N,
        tokens=len(ids_N),
        global_units=units,
        weights=weights_N,
        metrics=told,
    )


def view_weights(how: HintSettings, batch: Batch, counts: Counts) -> Tensor | None:
    """What each target token weighs, so that the weighted sum over the whole step is the mean; None
    = all alike, 1 / hint_tokens.

    mean = "site": a message of n tokens gives each 1 / (n * messages); counts are global and no
    view is cut, so neither ranks nor micro-batches nor the layout change it. Example: messages of 1
    and 3 tokens -> 1/2, 1/6, 1/6, 1/6; with "token" 1/4 each
    """
    if how.mean == "token":
        return batch.hint_weight_N / counts.hint_weight if how.difficulty else None
    if how.difficulty:
        return batch.hint_weight_N / (batch.hint_size_N * counts.hint_view_weight)
    return 1 / (batch.hint_size_N * counts.hint_views)


def teacher_rows(how: HintSettings, student_RV: Tensor, teachers_KRV: Tensor) -> Tensor:
    """The teacher's logits, from those of the models it is made of; `contrast` needs the student's
    too. All at one temperature."""
    models = num_models(how)
    if len(teachers_KRV) != models * (1 + how.contrast):
        raise AlignmentError(
            f"{len(teachers_KRV)} teachers were scored, {models * (1 + how.contrast)} are needed"
        )
    right_RV = mixed_teacher(how, teachers_KRV[:models])
    if not how.contrast:
        return right_RV
    return contrast_target(student_RV, right_RV, mixed_teacher(how, teachers_KRV[models:])[None])


def plain_divergence(how: HintSettings) -> Divergence:
    """The divergence of the settings where it is one of the three plain ones, else kl(student,
    teacher): what a page shows of a token."""
    return cast(Divergence, how.divergence) if how.divergence in PLAIN else "kl(student, teacher)"


def num_models(how: HintSettings) -> int:
    """How many models a teacher is made of."""
    return 2 if how.teacher == "trust_region" else 1


def mixed_teacher(how: HintSettings, models_KRV: Tensor | Sequence[Tensor]) -> Tensor:
    """The logits of the teacher: one model's, or of the trust region's two (now, then the start)
    their mixture."""
    return (
        trust_region(models_KRV[1], models_KRV[0], share=how.trust)
        if how.teacher == "trust_region"
        else models_KRV[0]
    )


def _divergences(
    how: HintSettings,
    student: Rated,
    teachers: Sequence[Rated],
    ids_N: Tensor,
    *,
    weights_N: Tensor | None,
    t: float | None,
) -> Tensor:
    """The divergence of each token, unweighted: `weights_N` only let the head's gradient be summed
    where the logits are."""
    head_gradient: HeadGradient = "backward" if how.token_clip or how.importance_clip else "forward"
    one = {"temperature": how.temperature, "head_gradient": head_gradient, "weights_N": weights_N}
    if (
        len(teachers) == 1
        and how.estimator == "full"
        and not how.entry_clip
        and how.divergence in PLAIN
    ):
        return fused_divergence(
            *student,
            *teachers[0],
            divergence=cast(Divergence, how.divergence),
            beta=how.beta,
            **one,
        )
    measure, by_token = row_measure(how, t=t), how.estimator == "sampled_token"

    def rows(student_RV: Tensor, teachers_KRV: Tensor, ids_R: Tensor | None = None) -> Tensor:
        return measure(student_RV, teacher_rows(how, student_RV, teachers_KRV), ids_R)

    return fused_rows(rows, *student, teachers=teachers, ids_N=ids_N if by_token else None, **one)


def row_measure(
    how: HintSettings, *, t: float | None = None
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """fn(student_RV, teacher_RV, ids_R) -> values_R of these settings, on logits at the temperature
    already.

    Example: row_measure(HintSettings(estimator="top_k", top_k=20))(student_RV, teacher_RV, None)
    """
    gate = how.entropy
    beta = {"kl(student, teacher)": 1.0, "kl(teacher, student)": 0.0}.get(how.divergence, how.beta)

    def measure(student_RV: Tensor, teacher_RV: Tensor, ids_R: Tensor | None) -> Tensor:
        if how.divergence == "taid":
            if t is None:
                raise AlignmentError("TAID without a place of its mixture")
            return taid(student_RV, teacher_RV, t=t)
        if how.divergence == "eopd":
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
        if how.divergence == "soft_gate":
            return eopd_soft_gate(student_RV, teacher_RV, h_max=gate.h_max or None)
        if how.estimator == "top_k":
            kept = {"k": how.top_k, "support": how.support, "rest": how.rest}
            return topk_divergence(
                student_RV, teacher_RV, **kept, beta=beta, entry_clip=how.entry_clip or None
            )
        if how.entry_clip:
            return entry_clipped(student_RV, teacher_RV, entry_clip=how.entry_clip, beta=beta)
        return hint_divergence(
            student_RV, teacher_RV, divergence=cast(Divergence, how.divergence), beta=how.beta
        )

    return measure


def _sampled(
    how: HintSettings, student: Rated, teachers: Sequence[Rated], ids_N: Tensor
) -> tuple[Tensor, Tensor]:
    """The sampled-token loss of each token, and k3 of the KL, which is what may be read."""
    logp_N = fused_logprobs(*student, ids_N, temperature=how.temperature, head_gradient="backward")
    with torch.no_grad():
        if not how.contrast:
            teacher_N = _teacher_logprobs(how, teachers, ids_N)
        else:

            def rows(student_RV: Tensor, teachers_KRV: Tensor, ids_R: Tensor) -> Tensor:
                return token_logprobs(teacher_rows(how, student_RV, teachers_KRV), ids_R)

            teacher_N = fused_rows(
                rows, *student, teachers=teachers, ids_N=ids_N, temperature=how.temperature
            )
    return sampled_token(logp_N, teacher_N), kl_estimate(logp_N.detach(), teacher_N, kind="k3")


# ---- credit ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Advantages with the hint's credit, the hint channel's line of it (mean |credit|, no
    gradient), and what is told."""

    advantage_A: Tensor
    loss: ChannelLoss
    told: Mapping[str, Tensor] = field(default_factory=dict)


def hint_credit(
    how: HintSettings, student: Rated, teachers: Sequence[Rated], batch: Batch, *, counts: Counts
) -> Credit:
    """Move the advantages of sampled tokens that stand in a view by the hint's evidence; the others
    stay, bit by bit.

    Where two views hold one token, its evidence is their mean. A rollout of a flat group has no
    advantage and gets no credit.
    """
    with torch.no_grad():
        evidence_N = _evidence(how, student, teachers, batch.hint_student.ids_N)
    width = batch.student.ids_BT.shape[1]
    sums_M, views_M = (
        torch.zeros(len(batch.student) * width, dtype=evidence_N.dtype, device=evidence_N.device)
        for _ in range(2)
    )
    place_N, place_A = (x.row_N * width + x.position_N for x in (batch.hint_student, batch.action))
    sums_M.index_add_(0, place_N, evidence_N)
    views_M.index_add_(0, place_N, torch.ones_like(evidence_N))
    in_view_A = views_M[place_A] > 0
    given_A = batch.advantage_N.to(evidence_N.dtype)
    evidence_A = sums_M[place_A] / views_M[place_A].clamp_min(1.0)
    bounded = how.combination == "bounded"
    limits = {
        "bound": how.bound if bounded else None,
        "keep_sign": bounded,
        "dead_zone": how.dead_zone,
    }
    changed_A = torch.where(
        in_view_A,
        credited_advantage(given_A, evidence_A, coefficient=how.weight, **limits),
        given_A,
    )
    credit_C = (how.weight * evidence_A)[in_view_A]
    told = {}
    if bounded:
        credit_C = how.bound * torch.tanh(credit_C / how.bound)
        told["bounded"] = credit_C.abs() > AT_BOUND * how.bound
    moved_C = (changed_A - given_A)[in_view_A].abs()
    line = ChannelLoss(
        name="hint",
        values=moved_C,
        tokens=len(moved_C),
        global_units=counts.credited_tokens,
        metrics=told,
    )
    return Credit(advantage_A=changed_A, loss=line)


def _evidence(
    how: HintSettings, student: Rated, teachers: Sequence[Rated], ids_N: Tensor
) -> Tensor:
    models = num_models(how)
    right_N = _teacher_logprobs(how, teachers[:models], ids_N)
    if how.contrast:
        return contrast_evidence(right_N, _teacher_logprobs(how, teachers[models:], ids_N)[None])
    return hint_evidence(fused_logprobs(*student, ids_N, temperature=how.temperature), right_N)


def _teacher_logprobs(how: HintSettings, models: Sequence[Rated], ids_N: Tensor) -> Tensor:
    if len(models) == 1:
        return fused_logprobs(*models[0], ids_N, temperature=how.temperature)

    def rows(first_RV: Tensor, models_KRV: Tensor, ids_R: Tensor) -> Tensor:
        return token_logprobs(mixed_teacher(how, models_KRV), ids_R)

    return fused_rows(rows, *models[0], teachers=models, ids_N=ids_N, temperature=how.temperature)


# ---- what the views must bring ----


def check_views(examples: Sequence[TrainingExample], how: HintSettings) -> None:
    """Raise ConfigError for a control that needs what these views do not have; the first such view
    is named."""
    for view in (view for example in examples for view in example.hints):
        rules = (
            (
                how.estimator == "sampled_token" and view.origin != "student",
                "estimator",
                (
                    "the sampled token is an estimate on the student's own tokens, and another"
                    " model wrote this message"
                ),
                "set train.fork = true, play live rollouts, or set train.hint.estimator = full",
            ),
            (
                bool(how.importance_clip) and not view.logprobs,
                "importance_clip",
                "the sampler's log-probs of this message are not known",
                "set train.fork = true, play live rollouts, or set train.hint.importance_clip = 0",
            ),
            (
                how.difficulty and view.difficulty is None,
                "difficulty",
                "this message belongs to no group of rollouts with a success rate",
                "play live rollouts, or set train.hint.difficulty = false",
            ),
        )
        for broken, name, what, fix in rules:
            if broken:
                raise ConfigError(f"{what} ({view.site_id})", where=f"train.hint.{name}", fix=fix)


def with_wrong_hints(
    examples: Sequence[TrainingExample], *, seed: int
) -> tuple[list[TrainingExample], int]:
    """Examples whose views also carry the hint of another site of the step, and how many views were
    left out for want of one.

    The other site is of another kind and session where there is one, and its hint is never the same
    text.
    """
    spots = [(e, v) for e in examples for v in e.hints]
    donors = iter(
        shuffled_views([v for _, v in spots], [e.session_id for e, _ in spots], seed=seed)
    )
    found, dropped = [], 0
    for example in examples:
        kept: list[HintView] = []
        for view in example.hints:
            if (donor := next(donors)) is not None:
                kept.append(replace(view, wrong_ids=spots[donor][1].hint_ids))
        dropped += len(example.hints) - len(kept)
        found.append(replace(example, hints=tuple(kept)) if example.hints else example)
    return found, dropped


def taid_schedule(how: HintSettings, *, steps: int) -> TaidSchedule | None:
    """The schedule of a run whose divergence is TAID and moves; None for the others. Where it is
    None, t is `taid.t_start`."""
    if how.divergence != "taid" or how.taid.schedule == "fixed":
        return None
    s = how.taid
    bounds = {"t_start": s.t_start, "t_end": s.t_end, "alpha": s.alpha, "beta": s.momentum}
    return TaidSchedule(num_steps=steps, adaptive=s.schedule == "adaptive", **bounds)
