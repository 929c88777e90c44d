"""The channels' losses in one micro-batch, on the final hidden states of forwards/passes.py.

`losses_on` gives training/step.py one `ChannelLoss` per channel, with unreduced values.

    policy       forwards/objectives.py, on the student's sampled tokens
    lm_ce        cross-entropy of imported tokens
    hint         forwards/hinting.py: a loss of its own, or credit on the policy's advantages
    preference   forwards/pairs.py on both sides of the pairs, or cross-entropy of the chosen side
                 (objective "clone"); plus cross-entropy of the anchors

Logits exist only at the positions that a loss needs, and for a chunk of these at a time
(losses/fused.py). For a loss whose gradient is known only after all values are (a clipped ratio, a
pair), the gradient of the output head is computed in the backward instead of the forward.

Shapes: N loss tokens, A tokens of the policy channel, P pairs, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.fused import HeadLike, fused_logprobs
from composer_replication.tokens.batch import Batch, Counts, scored_actions
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.forwards.hinting import ScoredHidden, hint_credit, hint_loss
from composer_replication.training.forwards.objectives import policy_loss
from composer_replication.training.forwards.pairs import Sides, pair_values, score_responses
from composer_replication.training.forwards.passes import (
    ForwardResults,
    RequiredForwards,
    run_passes,
)
from composer_replication.training.forwards.training_models import TrainingModels

# The metrics that a step reports beside a channel's loss: means of `ChannelLoss.metrics`.
CHANNEL_METRICS: tuple[tuple[Channel, str], ...] = (
    ("policy", "clipped"),
    ("policy", "sampler_kl"),
    ("hint", "raw"),
    ("hint", "k3"),
    ("hint", "clipped"),
    ("hint", "importance_cut"),
    ("hint", "bounded"),
    ("preference", "accuracy"),
    ("preference", "chosen_logratio"),
)


class ChannelModels(Protocol):
    """What the losses need besides hidden states: settings, and the output heads of the models.

    `TrainingModels` in the reference trainer; a backend that runs the forwards itself has its own.
    """

    @property
    def settings(self) -> TrainSettings: ...
    @property
    def taid_t(self) -> float: ...
    def student_head(self) -> HeadLike: ...
    def teacher_heads(self) -> Sequence[HeadLike]: ...
    def reference_head(self) -> HeadLike: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBudget:
    """The counts of one channel in a step, over all ranks: `inputs` before any masking (rollouts,
    spans, views, pairs), and the loss tokens that they must lead to."""

    inputs: int
    tokens: int


def budgets(settings: TrainSettings, counts: Counts) -> dict[Channel, ChannelBudget]:
    """Inputs and tokens of each channel in a step with these counts, whether the channel is on or
    not.

    >>> budgets(TrainSettings(), Counts(hint_views=2, hint_tokens=48))["hint"]
    ChannelBudget(inputs=2, tokens=48)
    """
    preference = settings.preference
    anchored = preference.anchor > 0
    sides = counts.pair_tokens if preference.both_sides else counts.chosen_tokens
    hint = ChannelBudget(inputs=counts.hint_views, tokens=counts.hint_tokens)
    if settings.hint.is_credit:
        hint = ChannelBudget(inputs=counts.credited_views, tokens=counts.credited_tokens)
    return {
        "policy": ChannelBudget(inputs=counts.rollouts, tokens=counts.action_tokens),
        "lm_ce": ChannelBudget(inputs=counts.lm_spans, tokens=counts.lm_tokens),
        "hint": hint,
        "preference": ChannelBudget(
            inputs=counts.pairs + anchored * counts.anchors,
            tokens=sides + anchored * counts.anchor_tokens,
        ),
    }


def loss_rows(
    examples: Iterable[TrainingExample], settings: TrainSettings
) -> list[TrainingExample]:
    """The examples reduced to what the channels that are on are trained on: other channels' spans
    are dropped, ids behind the last span are cut off, and examples without a span are left out.

    The model is causal, so the cut changes no loss; it saves the forward of these tokens. For
    example, of 200 tokens with a hint view at 80-95, and with actions of a flat group, 95 tokens
    and the view are left.
    """
    is_on = {name: weight > 0 for name, weight in channel_weights(settings).items()}
    credit = settings.hint.weight > 0 and settings.hint.is_credit and is_on["policy"]
    anchored = is_on["preference"] and settings.preference.anchor > 0
    rows = []
    for e in examples:
        channel_spans = {
            "actions": tuple(scored_actions(e)) if is_on["policy"] else (),
            "lm_spans": e.lm_spans if is_on["lm_ce"] else (),
            "hints": e.hints if is_on["hint"] else _credited_views(e) if credit else (),
            "anchored": e.anchored if anchored else (),
        }
        span_ends = [
            item.span[1] for item in (*channel_spans["actions"], *channel_spans["hints"])
        ] + [b for _, b in (*channel_spans["lm_spans"], *channel_spans["anchored"])]
        if span_ends:
            rows.append(replace(e, ids=e.ids[: max(span_ends)], turns=(), **channel_spans))
    return rows


def _credited_views(example: TrainingExample) -> tuple[HintView, ...]:
    """The views whose target holds a token that the policy channel scores."""
    spans = [action.span for action in scored_actions(example)]
    return tuple(v for v in example.hints if any(a < v.span[1] and v.span[0] < b for a, b in spans))


def channel_losses(
    models: TrainingModels, batch: Batch, counts: Counts
) -> tuple[list[ChannelLoss], list[Tensor]]:
    """(losses, final hidden states) of one micro-batch; the losses' graph reaches the model."""
    required = RequiredForwards.of(models.settings, batch)
    forwards = run_passes(models, batch, required)
    return losses_on(models, batch, forwards=forwards, required=required, counts=counts), list(
        forwards.hidden
    )


