"""One optimiser step of the reference trainer: losses of all channels, one backward, one update.

training/loop.py draws the inputs of a step and calls `train_step`. In order:

    count      loss tokens per channel over all ranks; this rank's share, cut into micro-batches
    scale      each channel by weight / running mean of its gradient norm (losses/total.py)
    forward    per micro-batch: final hidden states (forwards/passes.py), then each channel's
               unreduced loss on detached copies of them (forwards/channels.py)
    backward   from each loss to these copies, where the channel's gradient norm is taken; then once
               through the model, with the gradient of the scaled sum of all channels
    update     sum over ranks, clip outliers, step the optimiser; an EMA teacher follows the
               student, and TAID's mixture moves towards its teacher
    report     status, tokens, loss and gradient norm per channel; Health (run/health.py) warns of a
               starved or dead channel, and stops the run after train.starved_steps such steps

If no channel has a gradient (all groups flat, no site, no pair), neither the weights nor the
optimiser's moments change. Up to rounding, results do not depend on padding, on train.micro_tokens
or on the number of ranks.

Shapes: C channels, M channel metrics, N loss tokens, D hidden size.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
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
from composer_replication.training.run.step_progress import FORWARD, StepPass, StepProgress


def train_step(
    trainer: Trainer, inputs: StepInputs, *, step: int, run_logger: RunLogger | None = None
) -> dict[str, Any]:
    """Take one optimiser step and return its metrics, as written to metrics.jsonl.

    `inputs` are those of all ranks; each rank works on its share. Raises AlignmentError if there
    are more examples with an advantage than sampled conversations, StoppedError if the loss or the
    gradient is not finite, or if a channel stays starved or dead.
    """
    began, settings = time.perf_counter(), trainer.settings
    # 1. Count loss tokens over all ranks, and cut this rank's share into micro-batches.
    inputs, control_metrics = with_hint_controls(trainer.config, inputs, step=step)
    counts = step_counts(inputs)
    work = (trainer.begin_step or StepWork)(trainer, inputs, counts, step=step)
    trained = _trained_channels(trainer, counts)
    # 2. The factor of each channel: its weight, divided by the running mean of its gradient norm.
    shares = _nonflat_shares(settings, counts)
    newly_trained = _measure_first_norms(trainer, work, trained, shares=shares)
    scales = channel_scales(trainer.weights, trainer.means, balance=settings.balance)
    if inputs.hint_sites:
        scales["hint"] *= min(1.0, counts.hint_views / inputs.hint_sites)
    metrics: dict[str, Any] = {"step": step + 1, **control_metrics}
    if _measures_parameters(trainer, step):
        metrics |= work.parameter_norms(trained)
    # 3. Forward and backward.
    observed = work.backward(scales)
    # 4. Update the weights, the references that follow them, and TAID's mixture.
    loss = sum(scales[name] * observed[name].loss for name in CHANNELS)
    update = work.update(loss=loss)
    metrics |= _move_taid(trainer, observed["hint"], step=step)
    # 5. Report, and stop if a channel has been silent for too long.
    statuses = trainer.health.update_statuses(_steps_for_health(trainer, observed))
    for name, channel_step in observed.items():
        # a channel's first norm is in its mean already
        if name not in newly_trained or settings.balance == "none":
            trainer.means[name].add(channel_step.grad_norm / shares[name])
        metrics |= _channel_metrics(name, channel_step, statuses[name], scale=scales[name])
    metrics |= {**update, "step_s": round(time.perf_counter() - began, 4)}
    if run_logger is not None:
        run_logger.step(metrics, trainer.health.warnings(statuses))
    trainer.health.check(statuses, step=step + 1)
    return metrics


class StepWork:
    """The forwards, backwards and update of one step, by this process and the other ranks.

    A backend that runs the model elsewhere (backends/verl_run.py) gives `Trainer.begin_step` a
    class with the same methods.
    """

    def __init__(self, trainer: Trainer, inputs: StepInputs, counts: Counts, *, step: int) -> None:
        self.trainer, self.counts, self.step = trainer, counts, step
        self.micros = rank_micro_batches(trainer, inputs)
        passes = step_passes(trainer, counts, step=step)
        self.progress = StepProgress(passes, parts=len(self.micros))

    def measure(self) -> dict[Channel, ChannelStep]:
        """Each channel's loss and gradient norm at the final hidden states, without a backward
        through the model."""
        return self._accumulate(None, FIRST_NORMS)

    def parameter_norms(self, channels: Sequence[Channel]) -> dict[str, float]:
        """The norm of each channel's gradient over the weights, by a backward for that channel
        alone."""
        norms: dict[str, float] = {}
        for name in channels:
            self._accumulate({name: 1.0}, norm_pass(name))
            norms[f"{name}/grad_norm_parameters"] = gradient_norm(self.trainer.trainable())
            self.trainer.optimiser.zero_grad()
        return norms

    def backward(self, scales: Mapping[Channel, float]) -> dict[Channel, ChannelStep]:
        """Each channel's loss and gradient norm; the gradient of the scaled sum is accumulated in
        the weights' `.grad`."""
        return self._accumulate(scales, BACKWARD)

    def update(self, *, loss: float) -> dict[str, Any]:
        """Update the weights and return metrics; raises StoppedError, before any weight has
        changed, if `loss` or the gradient is not finite."""
        return _update(self.trainer, loss=loss, step=self.step)

    def _accumulate(
        self, scales: Mapping[Channel, float] | None, of: StepPass
    ) -> dict[Channel, ChannelStep]:
        # seed first: every pass over the micro-batches of a step draws the same dropout
        self.trainer.seed(self.step)
        self.trainer.on_progress(self.progress)
        micros = self.progress.parts_of(of, self.micros)
        return accumulate(self.trainer, micros, self.counts, scales=scales)


