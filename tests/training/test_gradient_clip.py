"""Clipping acts on outliers only: the scale of a loss reaches the weights, and one wild step does
not."""

from __future__ import annotations

import math

import pytest
import torch

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.optimiser import GradientClip
from composer_replication.training.step import train_step
from tests.training.small_student import (
    make_config,
    make_example,
    make_rollout,
    make_student,
    start_trainer,
)

HINT_ALONE = {"lm_ce": {"weight": 0.0}, "hint": {"weight": 1.0}}
POLICY_ALONE = {"lm_ce": {"weight": 0.0}, "policy": {"weight": 1.0}, "hint": {"weight": 0.0}}
# Adam's averages forget the steps before within about ten
NUM_STEPS, FADES_AT, SEEN_FROM = 24, 4, 14


def moved(plan: list[dict[str, int]], examples: list, **settings: object) -> float:
    """How far the weights move from step SEEN_FROM on if step i has the inputs `plan[i]`."""
    trainer = start_trainer(
        make_config(steps=1000, warmup_steps=0, grad_every=1000, learning_rate=1e-5, **settings),
        make_student(),
    )
    before: list[torch.Tensor] = []
    for step, inputs in enumerate(plan):
        if step == SEEN_FROM:
            before = [p.detach().clone() for p in trainer.trainable()]
        train_step(trainer, StepInputs(examples, [], **inputs), step=step)
    return math.sqrt(
        sum(
            float((p.detach() - b).square().sum())
            for p, b in zip(trainer.trainable(), before, strict=True)
        )
    )


def test_a_fading_hint_channel_moves_the_weights_less() -> None:
    """Four sites of four, then four of 64: a sixteenth of the gradient. A clip to one length would
    hide it."""
    examples = [make_example(i, lm=False) for i in range(4)]
    full, faded = (
        [{"hint_sites": 4}] * NUM_STEPS,
        [{"hint_sites": 4}] * FADES_AT + [{"hint_sites": 64}] * (NUM_STEPS - FADES_AT),
    )
    assert moved(faded, examples, **HINT_ALONE) < 0.75 * moved(full, examples, **HINT_ALONE)
    assert moved(faded, examples, **HINT_ALONE, max_grad_norm=1e-3) == pytest.approx(
        moved(full, examples, **HINT_ALONE, max_grad_norm=1e-3), rel=1e-3
    )


def test_flat_groups_make_the_policy_step_smaller() -> None:
    """Dr.GRPO divides by every rollout that was sampled, those of flat groups too."""
    examples = [make_rollout(i, advantage=(-1) ** i * 0.5, hints=0, lm=False) for i in range(4)]
    full, flat = (
        [{"num_rollouts": 4}] * NUM_STEPS,
        [{"num_rollouts": 4}] * FADES_AT + [{"num_rollouts": 64}] * (NUM_STEPS - FADES_AT),
    )
    assert moved(flat, examples, **POLICY_ALONE) < 0.75 * moved(full, examples, **POLICY_ALONE)


def test_with_default_settings_an_ordinary_step_is_not_clipped_and_an_outlier_is() -> None:
    trainer = start_trainer(make_config(steps=20, balance="none"), make_student())
    examples = [make_example(i) for i in range(4)]
    lines = [train_step(trainer, StepInputs(examples, []), step=step) for step in range(4)]
    assert not any(metrics["clipped"] for metrics in lines)
    for parameter in trainer.trainable():  # one wild step: every weight of the model jumps
        parameter.data.mul_(30.0)
    metrics, limit = (
        train_step(trainer, StepInputs(examples, []), step=4),
        4.0 * trainer.clip.mean.value,
    )
    assert metrics["clipped"] and metrics["grad_norm"] > limit


def test_an_outlier_is_shortened_to_the_limit_and_does_not_raise_it_for_the_next() -> None:
    clip, weight = GradientClip(ratio=4.0), torch.zeros(3, requires_grad=True)
    for _ in range(3):
        weight.grad = torch.tensor([3.0, 0.0, 4.0])
        assert not clip.apply([weight], norm=5.0) and weight.grad.tolist() == [3.0, 0.0, 4.0]
    assert clip.limit == pytest.approx(20.0)
    weight.grad = torch.tensor([3000.0, 0.0, 4000.0])
    assert clip.apply([weight], norm=5000.0) and weight.grad.tolist() == pytest.approx(
        [12.0, 0.0, 16.0]
    )
    assert clip.limit == pytest.approx(
        4 * (5 * (0.9 + 0.81 + 0.729) + 20) / (1 + 0.9 + 0.81 + 0.729)
    )


def test_a_plain_bound_is_an_option_and_both_hold() -> None:
    clip, weight = GradientClip(ratio=4.0, max_norm=6.0), torch.zeros(1, requires_grad=True)
    weight.grad = torch.tensor([5.0])
    assert clip.limit == 6.0 and not clip.apply([weight], norm=5.0)
    weight.grad = torch.tensor([7.0])
    assert clip.apply([weight], norm=7.0) and weight.grad.item() == pytest.approx(6.0)
    assert GradientClip().limit == math.inf and TrainSettings().max_grad_norm == 0.0


def test_a_ratio_below_one_is_refused() -> None:
    """Otherwise each clipped step would lower the limit of the next, down to zero."""
    with pytest.raises(ValueError, match="max_grad_norm_ratio"):
        TrainSettings(max_grad_norm_ratio=0.5)


def test_more_sites_than_a_full_step_weigh_no_more_than_a_full_step() -> None:
    examples = [make_example(i, lm=False) for i in range(4)]
    scales = []
    for sites in (0, 1, 4, 8):
        trainer = start_trainer(make_config(**HINT_ALONE), make_student())
        scales.append(
            train_step(trainer, StepInputs(examples, [], hint_sites=sites), step=0)["hint/scale"]
        )
    assert scales[1] == scales[0] == scales[2] and scales[3] == pytest.approx(scales[0] / 2)
