"""One optimiser step: every channel's loss on the step's inputs, one backward of the trunk for
their sum, one update.

A step, top to bottom:
    score      each channel's unreduced values (forwards/channels.py), micro-batch by micro-batch
    measure    the backward of each channel's mean ends at the final hidden states that predict its
               tokens: there its gradient's norm is taken
    add        total = sum of weight * mean / running mean norm; one backward of the trunk; the sum
               over ranks; outliers are clipped; the optimiser's step
    follow     a slow average moves towards the student, and TAID's mixture towards the teacher
    report     status, tokens, loss and gradient norm per channel; a warning at once, a stop after
               train.starved_steps bad steps

A step without any gradient (every group flat, no site, no pair) moves nothing: not the optimiser's
moments either. Results do not depend on padding, on train.micro_tokens, or on the number of ranks
(to rounding).
Shapes: C channels.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel, Status
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError, StoppedError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.losses.total import channel_scales
from composer_replication.models.sharding import unsharded
from composer_replication.tokens.batch import Counts, collate, count, micro_batches
from composer_replication.training.draws.batch_sampler import share
from composer_replication.training.draws.hint_inputs import check_views, with_wrong_hints
from composer_replication.training.draws.packing import (
    Micro,
    assign_to_ranks,
    pack_micro_batches,
    session_trees,
)
from composer_replication.training.forwards.channels import (
    CHANNEL_METRICS,
    budgets,
    loss_rows,
    losses_on,
)
from composer_replication.training.forwards.joined import joined
from composer_replication.training.forwards.objectives import reduction_of
from composer_replication.training.forwards.passes import RequiredForwards, run_passes
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.health import ChannelStep
from composer_replication.training.run.optimiser import learning_rate, set_learning_rate
from composer_replication.training.run.run_logger import RunLogger
from composer_replication.training.run.state import Trainer


def train_step(
    trainer: Trainer, inputs: StepInputs, *, step: int, run_logger: RunLogger | None = None
) -> dict[str, Any]:
    """One optimiser step on the whole step's inputs, of which this rank takes its share; returns
    the step's metrics.

    Raises AlignmentError if fewer rollouts were sampled than there are examples with an advantage,
    StoppedError if a loss or a gradient is not finite, or if a channel stays starved or dead.
    """
    began, settings = time.perf_counter(), trainer.settings
    # 1. Count over all ranks, and cut this rank's share into micro-batches.
    inputs, control_metrics = with_hint_controls(trainer.config, inputs, step=step)
    counts = step_counts(inputs)
    work = (trainer.begin_step or StepWork)(trainer, inputs, counts, step=step)
    fed: list[Channel] = [
        name
        for name, budget in budgets(settings, counts).items()
        if trainer.weights[name] and budget.tokens
    ]
    # 2. Scale: each channel's weight, divided by the running mean of its gradient norm.
    shares = _counted_shares(settings, counts)
    first_time = _measure_first_norms(trainer, work, fed, shares=shares)
    scales = channel_scales(trainer.weights, trainer.means, balance=settings.balance)
    if inputs.hint_sites:
        scales["hint"] *= min(1.0, counts.hint_views / inputs.hint_sites)
    metrics: dict[str, Any] = {"step": step + 1, **control_metrics}
    if step % settings.grad_every == 0:
        metrics |= work.parameter_norms(fed)
    # 3. Forward and backward.
    observed = work.backward(scales)
    # 4. Update the weights, and what follows them.
    loss = sum(scales[name] * observed[name].loss for name in CHANNELS)
    update = work.update(loss=loss)
    metrics |= _move_taid(trainer, observed["hint"], step=step)
    # 5. Report, and stop if a channel has been silent for too long.
    statuses = trainer.health.update_statuses(_as_health_reads_it(trainer, observed))
    for name, channel_step in observed.items():
        if name not in first_time or settings.balance == "none":
            trainer.means[name].add(channel_step.grad_norm / shares[name])
        metrics |= _channel_metrics(name, channel_step, statuses[name], scale=scales[name])
    metrics |= {**update, "step_s": round(time.perf_counter() - began, 4)}
    if run_logger is not None:
        run_logger.step(metrics, trainer.health.warnings(statuses))
    trainer.health.check(statuses, step=step + 1)
    return metrics


class StepWork:
    """The forwards, backwards and the update of one step, in this process and its ranks.

    A backend puts a class with the same methods into `Trainer.begin_step`.
    """

    def __init__(self, trainer: Trainer, inputs: StepInputs, counts: Counts, *, step: int) -> None:
        self.trainer, self.counts, self.step = trainer, counts, step
        self.micros = rank_micro_batches(trainer, inputs)

    def measure(self) -> dict[Channel, ChannelStep]:
        """Each channel's loss and gradient norm, without a backward of the trunk."""
        return self._accumulate(None)

    def parameter_norms(self, fed: Sequence[Channel]) -> dict[str, float]:
        """The norm of each channel's gradient over the weights, by a separate backward."""
        norms: dict[str, float] = {}
        for name in fed:
            self._accumulate({name: 1.0})
            norms[f"{name}/grad_norm_parameters"] = gradient_norm(self.trainer.trainable())
            self.trainer.optimiser.zero_grad()
        return norms

    def backward(self, scales: Mapping[Channel, float]) -> dict[Channel, ChannelStep]:
        """Each channel's loss and gradient norm; the gradient of the scaled sum is left in the
        weights."""
        return self._accumulate(scales)

    def update(self, *, loss: float) -> dict[str, Any]:
        """Move the weights; returns the metrics. Raises StoppedError for a gradient or a loss that
        is not finite, before any weight has moved."""
        return _update(self.trainer, loss=loss, step=self.step)

    def _accumulate(self, scales: Mapping[Channel, float] | None) -> dict[Channel, ChannelStep]:
        # the seed comes first: every pass of a step draws the same dropout
        self.trainer.seed(self.step)
        return accumulate(self.trainer, self.micros, self.counts, scales=scales)


