"""What a run holds in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from accelerate import Accelerator
from torch import Tensor

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.channel import CHANNELS, Channel
from composer_replication.losses.credit import channel_shares
from composer_replication.losses.schedules import TaidSchedule
from composer_replication.losses.total import RunningMean
from composer_replication.models.load_student import Student
from composer_replication.models.tree_forward import why_not_tree
from composer_replication.training.health import Health
from composer_replication.training.hinting import taid_schedule
from composer_replication.training.optimiser import GradientClip, make_optimiser
from composer_replication.training.reference import Reference, frozen, references


@dataclass(slots=True, kw_only=True)
class Trainer:
    """The student and all that moves with it; `references` score without gradient, by channel.

    `layout` is how the forwards of a step are laid out, `why_rows` why it is not the tree that was
    asked for ("" where it is). `start` is the other half of a trust region, `taid` the schedule of
    TAID where it moves. `tell` hears what a step is at.
    """

    config: Config
    student: Student
    references: dict[Channel, Reference]
    optimiser: torch.optim.Optimizer
    accelerator: Accelerator
    health: Health
    clip: GradientClip
    layout: Literal["tree", "rows"] = "rows"
    why_rows: str = ""
    start: Reference | None = None
    taid: TaidSchedule | None = None
    tell: Callable[[Callable[[], str]], None] = field(default=lambda doing: None)
    means: dict[Channel, RunningMean] = field(
        default_factory=lambda: {name: RunningMean() for name in CHANNELS}
    )

    @property
    def settings(self) -> TrainSettings:
        """The trainer's settings."""
        return self.config.train

    @property
    def weights(self) -> dict[Channel, float]:
        """The weight of each channel; 0 = off."""
        return channel_weights(self.config.train)

    @property
    def teachers(self) -> tuple[Reference, ...]:
        """The models that the hint's teacher is made of: itself, or the live one and the start."""
        return (
            (self.references["hint"],)
            if self.start is None
            else (self.references["hint"], self.start)
        )

    @property
    def taid_t(self) -> float:
        """Where TAID's mixture stands in this step."""
        return self.settings.hint.taid.t_start if self.taid is None else self.taid.t

    @property
    def pair_weight(self) -> float:
        """What one (query, key) pair costs in tokens: 4 * H per layer and pair against 24 * H^2 per
        layer and token."""
        return 1.0 / (6 * self.student.model.get_input_embeddings().weight.shape[1])

    def trainable(self) -> list[Tensor]:
        """The weights that the optimiser moves."""
        return [p for p in self.student.model.parameters() if p.requires_grad]

    def extra_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the student and the optimiser: a slow average, as
        "<channel>/<weight>"."""
        return {
            f"{name}/{key}": value
            for name, reference in self.references.items()
            for key, value in reference.tensors().items()
        }

    def load_extra(self, tensors: Mapping[str, Tensor]) -> None:
        """Put `extra_tensors` back; raises DataError where they are not those of this trainer's
        references."""
        for name, reference in self.references.items():
            reference.load(
                {
                    key.removeprefix(f"{name}/"): value
                    for key, value in tensors.items()
                    if key.startswith(f"{name}/")
                }
            )

    def seed(self, step: int) -> None:
        """Dropout of a step is a function of seed, step and rank: nothing to save, and every pass
        of a step sees the same."""
        torch.manual_seed(
            stage_seed(self.config.seed, f"step:{step}:{self.accelerator.process_index}")
        )


def channel_weights(settings: TrainSettings) -> dict[Channel, float]:
    """The weight of each channel's loss under the combination of policy and hint; credit on
    advantages is no loss of its own."""
    shares = channel_shares(settings.hint.combination, hint_weight=settings.hint.weight)
    return {
        "policy": settings.policy.weight * shares.policy,
        "lm_ce": settings.lm_ce.weight,
        "hint": shares.hint,
        "preference": settings.preference.weight,
    }


def watched_weights(settings: TrainSettings) -> dict[Channel, float]:
    """The weights as training/health.py sees them: a hint that is credit is on."""
    weights = channel_weights(settings)
    if settings.hint.is_credit:
        weights["hint"] = settings.hint.weight
    return weights


def make_trainer(config: Config, *, student: Student, accelerator: Accelerator) -> Trainer:
    """A trainer at step 0: the student on its device and in training mode, references made from its
    weights as they are now."""
    student.model.to(accelerator.device).train()
    settings, weights = config.train, channel_weights(config.train)
    why_rows = why_not_tree(student.model) if settings.layout == "tree" else ""
    hint, dpo = settings.hint, weights["preference"] > 0 and settings.preference.has_reference
    scored = references(student, teacher=hint.teacher, hint=hint.weight > 0, dpo=dpo, ema=hint.ema)
    start = (
        scored.get("preference") or frozen(student)
        if hint.weight and hint.teacher == "trust_region"
        else None
    )
    return Trainer(
        config=config,
        student=student,
        references=scored,
        start=start,
        taid=taid_schedule(hint, steps=settings.steps) if hint.weight else None,
        optimiser=make_optimiser(student.model, settings),
        clip=GradientClip(ratio=settings.max_grad_norm_ratio, max_norm=settings.max_grad_norm),
        accelerator=accelerator,
        health=Health(
            weights=watched_weights(settings),
            max_bad_steps=settings.starved_steps,
            max_clipped=settings.health.max_clipped,
        ),
        layout="rows" if why_rows else settings.layout,
        why_rows=why_rows,
    )
