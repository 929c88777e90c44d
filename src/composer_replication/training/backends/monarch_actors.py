"""The actors of `train.backend = "monarch"`: the workers of monarch_workers.py, in processes of a
Monarch mesh. Only this file and monarch_run.py import Monarch (package torchmonarch), when it is
there.

    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    trainer = mesh.spawn("trainer", TrainerActor)            # two ranks of the reference loop
    report = trainer.begin.call(parts, launch).get()

An error of this package travels as a value, for an exception would arrive as text; any other
exception is Monarch's ActorError on the other side. Endpoints of one actor run one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ComposerError, need
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import Groups
from composer_replication.training.backends.monarch_process import actor_names
from composer_replication.training.backends.monarch_workers import (
    EnvironmentHost,
    GeneratorWorker,
    Note,
    RunParts,
    Share,
    TrainerLaunch,
    TrainerReport,
    TrainerWorker,
)
from composer_replication.training.backends.registry import MONARCH
from composer_replication.training.backends.step_check import StepGradients, reference_steps
from composer_replication.training.inputs import StepInputs

Actor, endpoint = actor_names()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReply:
    """What an endpoint gives back: a value, an error of this package, or that the process of the
    environments is gone."""

    value: Any = None
    error: ComposerError | None = None
    host_gone: bool = False


def answer(call: Callable[..., Any], *arguments: Any) -> EndpointReply:
    """Call, with an error of this package as a value."""
    try:
        return EndpointReply(value=call(*arguments))
    except ComposerError as error:
        return EndpointReply(error=error)


class TrainerActor(Actor):
    """One rank of the reference loop: its step, its channels from the one loss core, its
    checkpoints and its files."""

    def __init__(self) -> None:
        MONARCH.require()
        _use_cpu_without_a_card()
        self._rank: int = need("monarch.actor", extra="monarch").current_rank().rank
        self._worker = TrainerWorker()

    @endpoint
    def begin(self, parts: RunParts, launch: TrainerLaunch) -> TrainerReport:
        """Build the loop's setup, and load the checkpoint to resume from."""
        return self._worker.begin(parts, launch)

    @endpoint
    def step(self, step: int, sampled: Groups, notes: tuple[Note, ...]) -> TrainerReport:
        """One optimiser step on these rollouts, with its checkpoint."""
        return self._worker.step(step, sampled, notes)

    @endpoint
    def weights(self) -> dict[str, torch.Tensor]:
        """The trainable weights of now; {} from all ranks but the first."""
        return self._worker.weights() if self._rank == 0 else {}

    @endpoint
    def end(self, notes: tuple[Note, ...]) -> TrainerReport:
        """Close the run as done."""
        return self._worker.end(notes)

    @endpoint
    def process(self) -> int:
        """The number of its process."""
        return os.getpid()

    @endpoint
    def compute(
        self, config: Config, student: Student, settings: TrainSettings, inputs: StepInputs
    ) -> StepGradients:
        """A step's losses and gradient, which moves no weight: `train --check`."""
        with reference_steps(config, student=student) as take_step:
            return take_step(settings, inputs)


class GeneratorActor(Actor):
    """A student that samples with the weights it was given last; those of an older version are
    refused."""

    def __init__(self, parts: RunParts, number: int) -> None:
        MONARCH.require()
        device = _card(parts.config.monarch.trainers + number)
        self._worker = GeneratorWorker(parts, device=device)

    @endpoint
    def load(self, weights: dict[str, torch.Tensor], version: int) -> EndpointReply:
        """Take newer weights."""
        return answer(self._worker.load, weights, version)

    @endpoint
    def play(self, share: Share, host: Any) -> EndpointReply:
        """The rollouts of a share, in the environments of a host."""
        gone: list[bool] = []

        def ask(method: str, *arguments: Any) -> Any:
            try:
                reply: EndpointReply = getattr(host, method).call_one(*arguments).get()
            except RuntimeError as error:
                gone.append(is_dead(error))
                raise
            if reply.error is not None:
                raise reply.error
            return reply.value

        try:
            played = answer(self._worker.play, share, ask)
        except RuntimeError:
            if not any(gone):
                raise
            return EndpointReply(host_gone=True)
        return EndpointReply(host_gone=True) if any(gone) else played

    @endpoint
    def process(self) -> int:
        """The number of its process."""
        return os.getpid()


class EnvironmentActor(Actor):
    """Holds environments for generators in other processes; one answers at a time."""

    def __init__(self, parts: RunParts) -> None:
        MONARCH.require()
        self._host = EnvironmentHost(parts)

    @endpoint
    def make(self, step: int, index: int) -> EndpointReply:
        """A new environment of a step's task."""
        return answer(self._host.make, step, index)

    @endpoint
    def call(self, number: int, method: str, *arguments: Any) -> EndpointReply:
        """Call a method of an environment."""
        return answer(self._host.call, number, method, *arguments)

    @endpoint
    def process(self) -> int:
        """The number of its process: it lives."""
        return os.getpid()


def is_dead(error: BaseException) -> bool:
    """Whether Monarch says that the process behind an endpoint is gone."""
    return type(error).__name__ == "SupervisionError"


def _use_cpu_without_a_card() -> None:
    """Let accelerate join ranks over gloo; on cards it takes LOCAL_RANK's."""
    if not torch.cuda.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def _card(number: int) -> str:
    """The device of a generator: cards go round, behind those of the trainers."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{number % torch.cuda.device_count()}"
