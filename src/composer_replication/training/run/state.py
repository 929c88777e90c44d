"""The trainer: the models of a run, and what optimises the student."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.total import RunningMean
from composer_replication.models.load_student import Student
from composer_replication.models.sharding import Sharding
from composer_replication.training.forwards.channel_weights import channel_weights, health_weights
from composer_replication.training.forwards.training_models import TrainingModels, make_models
from composer_replication.training.run.health import Health
from composer_replication.training.run.optimiser import GradientClip, make_optimiser


@dataclass(slots=True, kw_only=True)
class Trainer:
    """The state of the optimisation: the optimiser, the clip, each channel's running mean and its
    health.

    `models` scores, and knows nothing of it. `on_progress` is called with the phase a step is in.
    `begin_step` makes a step's work on a backend; None = `StepWork` of training/step.py.
    """

    config: Config
    models: TrainingModels
    optimiser: torch.optim.Optimizer
    accelerator: Accelerator
    health: Health
    clip: GradientClip
    on_progress: Callable[[Callable[[], str]], None] = field(default=lambda phase: None)
    begin_step: Callable[..., Any] | None = None
    means: dict[Channel, RunningMean] = field(
        default_factory=lambda: {name: RunningMean() for name in CHANNELS}
    )

    @property
    def settings(self) -> TrainSettings:
        """The settings of the training stage."""
        return self.config.train

    @property
    def weights(self) -> dict[Channel, float]:
        """The weight of each channel; 0 = off."""
        return channel_weights(self.config.train)

    def trainable(self) -> list[Tensor]:
        """The weights that the optimiser moves."""
        return [p for p in self.models.student.model.parameters() if p.requires_grad]

    def seed(self, step: int) -> None:
        """Seed the dropout of a step: a function of seed, step and rank.

        So a checkpoint holds no random state, and every pass of a step draws the same dropout.
        """
        torch.manual_seed(
            stage_seed(self.config.seed, f"step:{step}:{self.accelerator.process_index}")
        )


def make_trainer(config: Config, *, student: Student, accelerator: Accelerator) -> Trainer:
    """A trainer at step 0, with references made from the student's weights as they are now."""
    settings = config.train
    # first: it moves the student to its device, where the optimiser looks for the parameters
    device = accelerator.device
    sharding = Sharding.over_ranks(device) if settings.fsdp else None
    models = make_models(settings, student=student, device=device, sharding=sharding)
    return Trainer(
        config=config,
        models=models,
        optimiser=make_optimiser(student.model, settings),
        clip=GradientClip(ratio=settings.max_grad_norm_ratio, max_norm=settings.max_grad_norm),
        accelerator=accelerator,
        health=Health(
            weights=health_weights(settings),
            max_bad_steps=settings.starved_steps,
            max_clipped=settings.health.max_clipped,
        ),
    )
