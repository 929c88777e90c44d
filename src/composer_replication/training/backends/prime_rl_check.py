"""`recompose train --backend prime_rl --check`: the step that prime-rl's components would give, on
the streams that it would get, beside the reference trainer's. It needs no prime-rl; whether its own
compute_loss gives the same is a test of its own (docs/backends/prime_rl.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.sampled import sampled_token
from composer_replication.models.load_student import Student
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.backends.prime_rl_samples import (
    Scores,
    TokenStreams,
    component_tokens,
    step_samples,
)
from composer_replication.training.backends.prime_rl_step import (
    sample_tensors,
    scores_of,
    step_loss,
    student_logprobs,
)
from composer_replication.training.backends.step_check import StepGradients, TakeStep
from composer_replication.training.forwards.pairs import pair_values
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.ranks import join_ranks


@contextmanager
def prime_rl_steps(config: Config, *, student: Student) -> Iterator[TakeStep]:
    """Steps of prime-rl's components, for training/backends/step_check.py."""

    def take_step(settings: TrainSettings, inputs: StepInputs) -> StepGradients:
        return _step(student.model, settings, inputs)

    yield take_step


def _step(model: Any, settings: TrainSettings, inputs: StepInputs) -> StepGradients:
    """The gradient and each channel's loss, summed over the ranks, each of which takes a share of
    the samples; the model is left without gradients."""
    ranks = join_ranks()
    model.to(ranks.device).eval()
    examples = [_with_sampler(model, example) for example in inputs.examples]
    examples = [example for example in examples if example.actions or example.hints]
    pairs = [_with_reference(model, pair) for pair in inputs.pairs]
    hinted, policy = scores_of(model, model, examples, pairs)
    samples = step_samples(examples, pairs, settings=settings, hinted=hinted, policy=policy)
    counted = component_tokens(samples)
    mine = samples[ranks.process_index :: ranks.num_processes]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    gradients = {name: torch.zeros_like(p) for name, p in named.items()}
    if mine:
        logprobs = [student_logprobs(model, sample.token_ids) for sample in mine]
        sums = _policy_and_hint(mine, logprobs, settings, counted=counted)
        loss = step_loss(mine, logprobs, settings=settings, counted=counted)
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for name, grad in zip(named, found, strict=True):
            gradients[name] += 0.0 if grad is None else grad
    gradients = {name: sum_over_ranks(grad) for name, grad in gradients.items()}
    norm = sum(float(grad.double().square().sum()) for grad in gradients.values()) ** 0.5
    policy_sum, hint_sum = sum_over_ranks(sums).tolist()
    losses: dict[Channel, float] = {}
    if counted["rl"]:
        losses["policy"] = policy_sum / settings.policy.weight
    if counted["ref_kl"]:
        losses["hint"] = hint_sum / settings.hint.weight
    if counted["ce"]:
        losses["preference"] = _pair_loss(pairs, settings, policy)
    return StepGradients(losses=losses, grad_norm=norm, gradients=gradients)


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of a tensor over the ranks: prime-rl divides by global counts, so gradients add."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)
    return tensor


@torch.no_grad()
def _with_sampler(model: Any, example: TrainingExample) -> TrainingExample:
    """The example with the sampler's log-probs at its views: the student's, in a first step."""
    if all(view.logprobs for view in example.hints):
        return example
    sampled = {
        place: logp
        for action in example.actions
        for place, logp in zip(range(*action.span), action.logprobs, strict=True)
    }
    now = student_logprobs(model, example.ids).tolist()
    views = tuple(
        replace(
            view,
            logprobs=tuple(sampled.get(p, now[p]) for a, b in view.spans for p in range(a, b)),
        )
        for view in example.hints
    )
    return replace(example, hints=views)


@torch.no_grad()
def _with_reference(model: Any, pair: PreferencePair) -> PreferencePair:
    """The pair with the reference's log-probs: in a first step that is the student."""
    if pair.reference:
        return pair
    size = len(pair.prefix_ids)
    sides = [
        student_logprobs(model, pair.prefix_ids + ids)[size:].tolist()
        for ids in (pair.chosen_ids, pair.rejected_ids)
    ]
    return replace(pair, reference=(*sides[0], *sides[1]))


def _policy_and_hint(
    samples: Sequence[TokenStreams],
    logprobs: Sequence[Tensor],
    settings: TrainSettings,
    *,
    counted: Mapping[str, int],
) -> Tensor:
    """What these samples add to the weighted losses of policy and hint, from the streams."""
    alone = [replace(s, ce_weights=None, ref_kl_weights=None) for s in samples]
    policy = step_loss(alone, logprobs, settings=settings, counted=counted).detach().double()
    hint = torch.zeros_like(policy)
    for sample, logp_T in zip(samples, logprobs, strict=True):
        if sample.ref_kl_weights is not None:
            streams = sample_tensors(sample, like=logp_T)
            values_T = sampled_token(logp_T.detach(), streams["ref_logprobs"])
            hint += (streams["ref_kl_weights"] * values_T).sum() / counted["ref_kl"]
    return torch.stack([policy, hint])


def _pair_loss(pairs: Sequence[PreferencePair], settings: TrainSettings, policy: Scores) -> float:
    """The mean loss of the pairs, from the scores that their weights were made of."""
    sides = []
    for pair in pairs:
        split = len(pair.chosen_ids)
        rows = (
            policy[f"{pair.id}:chosen"],
            policy[f"{pair.id}:rejected"],
            pair.reference[:split],
            pair.reference[split:],
        )
        by_sum = settings.preference.objective == "dpo"
        sides.append([sum(row) / (1 if by_sum else len(row)) for row in rows])
    chosen, rejected, ref_chosen, ref_rejected = torch.tensor(sides, dtype=torch.float64).T
    values_P = pair_values(
        settings.preference, (chosen, rejected), (ref_chosen, ref_rejected)
    ).values_P
    return float(values_P.mean())