def losses_on(
    models: ChannelModels,
    batch: Batch,
    *,
    forwards: ForwardResults,
    required: RequiredForwards,
    counts: Counts,
) -> list[ChannelLoss]:
    """The losses of the required channels, on hidden states that exist already."""
    losses: list[ChannelLoss] = []
    if required.policy:
        losses += _policy(models, batch, forwards=forwards, required=required, counts=counts)
    if required.lm_ce:
        values_N = -fused_logprobs(
            forwards.predictors("student", batch.lm), models.student_head(), batch.lm.ids_N
        )
        losses.append(
            ChannelLoss(
                name="lm_ce", values=values_N, tokens=len(batch.lm), global_units=counts.lm_tokens
            )
        )
    if required.hint and not models.settings.hint.is_credit:
        student = (forwards.predictors("student", batch.hint_student), models.student_head())
        losses.append(
            hint_loss(
                models.settings.hint,
                student,
                _teachers(models, forwards),
                batch,
                counts=counts,
                taid_t=models.taid_t,
            )
        )
    if required.sides or required.anchors:
        losses.append(
            _preference(models, batch, forwards=forwards, required=required, counts=counts)
        )
    return losses


def _policy(
    models: ChannelModels,
    batch: Batch,
    *,
    forwards: ForwardResults,
    required: RequiredForwards,
    counts: Counts,
) -> list[ChannelLoss]:
    """The policy channel's loss; with hint credit, on the advantages that the credit has changed,
    and with the hint channel's report of it."""
    head, hint_settings = models.student_head(), models.settings.hint
    logp_N = fused_logprobs(
        forwards.predictors("student", batch.action),
        head,
        batch.action.ids_N,
        head_gradient="backward",
    )
    if not (required.hint and hint_settings.is_credit):
        return [policy_loss(logp_N, batch, counts, models.settings.policy)]
    student = (
        replace(forwards, leaves=None).predictors("student", batch.hint_student).detach(),
        head,
    )
    credit = hint_credit(hint_settings, student, _teachers(models, forwards), batch, counts=counts)
    credited_batch = replace(batch, advantage_N=credit.advantage_A)
    return [policy_loss(logp_N, credited_batch, counts, models.settings.policy), credit.loss]


def _teachers(models: ChannelModels, forwards: ForwardResults) -> list[ScoredHidden]:
    """The teachers' hidden states, each with its head, in the order of
    `ForwardResults.teachers`."""
    heads = models.teacher_heads()
    return [
        (hidden_ND, heads[number % len(heads)])
        for number, hidden_ND in enumerate(forwards.teachers)
    ]


def _preference(
    models: ChannelModels,
    batch: Batch,
    *,
    forwards: ForwardResults,
    required: RequiredForwards,
    counts: Counts,
) -> ChannelLoss:
    """The mean over pairs plus `anchor` times the mean over anchor tokens, each value with its
    weight."""
    settings, values, weights, tokens, metrics = models.settings.preference, [], [], 0, {}
    if required.pairs:
        policy, reference = _pair_logprobs(models, batch, forwards, required)
        pair_losses = pair_values(settings, policy, reference)
        values.append(pair_losses.values_P)
        weights.append(torch.full_like(pair_losses.values_P, 1.0 / counts.pairs))
        tokens += len(batch.response)
        metrics = pair_losses.metrics
    elif required.sides:
        values_N = _chosen_ce(models, batch, forwards)
        values.append(values_N)
        weights.append(torch.full_like(values_N, 1.0 / counts.chosen_tokens))
        tokens += len(values_N)
    if required.anchors:
        values_N = -fused_logprobs(
            forwards.predictors("student", batch.anchor),
            models.student_head(),
            batch.anchor.ids_N,
        )
        values.append(values_N)
        weights.append(torch.full_like(values_N, settings.anchor / counts.anchor_tokens))
        tokens += len(values_N)
    return ChannelLoss(
        name="preference",
        values=torch.cat(values),
        weights=torch.cat(weights),
        tokens=tokens,
        global_units=1,
        metrics=metrics,
    )


def _pair_logprobs(
    models: ChannelModels, batch: Batch, forwards: ForwardResults, required: RequiredForwards
) -> tuple[Sides, Sides | None]:
    """(chosen_P, rejected_P) of the student, and of the reference if the objective has one: from
    the log-probs that the pairs carry, else from this step's forward."""
    score_sides = partial(
        score_responses,
        models.settings.preference,
        item_N=batch.response.item_N,
        num_pairs=batch.num_pairs,
    )

    def sides(hidden_ND: Tensor, head: HeadLike) -> Sides:
        return score_sides(
            fused_logprobs(hidden_ND, head, batch.response.ids_N, head_gradient="backward")
        )

    is_known = len(batch.reference_logp_N) and models.settings.preference.has_reference
    reference = score_sides(batch.reference_logp_N) if is_known else None
    if required.reference:
        if forwards.reference_ND is None:
            raise AlignmentError(
                f"{models.settings.preference.objective} without the reference's hidden states"
            )
        reference = sides(forwards.reference_ND, models.reference_head())
    return (
        sides(forwards.predictors("pair", batch.response), models.student_head()),
        reference,
    )


def _chosen_ce(models: ChannelModels, batch: Batch, forwards: ForwardResults) -> Tensor:
    """Cross-entropy of each token of the chosen sides, whose rows come first."""
    chosen = batch.response.first(batch.num_pairs)
    return -fused_logprobs(forwards.predictors("pair", chosen), models.student_head(), chosen.ids_N)