def _counted_shares(settings: TrainSettings, counts: Counts) -> dict[Channel, float]:
    """The share of what was sampled that a channel's mean is made of: below 1 for the policy's flat
    groups, if the objective counts them.

    The balance compares norms without this factor. With it, ten steps of more flat groups would be
    scaled up again, and a policy that has nothing left to learn would move as far as one that has.
    """
    divided = reduction_of(settings.policy.objective) != "token_mean" and counts.rollouts > 0
    return {
        name: counts.rollouts / counts.sampled_rollouts if name == "policy" and divided else 1.0
        for name in CHANNELS
    }


def _measure_first_norms(
    trainer: Trainer, work: StepWork, fed: Sequence[Channel], *, shares: Mapping[Channel, float]
) -> list[Channel]:
    """Give each channel that is fed for the first time a norm to be divided by, before anything
    moves; returns these channels."""
    first_time: list[Channel] = [name for name in fed if not trainer.means[name].weight]
    if first_time and trainer.settings.balance == "grad_norm":
        for name, channel_step in work.measure().items():
            if name in first_time:
                trainer.means[name].add(channel_step.grad_norm / shares[name])
    return first_time


def _update(trainer: Trainer, *, loss: float, step: int) -> dict[str, Any]:
    """Clip the gradients, step the optimiser, and let slow averages follow; returns the metrics.

    Raises StoppedError if the loss or the gradient is not finite, before any weight has moved.
    """
    rate, norm = learning_rate(trainer.settings, step), gradient_norm(trainer.trainable())
    check_finite(loss=loss, norm=norm, step=step)
    clipped = False
    if norm > 0:  # AdamW moves weights on a gradient of 0 too: by momentum and by weight decay
        clipped = trainer.clip.apply(trainer.trainable(), norm=norm)
        set_learning_rate(trainer.optimiser, rate)
        trainer.optimiser.step()
        for reference in trainer.models.references.values():
            reference.update(trainer.models.student.model)
    trainer.optimiser.zero_grad()
    return {"loss": loss, "grad_norm": norm, "clipped": clipped, "lr": rate}


def check_finite(*, loss: float, norm: float, step: int) -> None:
    """Raise StoppedError if the loss or the gradient norm of a step is not finite."""
    if not (math.isfinite(norm) and math.isfinite(loss)):
        raise StoppedError(
            f"step {step + 1} is not finite: loss {loss}, gradient norm {norm}",
            where="not_finite",
            fix="lower train.learning_rate, or use student.dtype = float32",
        )


def _channel_metrics(
    name: Channel, channel_step: ChannelStep, status: Status, *, scale: float
) -> dict[str, Any]:
    """One channel's part of the step's metrics."""
    return {
        f"{name}/status": status,
        f"{name}/tokens": channel_step.tokens,
        f"{name}/loss": channel_step.loss if channel_step.tokens else None,
        f"{name}/grad_norm": channel_step.grad_norm,
        f"{name}/scale": scale,
        **{f"{name}/{key}": value for key, value in channel_step.metrics.items()},
    }


