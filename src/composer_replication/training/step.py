"""One optimiser step: every channel's loss on the step's examples and pairs, one backward for their sum.

A step, top to bottom:
    score      student rows with gradient; teacher rows and DPO's reference without; logits only where a loss needs them
    measure    each channel's gradient at the final hidden states, by autograd.grad of its own mean
    add        total = sum of weight * mean / running mean norm; backward; gradients summed over ranks; clip; step
    tell       status, tokens, loss and gradient norm per channel; warn at once, stop after train.starved_steps bad steps

Results do not depend on padding, on train.micro_tokens, or on the number of ranks (to rounding).
Shapes: B rows, T length, N loss tokens, P pairs, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from composer_replication.core.errors import AlignmentError, StoppedError
from composer_replication.losses.channel import CHANNELS, Channel, ChannelLoss
from composer_replication.losses.hint import hint_divergence
from composer_replication.losses.policy import lm_ce, token_logprobs
from composer_replication.losses.preference import dpo, sequence_logprobs
from composer_replication.losses.total import channel_scales, total_loss
from composer_replication.models.forward import final_hidden, predictors, project
from composer_replication.tokens.batch import Batch, Counts, Rows, Targets, collate, count, micro_batches
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.health import ChannelStep
from composer_replication.training.journal import Journal
from composer_replication.training.optimiser import learning_rate, set_learning_rate
from composer_replication.training.sampler import share
from composer_replication.training.state import Trainer

Micro = tuple[list[TrainingExample], list[PreferencePair]]


def train_step(
    trainer: Trainer, examples: list[TrainingExample], pairs: list[PreferencePair], *, step: int, journal: Journal | None = None
) -> dict[str, Any]:
    """One optimiser step on the whole step's examples and pairs, of which this rank takes its share; returns the metrics line."""
    began, settings, accelerator = time.perf_counter(), trainer.settings, trainer.accelerator
    counts = count(examples, pairs)  # global: every rank holds the same lists
    place = {"rank": accelerator.process_index, "world": accelerator.num_processes}
    micros = micro_batches(share(examples, **place), share(pairs, **place), micro_tokens=settings.micro_tokens)
    present: list[Channel] = [name for name in CHANNELS if trainer.weights[name] and _units(counts)[name]]

    first_time = [name for name in present if not trainer.means[name].weight]
    if first_time and settings.balance == "grad_norm":  # measure before anything moves
        trainer.seed(step)
        for name, seen in accumulate(trainer, micros, counts, scales=None).items():
            if name in first_time:
                trainer.means[name].add(seen.grad_norm)
    scales = channel_scales(trainer.weights, trainer.means, balance=settings.balance)

    line: dict[str, Any] = {"step": step + 1}
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
        raise StoppedError(what, where="not_finite", fix="lower train.learning_rate, or use student.dtype = float32")
    torch.nn.utils.clip_grad_norm_(trainer.trainable(), settings.max_grad_norm)
    set_learning_rate(trainer.optimiser, rate)
    trainer.optimiser.step()
    trainer.optimiser.zero_grad()

    statuses = trainer.health.observe(observed)
    for name, seen in observed.items():
        if name not in first_time or settings.balance == "none":
            trainer.means[name].add(seen.grad_norm)
        line |= {f"{name}/status": statuses[name], f"{name}/tokens": seen.tokens, f"{name}/loss": seen.loss if seen.tokens else None}
        line |= {f"{name}/grad_norm": seen.grad_norm, f"{name}/scale": scales[name]}
    line |= {"loss": total, "grad_norm": norm, "lr": rate, "step_s": round(time.perf_counter() - began, 4)}
    if journal is not None:
        journal.step(line, trainer.health.warnings(statuses))
    trainer.health.check(statuses, step=step + 1)
    return line


def accumulate(
    trainer: Trainer, micros: list[Micro], counts: Counts, *, scales: Mapping[Channel, float] | None
) -> dict[Channel, ChannelStep]:
    """Score every micro-batch of this rank; with `scales`, also backward their scaled sum. What is returned is summed over ranks."""
    sums = torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device=trainer.accelerator.device)  # tokens, loss, squared norm
    for examples, pairs in micros:
        batch = collate(examples, pairs, pad_id=trainer.student.pad_id).to(trainer.accelerator.device)
        losses, hidden = channel_losses(trainer, batch, counts)
        measure(sums, losses, hidden)
        if scales is not None:
            total = total_loss([loss for loss in losses if loss.name in scales], scales)
            if total.requires_grad:
                total.backward()
    if trainer.accelerator.num_processes > 1:
        sums = _over_ranks(trainer, sums)
        for parameter in trainer.trainable() if scales is not None else ():  # a rank without this channel adds zeros, never hangs
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            parameter.grad = _over_ranks(trainer, grad)
    inputs = {"lm_ce": counts.lm_spans, "hint": counts.hint_views, "preference": counts.pairs}
    expected = {"lm_ce": counts.lm_tokens, "hint": counts.hint_tokens, "preference": counts.pair_tokens}
    rows = dict(zip(CHANNELS, sums.tolist(), strict=True))
    for name, (tokens, _, _) in rows.items():
        if tokens not in (0, expected[name]):
            raise AlignmentError(f"channel {name}: {int(tokens)} tokens reached the loss, {expected[name]} were counted beforehand")
    return {
        name: ChannelStep(inputs=inputs[name], tokens=int(tokens), loss=loss, grad_norm=math.sqrt(squares))
        for name, (tokens, loss, squares) in rows.items()
    }


