"""The objective menu: each name against its formula written out by hand, in a trainer and whatever
the micro-batches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from composer_replication.core.config.train_settings import PolicySettings
from composer_replication.tokens.batch import collate, micro_batches
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.channels import channel_losses
from composer_replication.training.forwards.objectives import CLIPS, SCALED, clips
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, step_counts
from tests.training.small_student import make_config, make_rollout, make_student, start_trainer
from tests.training.test_channels import log_softmax, perturbed, plain_logits

ROLLOUTS = [
    make_rollout(0, advantage=1.5, length=24, hints=1, lm=False),
    make_rollout(1, advantage=-0.5, length=31, hints=2, lm=False),
    make_rollout(2, advantage=-0.25, spans=((2, 20),), length=25, hints=0, lm=False),
    make_rollout(3, advantage=0.0, length=22, hints=0, lm=False),
]
SAMPLED = 7  # rollouts of the step, flat groups' too
NAMES = ("dr_grpo", "grpo", "dapo", "gspo", "cispo", "dppo", "dppo_symmetric")
TIGHT: dict[str, dict[str, float]] = {"dppo": {"clip": 0.006}, "dppo_symmetric": {"clip": 0.004}}
"""Probabilities of this model hardly move: with the published bounds no token would be dropped."""
BY_TOKENS = ("dapo", "cispo", "dppo", "dppo_symmetric")


def trainer_of(**policy: Any) -> Trainer:
    train = {"lm_ce": {"weight": 0.0}, "hint": {"weight": 0.0}, "policy": {"weight": 1.0, **policy}}
    return perturbed(start_trainer(make_config(**train), make_student()))


def measured(
    trainer: Trainer, examples: list[TrainingExample], *, micro_tokens: int = 10_000
) -> Any:
    counts = step_counts(StepInputs(examples, [], num_rollouts=SAMPLED))
    return accumulate(
        trainer, micro_batches(examples, [], micro_tokens=micro_tokens), counts, scales=None
    )["policy"]


def tokens(model: Any, e: TrainingExample) -> list[tuple[float, float, float]]:
    """(log-prob now, the sampler's, advantage) of each sampled token of a rollout."""
    logp = log_softmax(plain_logits(model, e.ids))
    return [
        (float(logp[j - 1, e.ids[j]]), then, a.advantage)
        for a in e.actions
        for j, then in zip(range(*a.span), a.logprobs, strict=True)
    ]


def clamp(r: float, low: float, high: float) -> float:
    return min(max(r, 1 - low), 1 + high)


def by_hand(model: Any, name: str, *, cap: float = 0.0) -> float:
    """Token by token; the bounds and the divisors are written out here and taken from nowhere."""
    low, high = {
        "dr_grpo": (0.2, 0.2),
        "grpo": (0.2, 0.2),
        "dapo": (0.2, 0.28),
        "gspo": (0.0003, 0.0004),
        "cispo": (1, 4),
        "dppo": (0.006, 0.006),
        "dppo_symmetric": (0.004, 0.004),
    }[name]
    total, all_tokens = 0.0, sum(len(a.logprobs) for e in ROLLOUTS for a in e.actions)
    for e in ROLLOUTS:
        rows = tokens(model, e)
        mean = sum(now - (now if cap else then) for now, then, _ in rows) / len(rows)
        objective_sum = 0.0
        for now, then, advantage in (row for row in rows if row[2]):
            r = math.exp(mean) if name == "gspo" else 1.0 if cap else math.exp(now - then)
            if name == "cispo":
                value = -clamp(r, low, high) * advantage * now
            elif name.startswith("dppo"):
                moved = math.exp(now) - math.exp(now if cap else then)
                up, down = (advantage > 0, advantage <= 0) if name == "dppo" else (True, True)
                keep = not ((up and moved > high) or (down and moved < -low))
                value = -keep * r * advantage + 1e-3 * math.log(r) ** 2
            else:
                value = -min(r * advantage, clamp(r, low, high) * advantage)
            objective_sum += value * (min(math.exp(now - then), cap) if cap else 1.0)
        divisors = {"dr_grpo": SAMPLED, **dict.fromkeys(BY_TOKENS, all_tokens)}
        total += objective_sum / divisors.get(name, SAMPLED * len(rows))
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cap", [0.0, 1.2])
def test_each_objective_is_its_formula_however_the_step_is_cut(name: str, cap: float) -> None:
    trainer = trainer_of(objective=name, importance_cap=cap, **TIGHT.get(name, {}))
    expected = by_hand(trainer.models.student.model, name, cap=cap)
    assert abs(expected) > 1e-3
    for micro_tokens in (10_000, 40):
        losses = measured(trainer, ROLLOUTS, micro_tokens=micro_tokens)
        assert losses.loss == pytest.approx(expected, rel=1e-5) and losses.tokens == 6 + 6 + 18
        assert 0 <= losses.metrics["clipped"] <= 1


def test_the_objectives_differ() -> None:
    losses = [
        measured(trainer_of(objective=name, **TIGHT.get(name, {})), ROLLOUTS).loss for name in NAMES
    ]
    assert len({round(loss, 6) for loss in losses}) == len(NAMES)


def test_truncated_importance_weights_give_reinforce_on_the_policy_as_it_is() -> None:
    """The gradient is that of -min(p / p_sampler, cap) * A * log p, the weight without one."""
    trainer = trainer_of(importance_cap=1.1)
    counts, batch = (
        step_counts(StepInputs(ROLLOUTS, [], num_rollouts=SAMPLED)),
        collate(ROLLOUTS, pad_id=0),
    )
    (loss,), _ = channel_losses(trainer.models, batch, counts)
    gradients = torch.autograd.grad(loss.mean_part(), trainer.trainable())
    total, cut = torch.zeros(()), []
    for e in ROLLOUTS:
        logp = (
            trainer.models.student.model(input_ids=torch.tensor([e.ids])).logits[0].log_softmax(-1)
        )
        for a in e.actions:
            for j, then in zip(range(*a.span), a.logprobs, strict=True):
                now = logp[j - 1, e.ids[j]]
                r = math.exp(float(now.detach()) - then)
                total = total - min(r, 1.1) * a.advantage * now
                cut += [r > 1.1] if a.advantage else []
    for x, y in zip(
        gradients, torch.autograd.grad(total / SAMPLED, trainer.trainable()), strict=True
    ):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-6)
    assert loss.metrics["clipped"].tolist() == cut and any(cut) and not all(cut)