def _move_taid(trainer: Trainer, hint_step: ChannelStep, *, step: int) -> dict[str, float]:
    """The share of the teacher in TAID's mixture, as a metric; then the step's mean moves it. A
    step without a site leaves it alone."""
    models = trainer.models
    if not trainer.settings.hint.weight or trainer.settings.hint.divergence != "taid":
        return {}
    metrics = {"hint/taid_t": models.taid_t}
    if models.taid is not None:
        models.taid.update(hint_step.metrics.get("raw", 0.0), step=step, tokens=hint_step.tokens)
    return metrics


def _as_health_reads_it(
    trainer: Trainer, observed: dict[Channel, ChannelStep]
) -> dict[Channel, ChannelStep]:
    """The channels with credit's size where health reads a gradient norm.

    Under credit the hint channel has no gradient of its own; its loss, the mean change of the
    advantages, takes the norm's place, so "dead" means that credit moves nothing.
    """
    if not trainer.settings.hint.is_credit:
        return observed
    credit: Channel = "hint"
    return {
        **observed,
        credit: dataclasses.replace(observed[credit], grad_norm=observed[credit].loss),
    }


def with_hint_controls(
    config: Config, inputs: StepInputs, *, step: int
) -> tuple[StepInputs, dict[str, int]]:
    """The inputs with what train.hint asks of their views, and metrics: how many views were left
    out because there is no other hint to compare them with (`hint/no_donor`), and how many keep
    their whole message because its decision is not known (`hint/unfocused`).

    Raises ConfigError for views that cannot have it. The same on every rank.
    """
    settings = config.train.hint
    metrics: dict[str, int] = {}
    if not settings.weight:
        return inputs, metrics
    check_views(inputs.examples, settings)
    examples = list(inputs.examples)
    if settings.focus == "decision":
        metrics["hint/unfocused"] = sum(
            not view.knows_decisions for example in examples for view in example.hints
        )
        examples = [example.focused() if example.hints else example for example in examples]
    if settings.contrast:
        seed = stage_seed(config.draw_seed, f"contrast:{step}")
        examples, metrics["hint/no_donor"] = with_wrong_hints(
            examples, seed=seed, dataset=inputs.dataset
        )
    return dataclasses.replace(inputs, examples=examples), metrics


def step_counts(inputs: StepInputs) -> Counts:
    """Global counts of a step, from the inputs that every rank holds.

    Example: of 6 rollouts 2 came of a group with equal rewards: .rollouts -> 4, .sampled_rollouts
    -> 6 (num_rollouts=6)
    """
    counts = count(inputs.examples, inputs.pairs)
    if inputs.num_rollouts is None:
        return counts
    most = max(inputs.num_rollouts, inputs.num_conversations)
    if counts.rollouts > most:
        raise AlignmentError(
            f"{counts.rollouts} examples have an action with an advantage, but only {most}"
            " conversations were sampled"
        )
    return dataclasses.replace(counts, sampled_rollouts=inputs.num_rollouts)


