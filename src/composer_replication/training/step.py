"""One optimiser step: every channel's loss on the step's examples and pairs, one backward of the
trunk for their sum.

A step, top to bottom:
    score      each channel's unreduced values (training/channels.py), micro-batch by micro-batch
    measure    each channel's mean is walked back to the final hidden states that predict its tokens: there its gradient's norm is taken
    add        total = sum of weight * mean / running mean norm; one backward of the trunk; summed over ranks; outliers clipped; step
    follow     a teacher that is a slow average moves towards the student, and TAID's mixture towards the teacher
    tell       status, tokens, loss and gradient norm per channel; warn at once, stop after train.starved_steps bad steps

A step without any gradient (every group flat, no site, no pair) moves nothing: not the optimiser's
moments either. Results do not depend on padding, on train.micro_tokens, or on the number of ranks
(to rounding).
Shapes: C channels.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError, StoppedError
from composer_replication.losses.channel import CHANNELS, Channel, ChannelLoss
from composer_replication.losses.reduction import PUBLISHED
from composer_replication.losses.total import channel_scales
from composer_replication.tokens.batch import Counts, collate, count, micro_batches
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.batch_sampler import share
from composer_replication.training.channels import TOLD, budgets, loss_rows, losses_on
from composer_replication.training.health import ChannelStep
from composer_replication.training.hinting import check_views, with_wrong_hints
from composer_replication.training.optimiser import learning_rate, set_learning_rate
from composer_replication.training.packing import Micro, micros_of, over_ranks, session_trees
from composer_replication.training.passes import RequiredForwards, run_passes
from composer_replication.training.run_logger import RunLogger
from composer_replication.training.state import Trainer


def train_step(
    trainer: Trainer,
    examples: list[TrainingExample],
    pairs: list[PreferencePair],
    *,
    step: int,
    num_rollouts: int | None = None,
    hint_sites: int = 0,
    journal: RunLogger | None = None,
) -> dict[str, Any]:
    """One optimiser step on the whole step's examples and pairs, of which this rank takes its
    share; returns the metrics line.

    `num_rollouts` is how many were sampled for the step, those of groups with equal rewards
    included: the policy's sum is divided by it. None = the examples that have an action with an
    advantage. Raises AlignmentError where it is less than those. `hint_sites` is how many sites a
    full step has: with fewer the hint channel weighs less in proportion, so that the last few
    mistakes do not move the policy as far as many did. 0 = it always weighs the same.
    """
    began, settings = time.perf_counter(), trainer.settings
    examples, without_donor = hinted(trainer, examples, step=step)
    counts = step_counts(examples, pairs, num_rollouts=num_rollouts)
    micros = _micros(trainer, examples, pairs)
    present: list[Channel] = [
        name
        for name, budget in budgets(settings, counts).items()
        if trainer.weights[name] and budget.tokens
    ]

    undivided = _shares(settings, counts)
    first_time = [name for name in present if not trainer.means[name].weight]
    if first_time and settings.balance == "grad_norm":  # measure before anything moves
        trainer.seed(step)
        for name, seen in accumulate(trainer, micros, counts, scales=None).items():
            if name in first_time:
                trainer.means[name].add(seen.grad_norm / undivided[name])
    scales = channel_scales(trainer.weights, trainer.means, balance=settings.balance)
    if hint_sites:
        scales["hint"] *= min(1.0, counts.hint_views / hint_sites)

    line: dict[str, Any] = {
        "step": step + 1,
        **({"hint/no_donor": without_donor} if settings.hint.contrast else {}),
    }
    for name in present if step % settings.grad_every == 0 else present[:0]:
        trainer.seed(step)
        accumulate(trainer, micros, counts, scales={name: 1.0})
        line[f"{name}/grad_norm_parameters"] = gradient_norm(trainer.trainable())
        trainer.optimiser.zero_grad()

    trainer.seed(step)
    observed = accumulate(trainer, micros, counts, scales=scales)
    rate, norm = learning_rate(settings, step), gradient_norm(trainer.trainable())
    total = sum(scales[name] * observed[name].loss for name in CHANNELS)
    if not (math.isfinite(norm) and math.isfinite(total)):
        what = f"step {step + 1} is not finite: loss {total}, gradient norm {norm}"
        raise StoppedError(
            what,
            where="not_finite",
            fix="lower train.learning_rate, or use student.dtype = float32",
        )
    clipped = False
    if norm > 0:
        clipped = trainer.clip.apply(trainer.trainable(), norm=norm)
        set_learning_rate(trainer.optimiser, rate)
        trainer.optimiser.step()
        for reference in trainer.references.values():
            reference.update(trainer.student.model)
    trainer.optimiser.zero_grad()

    line |= _taid(trainer, observed["hint"], step=step)
    statuses = trainer.health.observe(_alive(trainer, observed))
    for name, seen in observed.items():
        if name not in first_time or settings.balance == "none":
            trainer.means[name].add(seen.grad_norm / undivided[name])
        line |= {
            f"{name}/status": statuses[name],
            f"{name}/tokens": seen.tokens,
            f"{name}/loss": seen.loss if seen.tokens else None,
        }
        line |= {f"{name}/grad_norm": seen.grad_norm, f"{name}/scale": scales[name]}
        line |= {f"{name}/{key}": value for key, value in seen.told.items()}
    line |= {
        "loss": total,
        "grad_norm": norm,
        "clipped": clipped,
        "lr": rate,
        "step_s": round(time.perf_counter() - began, 4),
    }
    if journal is not None:
        journal.step(line, trainer.health.warnings(statuses))
    trainer.health.check(statuses, step=step + 1)
    return line


def _shares(settings: TrainSettings, counts: Counts) -> dict[Channel, float]:
    """By how much a channel's mean is smaller because part of what was sampled says nothing: the
    policy's flat groups, where they count.

    The balance compares norms without this factor. With it, ten steps of more flat groups would be
    scaled up again, and a policy that has nothing left to learn would move as far as one that has.
    """
    divided = PUBLISHED[settings.policy.objective] != "token_mean" and counts.rollouts > 0
    return {
        name: counts.rollouts / counts.sampled_rollouts if name == "policy" and divided else 1.0
        for name in CHANNELS
    }


def _taid(trainer: Trainer, seen: ChannelStep, *, step: int) -> dict[str, float]:
    """Where TAID's mixture stood, for the line; then the step's global mean moves it. A step
    without a site leaves it alone."""
    if not trainer.settings.hint.weight or trainer.settings.hint.divergence != "taid":
        return {}
    line = {"hint/taid_t": trainer.taid_t}
    if trainer.taid is not None:
        trainer.taid.update(seen.told.get("raw", 0.0), step=step, tokens=seen.tokens)
    return line


def _alive(trainer: Trainer, observed: dict[Channel, ChannelStep]) -> dict[Channel, ChannelStep]:
    """What health looks at: credit has no gradient of its own, it is alive where it moves
    advantages."""
    if not trainer.settings.hint.is_credit:
        return observed
    credit: Channel = "hint"
    return {
        **observed,
        credit: dataclasses.replace(observed[credit], grad_norm=observed[credit].loss),
    }


def hinted(
    trainer: Trainer, examples: list[TrainingExample], *, step: int
) -> tuple[list[TrainingExample], int]:
    """The step's examples with what train.hint asks of their views, and how many views had no other
    site's hint to be held against.

    Raises ConfigError for views that cannot have it. The same on every rank.
    """
    how = trainer.settings.hint
    if not how.weight:
        return examples, 0
    check_views(examples, how)
    return (
        with_wrong_hints(examples, seed=stage_seed(trainer.config.seed, f"contrast:{step}"))
        if how.contrast
        else (examples, 0)
    )


def step_counts(
    examples: list[TrainingExample], pairs: list[PreferencePair], *, num_rollouts: int | None = None
) -> Counts:
    """Global counts of a step, from the lists that every rank holds.

    Example: 6 rollouts, of which 2 came of a group with equal rewards: step_counts(examples, [],
    num_rollouts=6).rollouts -> 4
    """
    counts = count(examples, pairs)
    if num_rollouts is None:
        return counts
    if num_rollouts < counts.rollouts:
        raise AlignmentError(
            f"{counts.rollouts} examples have an action with an advantage, but only {num_rollouts}"
            " rollouts were sampled"
        )
    return dataclasses.replace(counts, sampled_rollouts=num_rollouts)


def _micros(
    trainer: Trainer, examples: list[TrainingExample], pairs: list[PreferencePair]
) -> list[Micro]:
    """This rank's part of the step, cut into micro-batches."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    rows, limit = loss_rows(examples, trainer.settings), trainer.settings.micro_tokens
    if trainer.layout == "rows":
        return micro_batches(
            share(rows, rank=rank, world=world),
            share(pairs, rank=rank, world=world),
            micro_tokens=limit,
        )
    trees = session_trees(rows, pairs if trainer.weights["preference"] else [], micro_tokens=limit)
    return micros_of(
        over_ranks(trees, ranks=world, pair_weight=trainer.pair_weight)[rank], micro_tokens=limit
    )