FIRST_NORMS, BACKWARD = StepPass("first norms", cost=FORWARD), StepPass("backward")


def norm_pass(channel: Channel) -> StepPass:
    """The pass that takes a channel's gradient norm over the weights."""
    return StepPass(f"norm of {channel}")


def step_passes(trainer: Trainer, counts: Counts, *, step: int) -> list[StepPass]:
    """The passes over the micro-batches that a step takes, in order."""
    trained = _trained_channels(trainer, counts)
    first = [FIRST_NORMS] if _measures_first(trainer, trained) else []
    norms = map(norm_pass, trained) if _measures_parameters(trainer, step) else ()
    return [*first, *norms, BACKWARD]


def _trained_channels(trainer: Trainer, counts: Counts) -> list[Channel]:
    return [
        name
        for name, budget in budgets(trainer.settings, counts).items()
        if trainer.weights[name] and budget.tokens
    ]


def _measures_parameters(trainer: Trainer, step: int) -> bool:
    return step % trainer.settings.grad_every == 0


def _measures_first(trainer: Trainer, trained: Sequence[Channel]) -> bool:
    """Whether a channel of a balanced step has no running mean yet."""
    has_new = any(not trainer.means[name].weight for name in trained)
    return has_new and trainer.settings.balance == "grad_norm"


def _nonflat_shares(settings: TrainSettings, counts: Counts) -> dict[Channel, float]:
    """The share of sampled rollouts that are not of a flat group, for the policy channel if its
    objective divides by all rollouts; 1 for the others.

    Flat groups make such an objective's gradient smaller by this factor. The running means are of
    norms divided by it: otherwise the balance would scale the gradient up again after some steps,
    and a policy with little left to learn would move as far as one with much.
    """
    shares: dict[Channel, float] = dict.fromkeys(CHANNELS, 1.0)
    counts_flat_groups = reduction_of(settings.policy.objective) != "token_mean"
    if counts_flat_groups and counts.rollouts > 0:
        shares["policy"] = counts.rollouts / counts.sampled_rollouts
    return shares