def rank_micro_batches(trainer: Trainer, inputs: StepInputs) -> list[Micro]:
    """This rank's share of the step, cut into micro-batches."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    rows, limit = loss_rows(inputs.examples, trainer.settings), trainer.settings.micro_tokens
    if trainer.models.layout == "rows":
        return micro_batches(
            share(rows, rank=rank, world=world),
            share(inputs.pairs, rank=rank, world=world),
            micro_tokens=limit,
        )
    pairs = inputs.pairs if trainer.weights["preference"] else []
    trees = session_trees(rows, pairs, micro_tokens=limit)
    rank_trees = assign_to_ranks(trees, ranks=world, pair_weight=trainer.models.pair_weight)[rank]
    return pack_micro_batches(rank_trees, micro_tokens=limit)


def accumulate(
    trainer: Trainer, micros: list[Micro], counts: Counts, *, scales: Mapping[Channel, float] | None
) -> dict[Channel, ChannelStep]:
    """Score every micro-batch of this rank; with `scales`, also backward their scaled sum. The
    result is summed over ranks."""
    models, device = trainer.models, trainer.accelerator.device
    # columns: tokens, loss, squared norm
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device=device)
    # columns: sum, number of values
    metric_sums = torch.zeros(len(CHANNEL_METRICS), 2, dtype=torch.float64, device=device)
    with joined(models):
        _score_micro_batches(
            trainer, micros, counts, scales=scales, sums=sums, metric_sums=metric_sums
        )
    if trainer.accelerator.num_processes > 1:
        sums, metric_sums = _over_ranks(trainer, sums), _over_ranks(trainer, metric_sums)
    if trainer.accelerator.num_processes > 1 and scales is not None and models.sharding is None:
        # a rank without this channel adds zeros: one that skipped the call would hang the others
        for parameter in trainer.trainable():
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = _over_ranks(trainer, grad)
    return channel_steps_of_sums(trainer.settings, counts, sums=sums, metric_sums=metric_sums)


def _score_micro_batches(
    trainer: Trainer,
    micros: list[Micro],
    counts: Counts,
    *,
    scales: Mapping[Channel, float] | None,
    sums: Tensor,
    metric_sums: Tensor,
) -> None:
    """Score this rank's micro-batches into `sums` and `metric_sums`; with `scales`, also backward
    their scaled sum."""
    models, device = trainer.models, trainer.accelerator.device
    for number, (examples, pairs) in enumerate(micros, 1):
        trainer.on_progress(
            partial("forward and backward: part {} of {}".format, number, len(micros))
        )
        batch = collate(examples, pairs, pad_id=models.student.pad_id).to(device)
        required = RequiredForwards.of(trainer.settings, batch)
        # measuring walks back to the detached leaves only: the trunk needs no graph
        with nullcontext() if scales is not None else torch.no_grad():
            forwards = run_passes(models, batch, required).detached_leaves()
        losses = losses_on(models, batch, forwards=forwards, required=required, counts=counts)
        # a loop variable of `losses` would keep the last channel's graph alive
        for name, values in ((loss.name, loss.metrics) for loss in losses):
            for key, value_N in values.items():
                metric_sums[CHANNEL_METRICS.index((name, key))] += torch.stack(
                    [value_N.double().sum(), metric_sums.new_tensor(len(value_N))]
                )
        while losses:  # a channel's graph is let go of as soon as it is walked back
            leaves = [leaf for _, leaf in forwards.leaves or ()]
            measure_channels(sums, [losses.pop(0)], leaves, scales=scales)
        if scales is not None:
            forwards.backward(models)


def channel_steps_of_sums(
    settings: TrainSettings, counts: Counts, *, sums: Tensor, metric_sums: Tensor
) -> dict[Channel, ChannelStep]:
    """The metrics of each channel in a step. Raises AlignmentError if another number of tokens
    reached a loss than was counted beforehand."""
    expected = budgets(settings, counts)
    means = {
        place: total / number
        for place, (total, number) in zip(CHANNEL_METRICS, metric_sums.tolist(), strict=True)
        if number
    }
    channel_steps: dict[Channel, ChannelStep] = {}
    for name, (tokens, loss, squares) in zip(CHANNELS, sums.tolist(), strict=True):
        if tokens not in (0, expected[name].tokens):
            raise AlignmentError(
                f"channel {name}: {int(tokens)} tokens reached the loss, {expected[name].tokens}"
                " were counted beforehand"
            )
        channel_steps[name] = ChannelStep(
            inputs=expected[name].inputs,
            tokens=int(tokens),
            loss=loss,
            grad_norm=math.sqrt(squares),
            metrics={key: mean for (channel, key), mean in means.items() if channel == name},
        )
    return channel_steps


def _over_ranks(trainer: Trainer, tensor: Tensor) -> Tensor:
    """The sum over all ranks."""
    return cast(Tensor, trainer.accelerator.reduce(tensor, reduction="sum"))


def measure_channels(
    sums: Tensor,
    losses: list[ChannelLoss],
    hidden: list[Tensor],
    *,
    scales: Mapping[Channel, float] | None = None,
) -> None:
    """Add each channel's tokens, mean and squared gradient norm at the final hidden states to its
    row of `sums`, on its device.

    With `scales`, the gradient times the channel's scale is added to the hidden states and to the
    head's weights. The norm is 0 if the loss does not reach the hidden states. Nothing is read
    back, so a GPU is not waited for.
    """
    for loss in losses:
        mean, row = loss.mean_part(), sums[CHANNELS.index(loss.name)]
        row[0] += loss.tokens
        row[1] += mean.detach()
        if not mean.requires_grad:
            continue
        if scales is None or not (scale := scales.get(loss.name, 0.0)):
            for grad in torch.autograd.grad(
                mean, hidden, retain_graph=scales is None, allow_unused=True
            ):
                row[2] += 0.0 if grad is None else grad.double().square().sum()
            continue
        # a leaf (ForwardResults.predictors) belongs to one channel's loss
        untouched = [h for h in hidden if h.grad is None]
        mean.backward(torch.full_like(mean, scale))
        for h in untouched:
            if h.grad is not None:
                row[2] += (h.grad.double() / scale).square().sum()


def gradient_norm(parameters: list[Tensor]) -> float:
    """The norm of all gradients together, of all ranks' shards if they are sharded; 0 if there is
    none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(unsharded(torch.nn.utils.get_total_norm(grads))) if grads else 0.0
