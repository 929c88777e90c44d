"""What each channel scores in one micro-batch: unreduced values on the hidden states of
training/passes.py.

    student rows    policy, lm_ce, hint and the anchors of preference
    pair rows       both sides (training/pairs.py), or the chosen sides alone where the objective is to clone them

The hint's own loss, or its credit on the policy's advantages, is training/hinting.py.

Logits exist only where a loss needs them, and there for a few positions at a time
(losses/fused.py). A gradient that is known only when all values are (a clipped ratio, a pair) makes
the head's gradient in the backward. Shapes: N loss tokens, P pairs, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.channel import Channel, ChannelLoss
from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.forward import Head, head_of
from composer_replication.tokens.batch import Batch, Counts, scored_actions
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.training.hinting import Rated, hint_credit, hint_loss
from composer_replication.training.objectives import policy_loss
from composer_replication.training.pairs import Sides, by_sequence, pair_values
from composer_replication.training.passes import ForwardResults, RequiredForwards, run_passes
from composer_replication.training.reference import Reference
from composer_replication.training.state import Trainer, channel_weights

# means that are reported beside a channel's loss
TOLD: tuple[tuple[Channel, str], ...] = (
    ("policy", "clipped"),
    ("hint", "raw"),
    ("hint", "k3"),
    ("hint", "clipped"),
    ("hint", "importance_cut"),
    ("hint", "bounded"),
    ("preference", "accuracy"),
    ("preference", "chosen_logratio"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBudget:
    """What a step holds for one channel, over all ranks: inputs before any masking, and the loss
    tokens that must come of them."""

    inputs: int
    tokens: int


def budgets(settings: TrainSettings, counts: Counts) -> dict[Channel, ChannelBudget]:
    """Inputs and tokens of each channel in a step with these counts, whether the channel is on or
    not.

    Example: budgets(config.train, count(examples, pairs))["hint"] -> ChannelBudget(inputs=2,
    tokens=48)
    """
    how = settings.preference
    anchored, sides = how.anchor > 0, counts.pair_tokens if how.both_sides else counts.chosen_tokens
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
    """The examples with only the spans of channels that are on, cut behind the last of them; those
    with none are left out.

    A causal model's loss depends on nothing behind its last token, so this changes no value: it
    saves the forward of those tokens.
    Example: 200 tokens with one hint view at 80-95, and actions of a group in which every reward
    was alike -> 95 tokens, one view
    """
    on = {name: weight > 0 for name, weight in channel_weights(settings).items()}
    credit = settings.hint.weight > 0 and settings.hint.is_credit and on["policy"]
    anchored = on["preference"] and settings.preference.anchor > 0
    rows = []
    for e in examples:
        kept = {
            "actions": tuple(scored_actions(e)) if on["policy"] else (),
            "trained": e.trained if on["lm_ce"] else (),
            "hints": e.hints if on["hint"] else _credited_views(e) if credit else (),
            "anchored": e.anchored if anchored else (),
        }
        ends = [item.span[1] for item in (*kept["actions"], *kept["hints"])] + [
            b for _, b in (*kept["trained"], *kept["anchored"])
        ]
        if ends:
            rows.append(replace(e, ids=e.ids[: max(ends)], turns=(), **kept))
    return rows


def _credited_views(example: TrainingExample) -> tuple[HintView, ...]:
    """The views whose target holds a token that the policy channel scores."""
    spans = [action.span for action in scored_actions(example)]
    return tuple(v for v in example.hints if any(a < v.span[1] and v.span[0] < b for a, b in spans))


def channel_losses(
    trainer: Trainer, batch: Batch, counts: Counts
) -> tuple[list[ChannelLoss], list[Tensor]]:
    """The unreduced values of every weighted channel in one micro-batch, and the final hidden
    states they hang on."""
    uses = RequiredForwards.of(trainer.settings, trainer.weights, batch)
    passes = run_passes(trainer, batch, uses)
    return losses_on(trainer, batch, passes, uses, counts), list(passes.hidden)


def losses_on(
    trainer: Trainer, batch: Batch, passes: ForwardResults, uses: RequiredForwards, counts: Counts
) -> list[ChannelLoss]:
    """The unreduced values of the channels in use, on hidden states that were computed before."""
    model = trainer.student.model
    losses: list[ChannelLoss] = []
    if uses.policy:
        losses += _policy(trainer, batch, passes, uses, counts)
    if uses.lm_ce:
        values_N = -fused_logprobs(
            passes.predictors("student", batch.lm), head_of(model), batch.lm.ids_N
        )
        losses.append(
            ChannelLoss(
                name="lm_ce", values=values_N, tokens=len(batch.lm), global_units=counts.lm_tokens
            )
        )
    if uses.hint and not trainer.settings.hint.is_credit:
        student = (passes.predictors("student", batch.hint_student), head_of(model))
        losses.append(
            hint_loss(
                trainer.settings.hint,
                student,
                _teachers(trainer, passes),
                batch,
                counts=counts,
                t=trainer.taid_t,
            )
        )
    if uses.sides or uses.anchors:
        losses.append(_preference(trainer, batch, passes, uses, counts))
    return losses


def _policy(
    trainer: Trainer, batch: Batch, passes: ForwardResults, uses: RequiredForwards, counts: Counts
) -> list[ChannelLoss]:
    """The objective on the log-probs of the sampled tokens, as they are now; with credit, on
    advantages that the hint has moved."""
    head, how = head_of(trainer.student.model), trainer.settings.hint
    logp_N = fused_logprobs(
        passes.predictors("student", batch.action),
        head,
        batch.action.ids_N,
        head_gradient="backward",
    )
    if not (uses.hint and how.is_credit):
        return [policy_loss(logp_N, batch, counts, trainer.settings.policy)]
    student = (replace(passes, cut=None).predictors("student", batch.hint_student).detach(), head)
    credit = hint_credit(how, student, _teachers(trainer, passes), batch, counts=counts)
    moved = replace(batch, advantage_N=credit.advantage_A)
    return [policy_loss(logp_N, moved, counts, trainer.settings.policy), credit.loss]


def _teachers(trainer: Trainer, passes: ForwardResults) -> list[Rated]:
    """What scored the hint targets, with its head, in the order of `ForwardResults.teachers`."""
    heads = [reference_head(reference) for reference in trainer.teachers]
    return [
        (hidden_ND, heads[number % len(heads)]) for number, hidden_ND in enumerate(passes.teachers)
    ]


def _preference(
    trainer: Trainer, batch: Batch, passes: ForwardResults, uses: RequiredForwards, counts: Counts
) -> ChannelLoss:
    """The mean over pairs plus `anchor` times the mean over anchor tokens, each value with its
    weight."""
    settings, values, weights, tokens, told = trainer.settings.preference, [], [], 0, {}
    if uses.pairs:
        policy, reference = _pair_logprobs(trainer, batch, passes, uses)
        found = pair_values(settings, policy, reference)
        values.append(found.values_P)
        weights.append(torch.full_like(found.values_P, 1.0 / counts.pairs))
        tokens += len(batch.response)
        told = found.told
    elif uses.sides:
        values_N = _chosen_ce(trainer, batch, passes)
        values.append(values_N)
        weights.append(torch.full_like(values_N, 1.0 / counts.chosen_tokens))
        tokens += len(values_N)
    if uses.anchors:
        values_N = -fused_logprobs(
            passes.predictors("student", batch.anchor),
            head_of(trainer.student.model),
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
        metrics=told,
    )


def _pair_logprobs(
    trainer: Trainer, batch: Batch, passes: ForwardResults, uses: RequiredForwards
) -> tuple[Sides, Sides | None]:
    """(chosen_P, rejected_P) of the student, and of the reference where the objective has one: as
    the pairs carry it, or as scored now."""
    take = partial(
        by_sequence,
        trainer.settings.preference,
        item_N=batch.response.item_N,
        num_pairs=batch.num_pairs,
    )

    def sides(hidden_ND: Tensor, head: Head) -> Sides:
        return take(fused_logprobs(hidden_ND, head, batch.response.ids_N, head_gradient="backward"))

    known = len(batch.reference_logp_N) and trainer.settings.preference.has_reference
    reference = take(batch.reference_logp_N) if known else None
    if uses.reference:
        if passes.reference_ND is None:
            raise AlignmentError(
                f"{trainer.settings.preference.objective} without the reference's hidden states"
            )
        reference = sides(passes.reference_ND, reference_head(trainer.references["preference"]))
    return (
        sides(passes.predictors("pair", batch.response), head_of(trainer.student.model)),
        reference,
    )


def _chosen_ce(trainer: Trainer, batch: Batch, passes: ForwardResults) -> Tensor:
    """Cross-entropy of each token of the chosen sides; their rows stand first."""
    chosen = batch.response.first(batch.num_pairs)
    return -fused_logprobs(
        passes.predictors("pair", chosen), head_of(trainer.student.model), chosen.ids_N
    )


def reference_head(reference: Reference) -> Head:
    """The output head of a model that gets no gradient."""
    with reference.scoring() as model:
        head = head_of(model)
        return replace(
            head,
            weight_VD=head.weight_VD.detach(),
            bias_V=None if head.bias_V is None else head.bias_V.detach(),
        )