def _measure_first_norms(
    trainer: Trainer,
    work: StepWork,
    trained: Sequence[Channel],
    *,
    shares: Mapping[Channel, float],
) -> list[Channel]:
    """Start the running mean of each channel that has tokens for the first time, so that its first
    gradient is divided by a norm too; returns these channels."""
    newly_trained: list[Channel] = [name for name in trained if not trainer.means[name].weight]
    if _measures_first(trainer, trained):
        for name, channel_step in work.measure().items():
            if name in newly_trained:
                trainer.means[name].add(channel_step.grad_norm / shares[name])
    return newly_trained


def _update(trainer: Trainer, *, loss: float, step: int) -> dict[str, Any]:
    """Clip the gradients, step the optimiser and the EMA teacher; returns the metrics.

    Raises StoppedError, before any weight has changed, if the loss or the gradient is not finite.
    """
    rate, norm = learning_rate(trainer.settings, step), gradient_norm(trainer.trainable())
    check_finite(loss=loss, norm=norm, step=step)
    clipped = False
    if norm > 0:  # on a zero gradient AdamW would still move the weights: momentum, weight decay
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
    """Update t, the teacher's share in TAID's mixture, by the step's mean loss; returns the t that
    this step used, as a metric. A step without hint tokens leaves t as it is."""
    models = trainer.models
    if not trainer.settings.hint.weight or trainer.settings.hint.divergence != "taid":
        return {}
    metrics = {"hint/taid_t": models.taid_t}
    if models.taid is not None:
        models.taid.update(hint_step.metrics.get("raw", 0.0), step=step, tokens=hint_step.tokens)
    return metrics


def _steps_for_health(
    trainer: Trainer, observed: dict[Channel, ChannelStep]
) -> dict[Channel, ChannelStep]:
    """The measurements as health should judge them.

    If hints act as credit on the policy's advantages, the hint channel has no gradient of its own.
    Its "loss", the mean change of an advantage, then stands in for the gradient norm: the channel
    is "dead" if credit changes no advantage.
    """
    if not trainer.settings.hint.is_credit:
        return observed
    steps = dict(observed)
    steps["hint"] = dataclasses.replace(observed["hint"], grad_norm=observed["hint"].loss)
    return steps