def test_clips_are_those_of_the_objective_unless_they_are_set() -> None:
    assert {name: clips(PolicySettings(objective=name)) for name in NAMES} == dict(CLIPS)  # pyright: ignore[reportArgumentType]
    assert clips(PolicySettings(clip=0.1)) == (0.1, 0.1) and clips(
        PolicySettings(clip=0.1, clip_high=0.3)
    ) == (0.1, 0.3)
    assert clips(PolicySettings(objective="cispo", clip=0.5)) == (0.5, 4.0)
    assert set(NAMES) - SCALED == {"dr_grpo", "dppo", "dppo_symmetric"}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_each_objective_makes_good_messages_likelier(name: str) -> None:
    trainer = trainer_of(objective=name)
    model = trainer.models.student.model
    fresh = []
    for e in ROLLOUTS[:2]:
        now = iter([x for x, _, _ in tokens(model, e)])
        fresh.append(
            dataclasses.replace(
                e,
                actions=tuple(
                    dataclasses.replace(a, logprobs=tuple(next(now) for _ in a.logprobs))
                    for a in e.actions
                ),
            )
        )

    def likely(e: TrainingExample) -> float:
        return sum(now for now, _, _ in tokens(model, e))

    before = [likely(e) for e in fresh]
    accumulate(
        trainer,
        micro_batches(fresh, [], micro_tokens=10_000),
        step_counts(StepInputs(fresh, [], num_rollouts=2)),
        scales={"policy": 1.0},
    )
    with torch.no_grad():
        for p in trainer.trainable():
            if p.grad is not None:
                p -= 1e-2 * p.grad
    assert likely(fresh[0]) > before[0] and likely(fresh[1]) < before[1]