def channel_losses(trainer: Trainer, batch: Batch, counts: Counts) -> tuple[list[ChannelLoss], list[Tensor]]:
    """The unreduced values of every weighted channel in one micro-batch, and the final hidden states they hang on."""
    weights, settings, model, units = trainer.weights, trainer.settings, trainer.student.model, _units(counts)
    losses: list[ChannelLoss] = []
    hidden: list[Tensor] = []

    use_lm, use_hint = bool(weights["lm_ce"] and len(batch.lm)), bool(weights["hint"] and len(batch.hint_student))
    if use_lm or use_hint:
        teacher_NV = _reference_logits(trainer, "hint", batch.teacher, batch.hint_teacher) if use_hint else None
        hidden_BTD = final_hidden(model, batch.student.ids_BT)
        hidden.append(hidden_BTD)
        if use_lm:
            values_N = lm_ce(project(model, batch.lm.predictors(hidden_BTD)), batch.lm.ids_N)
            losses.append(ChannelLoss(name="lm_ce", values=values_N, tokens=len(batch.lm), global_units=units["lm_ce"]))
        if teacher_NV is not None:
            student_NV = project(model, batch.hint_student.predictors(hidden_BTD))
            how = settings.hint
            values_N = hint_divergence(student_NV, teacher_NV, divergence=how.divergence, beta=how.beta, temperature=how.temperature)
            losses.append(ChannelLoss(name="hint", values=values_N, tokens=len(batch.hint_student), global_units=units["hint"]))

    if weights["preference"] and batch.num_pairs:

        def sides(logits_NV: Tensor) -> tuple[Tensor, ...]:
            """(chosen_P, rejected_P): log-probs of whole responses."""
            logp_N = token_logprobs(logits_NV, batch.response.ids_N)
            return sequence_logprobs(logp_N, batch.response.item_N, num_sequences=len(batch.pair)).split(batch.num_pairs)

        reference = sides(_reference_logits(trainer, "preference", batch.pair, batch.response))
        hidden_BTD = final_hidden(model, batch.pair.ids_BT)
        hidden.append(hidden_BTD)
        how = settings.preference
        policy = sides(project(model, batch.response.predictors(hidden_BTD)))
        values_P = dpo(*policy, *reference, beta=how.beta, label_smoothing=how.label_smoothing)
        losses.append(ChannelLoss(name="preference", values=values_P, tokens=len(batch.response), global_units=units["preference"]))
    return losses, hidden


def _reference_logits(trainer: Trainer, name: Channel, rows: Rows, targets: Targets) -> Tensor:
    """Logits of a model that gets no gradient, at the tokens of `targets`."""
    with trainer.references[name].scoring() as model:
        places = {"row_N": targets.row_N, "position_N": targets.position_N}
        return project(model, predictors(model, rows.ids_BT, rows.lengths_B, **places, max_tokens=trainer.settings.micro_tokens))


def _over_ranks(trainer: Trainer, tensor: Tensor) -> Tensor:
    """The sum over all ranks."""
    return cast(Tensor, trainer.accelerator.reduce(tensor, reduction="sum"))


def _units(counts: Counts) -> dict[Channel, int]:
    """By what each channel's sum is divided: tokens, tokens, pairs."""
    return {"lm_ce": counts.lm_tokens, "hint": counts.hint_tokens, "preference": counts.pairs}


def measure(sums: Tensor, losses: list[ChannelLoss], hidden: list[Tensor]) -> None:
    """Add each channel's tokens, mean and squared gradient norm at the final hidden states to its row of `sums`, on its device.

    The norm is 0 where the loss does not reach the hidden states. Nothing is read back, so a GPU is not waited for.
    """
    for loss in losses:
        mean, row = loss.mean_part(), sums[CHANNELS.index(loss.name)]
        row[0] += loss.tokens
        row[1] += mean.detach()
        grads = torch.autograd.grad(mean, hidden, retain_graph=True, allow_unused=True) if mean.requires_grad else ()
        for grad in grads:
            if grad is not None:
                row[2] += grad.double().square().sum()


def gradient_norm(parameters: list[Tensor]) -> float:
    """Norm of all gradients together; 0 where there is none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