def accumulate(
    trainer: Trainer, micros: list[Micro], counts: Counts, *, scales: Mapping[Channel, float] | None
) -> dict[Channel, ChannelStep]:
    """Score every micro-batch of this rank; with `scales`, also backward their scaled sum. What is
    returned is summed over ranks."""
    device = trainer.accelerator.device
    # tokens, loss, squared norm
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device=device)
    told = torch.zeros(len(TOLD), 2, dtype=torch.float64, device=device)  # sum, number of values
    for number, (examples, pairs) in enumerate(micros, 1):
        trainer.tell(partial("forward and backward: part {} of {}".format, number, len(micros)))
        batch = collate(examples, pairs, pad_id=trainer.student.pad_id).to(device)
        uses = RequiredForwards.of(trainer.settings, trainer.weights, batch)
        # to measure, leaves are enough
        with nullcontext() if scales is not None else torch.no_grad():
            passes = run_passes(trainer, batch, uses).leaves()
        losses = losses_on(trainer, batch, passes, uses, counts)
        for name, values in ((loss.name, loss.metrics) for loss in losses):
            for key, value_N in values.items():
                told[TOLD.index((name, key))] += torch.stack(
                    [value_N.double().sum(), told.new_tensor(len(value_N))]
                )
        while losses:  # a channel's graph is let go of as soon as it is walked back
            measure_channels(
                sums, [losses.pop(0)], [copy for _, copy in passes.cut or ()], scales=scales
            )
        if scales is not None:
            passes.backward(trainer)
    if trainer.accelerator.num_processes > 1:
        sums, told = _over_ranks(trainer, sums), _over_ranks(trainer, told)
        # a rank without this channel adds zeros, never hangs
        for parameter in trainer.trainable() if scales is not None else ():
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = _over_ranks(trainer, grad)
    expected = budgets(trainer.settings, counts)
    means = {
        place: total / number
        for place, (total, number) in zip(TOLD, told.tolist(), strict=True)
        if number
    }
    found: dict[Channel, ChannelStep] = {}
    for name, (tokens, loss, squares) in zip(CHANNELS, sums.tolist(), strict=True):
        if tokens not in (0, expected[name].tokens):
            raise AlignmentError(
                f"channel {name}: {int(tokens)} tokens reached the loss, {expected[name].tokens}"
                " were counted beforehand"
            )
        beside = {key: mean for (channel, key), mean in means.items() if channel == name}
        inputs, norm = expected[name].inputs, math.sqrt(squares)
        found[name] = ChannelStep(
            inputs=inputs, tokens=int(tokens), loss=loss, grad_norm=norm, told=beside
        )
    return found


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

    With `scales`, the gradient times the channel's scale is added to what its loss hangs on: the
    hidden states and the head's weights. The norm is 0 where the loss does not reach the hidden
    states. Nothing is read back, so a GPU is not waited for.
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
        # every copy (Passes.predictors) hangs on one channel's loss
        untouched = [h for h in hidden if h.grad is None]
        mean.backward(torch.full_like(mean, scale))
        for h in untouched:
            if h.grad is not None:
                row[2] += (h.grad.double() / scale).square().sum()


def gradient_norm(parameters: list[Tensor]) -> float:
    """Norm of all gradients together; 0 where there is none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
