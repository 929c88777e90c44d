"""`recompose train --backend verl`: the reference trainer's loop, whose optimiser steps verl takes.

    with step_engine(setup) as begin_step:
        setup.trainer.begin_step = begin_step

Drawing, rollouts, hints, pairs, controls, balance, health rules, metrics and checkpoints are those
of training/loop.py. A step's forwards, backward, clip and update are verl's (FSDP2); after it the
weights come back to the student of this process, which plays the next rollouts and is what
checkpoints hold.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import Counts
from composer_replication.training.backends.step_check import StepGradients, TakeStep
from composer_replication.training.backends.verl_launch import VerlGroup, open_group
from composer_replication.training.backends.verl_rows import StepFacts
from composer_replication.training.backends.verl_settings import check_hosted_by_verl
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.forwards.channels import CHANNEL_METRICS, loss_rows
from composer_replication.training.inputs import StepInputs
from composer_replication.training.run.health import ChannelStep
from composer_replication.training.run.optimiser import learning_rate
from composer_replication.training.run.ranks import join_ranks
from composer_replication.training.run.state import Trainer
from composer_replication.training.setup import TrainSetup
from composer_replication.training.step import (
    channel_steps_of_sums,
    check_finite,
    step_counts,
    with_hint_controls,
)

START = "verl_start"
"""Folder of a run with the start weights, which every worker loads."""


class VerlStepWork:
    """One step's work on verl's workers; the methods of `StepWork` (training/step.py)."""

    def __init__(
        self,
        group: VerlGroup,
        trainer: Trainer,
        inputs: StepInputs,
        counts: Counts,
        *,
        step: int,
    ) -> None:
        self.group, self.trainer, self.counts, self.step = group, trainer, counts, step
        self.items = (loss_rows(inputs.examples, trainer.settings), inputs.pairs)
        self.norm = 0.0

    def measure(self) -> dict[Channel, ChannelStep]:
        """Each channel's loss and gradient norm, without a backward of the trunk."""
        return self._take(None)

    def parameter_norms(self, channels: Sequence[Channel]) -> dict[str, float]:
        """None: verl steps with every backward."""
        return {}

    def backward(self, scales: Mapping[Channel, float]) -> dict[Channel, ChannelStep]:
        """verl's whole step: forwards, backward, clip, update. A step that nothing feeds is left
        out, as the reference trainer does not move weights without a gradient."""
        return self._take(scales)

    def update(self, *, loss: float) -> dict[str, Any]:
        """Bring the weights back; returns the metrics. Raises StoppedError for a gradient that is
        not finite: verl has not stepped then."""
        check_finite(loss=loss, norm=self.norm, step=self.step)
        clip = self.trainer.clip
        clipped = self.norm > clip.limit
        if self.norm > 0:
            clip.mean.add(min(self.norm, clip.limit))
            load_verl_weights(self.trainer.models.student, self.group)
        rate = learning_rate(self.trainer.settings, self.step)
        return {"loss": loss, "grad_norm": self.norm, "clipped": clipped, "lr": rate}

    def _take(self, scales: Mapping[Channel, float] | None) -> dict[Channel, ChannelStep]:
        facts = step_facts(self.trainer, self.counts, scales=scales, step=self.step)
        examples, pairs = self.items
        sums = torch.zeros(len(CHANNELS), 3)
        metric_sums = torch.zeros(len(CHANNEL_METRICS), 2)
        if examples or pairs:
            result = self.group.take(examples, pairs, facts)
            sums, metric_sums = (torch.tensor(result[k]) for k in ("sums", "metric_sums"))
            if scales is not None:
                self.norm = float(result["grad_norm"])
        return channel_steps_of_sums(
            self.trainer.settings, self.counts, sums=sums, metric_sums=metric_sums
        )


def step_facts(
    trainer: Trainer, counts: Counts, *, scales: Mapping[Channel, float] | None, step: int
) -> StepFacts:
    """What verl's workers must know of a step."""
    limit = trainer.clip.limit
    return StepFacts(
        settings=trainer.settings,
        counts=counts,
        scales=None if scales is None else dict(scales),
        taid_t=trainer.models.taid_t,
        pad_id=trainer.models.student.pad_id,
        learning_rate=learning_rate(trainer.settings, step),
        max_norm=None if math.isinf(limit) else limit,
    )


@torch.no_grad()
def load_verl_weights(student: Student, group: VerlGroup) -> None:
    """Copy verl's weights into the student of this process."""
    weights = group.gather("weights")
    for name, parameter in student.model.named_parameters():
        parameter.copy_(weights[name])


@contextmanager
def start_folder(student: Student, parent: Path | None) -> Iterator[Path]:
    """A folder with the student's weights as they are now, written by the first rank, and removed
    at the end; below the run, which every rank sees, or (None) a temporary one per process."""
    accelerator = join_ranks()
    folder = (parent or Path(tempfile.mkdtemp(prefix="composer-verl-"))) / START
    if accelerator.is_main_process or parent is None:
        student.model.save_pretrained(str(folder))
    accelerator.wait_for_everyone()
    try:
        yield folder
    finally:
        accelerator.wait_for_everyone()
        if accelerator.is_main_process or parent is None:
            shutil.rmtree(folder if parent else folder.parent, ignore_errors=True)


@contextmanager
def step_engine(setup: TrainSetup) -> Iterator[Callable[..., VerlStepWork]]:
    """What makes a step's work on verl, for `Trainer.begin_step`; raises ConfigError for a setting
    that verl does not host, MissingExtraError without verl."""
    check_hosted_by_verl(setup.config)
    student = setup.trainer.models.student
    with (
        start_folder(student, setup.run_logger.run.path) as folder,
        open_group(setup.config, folder=folder) as group,
    ):

        def begin_step(
            trainer: Trainer, inputs: StepInputs, counts: Counts, *, step: int
        ) -> VerlStepWork:
            return VerlStepWork(group, trainer, inputs, counts, step=step)

        yield begin_step


@contextmanager
def verl_steps(config: Config, *, student: Student) -> Iterator[TakeStep]:
    """verl's step for `train --check`: a learning rate of 0 and no clip."""
    check_hosted_by_verl(config)
    with start_folder(student, None) as folder, open_group(config, folder=folder) as group:

        def take_step(settings: TrainSettings, inputs: StepInputs) -> StepGradients:
            scenario = config.model_copy(update={"train": settings})
            inputs, _ = with_hint_controls(scenario, inputs, step=0)
            counts, weights = step_counts(inputs), channel_weights(settings)
            facts = StepFacts(
                settings=settings,
                counts=counts,
                scales=dict(weights),
                taid_t=settings.hint.taid.t_start,
                pad_id=student.pad_id,
                keep_gradients=True,
            )
            result = group.take(loss_rows(inputs.examples, settings), inputs.pairs, facts)
            sums = dict(zip(CHANNELS, result["sums"], strict=True))
            fed: list[Channel] = [name for name in CHANNELS if weights[name] and sums[name][0]]
            return StepGradients(
                losses={name: sums[name][1] for name in fed},
                grad_norm=float(result["grad_norm"]),
                gradients=group.gather("gradients"),
            )

        yield take_step