def with_hint_controls(
    config: Config, inputs: StepInputs, *, step: int
) -> tuple[StepInputs, dict[str, int]]:
    """Apply train.hint.focus and train.hint.contrast to the hint views; the same on every rank.

    `focus = "decision"` narrows a view's target to the decision's tokens; metric `hint/unfocused`
    counts the views whose decision is not known, which keep the whole message. `contrast` adds
    another site's hint to each view; metric `hint/no_donor` counts the views left out because no
    other hint fits. Raises ConfigError for views that these settings do not suit.
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
    """Counts of a step over all ranks; no communication, as every rank holds the whole inputs.

    Example: 6 rollouts were sampled (num_rollouts=6), 2 of them in a flat group: `rollouts` is 4,
    `sampled_rollouts` is 6.
    """
    counts = count(inputs.examples, inputs.pairs)
    if inputs.num_rollouts is None:
        return counts
    num_sampled = max(inputs.num_rollouts, inputs.num_conversations)
    if counts.rollouts > num_sampled:
        raise AlignmentError(
            f"{counts.rollouts} examples have an action with an advantage, but only {num_sampled}"
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
    trainer: Trainer,
    micros: Iterable[Micro],
    counts: Counts,
    *,
    scales: Mapping[Channel, float] | None,
) -> dict[Channel, ChannelStep]:
    """The losses and gradient norms of this rank's micro-batches, summed over ranks.

    With `scales`, the gradient of the scaled sum of the channels is accumulated in the weights and
    summed over ranks, too; None only measures.
    """
    models, device = trainer.models, trainer.accelerator.device
    # (C, 3): tokens, loss, squared gradient norm
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device=device)
    # (M, 2): sum, number of values
    metric_sums = torch.zeros(len(CHANNEL_METRICS), 2, dtype=torch.float64, device=device)
    with joined(models):
        _score_micro_batches(
            trainer, micros, counts, scales=scales, sums=sums, metric_sums=metric_sums
        )
    if trainer.accelerator.num_processes > 1:
        sums, metric_sums = _over_ranks(trainer, sums), _over_ranks(trainer, metric_sums)
    if trainer.accelerator.num_processes > 1 and scales is not None and models.sharding is None:
        # a rank without tokens adds zeros: the others would wait for ever for one that skipped
        for parameter in trainer.trainable():
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = _over_ranks(trainer, grad)
    return channel_steps_of_sums(trainer.settings, counts, sums=sums, metric_sums=metric_sums)


def _score_micro_batches(
    trainer: Trainer,
    micros: Iterable[Micro],
    counts: Counts,
    *,
    scales: Mapping[Channel, float] | None,
    sums: Tensor,
    metric_sums: Tensor,
) -> None:
    """Add this rank's micro-batches to `sums` (C, 3) and `metric_sums` (M, 2), in place; with
    `scales`, run the backward of their scaled sum."""
    models, device = trainer.models, trainer.accelerator.device
    for examples, pairs in micros:
        batch = collate(examples, pairs, pad_id=models.student.pad_id).to(device)
        required = RequiredForwards.of(trainer.settings, batch)
        # to measure, gradients at the detached hidden states are enough: no graph of the model
        with nullcontext() if scales is not None else torch.no_grad():
            forwards = run_passes(models, batch, required).detached_leaves()
        losses = losses_on(models, batch, forwards=forwards, required=required, counts=counts)
        # not `for loss in losses`: the loop variable would keep the last channel's graph alive
        for name, values in ((loss.name, loss.metrics) for loss in losses):
            for key, value_N in values.items():
                metric_sums[CHANNEL_METRICS.index((name, key))] += torch.stack(
                    [value_N.double().sum(), metric_sums.new_tensor(len(value_N))]
                )
        while losses:  # pop each, so that its graph is freed right after its backward
            leaves = [leaf for _, leaf in forwards.leaves or ()]
            measure_channels(sums, [losses.pop(0)], leaves, scales=scales)
        if scales is not None:
            forwards.backward(models)


def channel_steps_of_sums(
    settings: TrainSettings, counts: Counts, *, sums: Tensor, metric_sums: Tensor
) -> dict[Channel, ChannelStep]:
    """What each channel measured in a step, from the sums over all ranks: `sums` (C, 3) and
    `metric_sums` (M, 2), as in `accumulate`.

    Raises AlignmentError if the losses saw another number of tokens than `counts` says.
    """
    expected = budgets(settings, counts)
    means = {
        channel_and_key: total / num_values
        for channel_and_key, (total, num_values) in zip(
            CHANNEL_METRICS, metric_sums.tolist(), strict=True
        )
        if num_values
    }
    channel_steps: dict[Channel, ChannelStep] = {}
    for name, (tokens, loss, squared_norm) in zip(CHANNELS, sums.tolist(), strict=True):
        if tokens not in (0, expected[name].tokens):
            raise AlignmentError(
                f"channel {name}: {int(tokens)} tokens reached the loss, {expected[name].tokens}"
                " were counted beforehand"
            )
        channel_steps[name] = ChannelStep(
            inputs=expected[name].inputs,
            tokens=int(tokens),
            loss=loss,
            grad_norm=math.sqrt(squared_norm),
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
    """Add each loss's tokens, mean and squared gradient norm to its channel's row of `sums` (C, 3).

    The norm is that of the gradient at `hidden`, the final hidden states; 0 if the loss does not
    depend on them. With `scales`, that gradient times the channel's scale is also accumulated in
    the `.grad` of the hidden states and of the output head. Everything stays on the device, without
    a synchronisation.
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
        # each leaf (ForwardResults.predictors) belongs to one loss: those without .grad are ours
        without_grad = [h for h in hidden if h.grad is None]
        mean.backward(torch.full_like(mean, scale))
        for h in without_grad:
            if h.grad is not None:
                row[2] += (h.grad.double() / scale).square().sum()


def gradient_norm(parameters: list[Tensor]) -> float:
    """The global L2 norm of the gradients, over all ranks' shards if they are sharded; 0 if no
    parameter has a gradient."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(unsharded(torch.nn.utils.get_total_norm(grads))) if grads else 0.0
