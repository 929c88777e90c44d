"""One step of a backend beside the reference trainer's on the same batch: loss and gradient norm
per channel (`recompose train --backend X --check`).

    inputs = check_inputs(config, student=student, data=data, live=live)
    comparisons = check_steps(config, student=student, inputs=inputs)
    all(comparison.passes for comparison in comparisons)

A backend names a function in its record (`Backend.steps`, registry.py): a context manager that is
given the settings and the student, and yields a function from (TrainSettings, StepInputs) to
`StepGradients`. It computes what the backend's optimiser would be given, and moves no weight. The
scenarios are the first channel alone, each other channel added to it, and all of them; no channel
is balanced or clipped, so each counts by its weight.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import scored_actions
from composer_replication.training.backends.registry import BACKENDS
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.inputs import StepInputs, TrainingData
from composer_replication.training.on_policy.live import LiveStep, RolloutSource, rollout_example
from composer_replication.training.run.ranks import join_ranks
from composer_replication.training.run.state import Trainer, make_trainer
from composer_replication.training.step import (
    accumulate,
    gradient_norm,
    rank_micro_batches,
    step_counts,
    with_hint_controls,
)

TOLERANCE = 1e-4
"""The largest relative difference that passes; weights in float32."""
_SMALL_LOSS = 1e-2
"""A loss nearer to 0 than this is compared as if it were this far: advantages sum to about 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGradients:
    """What a step gives its optimiser: each fed channel's mean loss over the whole step,
    unweighted, and the gradient of their weighted sum.

    `gradients` are by the name of the student's weight; they may be left out if they are sharded,
    and then only the norm is compared.
    """

    losses: Mapping[Channel, float]
    grad_norm: float
    gradients: Mapping[str, Tensor] = field(default_factory=dict)


TakeStep = Callable[[TrainSettings, StepInputs], StepGradients]
"""Computes a step under these settings, without moving a weight."""
OpenSteps = Callable[..., AbstractContextManager[TakeStep]]
"""fn(config, *, student): what a backend registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """One scenario: the channels that were on, and what both trainers computed."""

    channels: tuple[Channel, ...]
    reference: StepGradients
    backend: StepGradients

    @property
    def differences(self) -> dict[str, float]:
        """The relative differences: "loss <channel>", "gradient norm", and "gradient" (the norm of
        the difference), if the backend gave it."""
        differences = {
            f"loss {name}": abs(self.backend.losses.get(name, math.nan) - loss)
            / max(abs(loss), _SMALL_LOSS)
            for name, loss in self.reference.losses.items()
        }
        norm = self.reference.grad_norm
        differences["gradient norm"] = _ratio(abs(self.backend.grad_norm - norm), norm)
        if self.backend.gradients:
            differences["gradient"] = _ratio(
                _distance(self.backend.gradients, self.reference.gradients), norm
            )
        return differences

    @property
    def not_fed(self) -> tuple[Channel, ...]:
        """The channels for which the batch holds nothing."""
        return tuple(name for name in self.channels if name not in self.reference.losses)

    @property
    def passes(self) -> bool:
        """Whether every difference is within TOLERANCE; a channel that is not fed, or a step
        without a gradient, compares nothing and does not pass."""
        return (
            not self.not_fed
            and self.reference.grad_norm > 0
            and all(difference <= TOLERANCE for difference in self.differences.values())
        )

    @property
    def verdict(self) -> str:
        """ "ok", or what is wrong."""
        if self.not_fed:
            return f"NOTHING IN THE BATCH FOR {', '.join(self.not_fed)}"
        if not self.reference.grad_norm:
            return "NO GRADIENT"
        return "ok" if self.passes else "DIFFERS"

    def text(self) -> str:
        """In one line, e.g. "ok  policy: gradient norm 1.5, backend 1.5; ...; 8.1e-07": at the end
        the largest relative difference."""
        parts = [
            f"gradient norm {self.reference.grad_norm:.6g}, backend {self.backend.grad_norm:.6g}"
        ]
        parts += [
            f"loss {name} {loss:.6g}, backend {self.backend.losses.get(name, math.nan):.6g}"
            for name, loss in self.reference.losses.items()
        ]
        worst = max(self.differences.values())
        return f"{self.verdict}  {' + '.join(self.channels)}: {'; '.join(parts)}; {worst:.1e}"


def check_steps(
    config: Config,
    *,
    student: Student,
    inputs: StepInputs,
    open_steps: OpenSteps | None = None,
) -> list[StepComparison]:
    """Compute the step of every scenario with both trainers; `open_steps` is by default what the
    backend of the settings registered.

    Raises ConfigError if it registered none.
    """
    open_steps = open_steps or registered_steps(config.train.backend)
    comparisons = []
    with reference_steps(config, student=student) as by_reference:
        expected = [
            (channels, settings, by_reference(settings, inputs))
            for channels, settings in scenarios(config.train)
        ]
    with open_steps(config, student=student) as by_backend:
        for channels, settings, reference in expected:
            backend = by_backend(settings, inputs)
            comparisons.append(
                StepComparison(channels=channels, reference=reference, backend=backend)
            )
    return comparisons


def registered_steps(name: str) -> OpenSteps:
    """The function that a backend registered; raises ConfigError if it registered none."""
    path = BACKENDS[name].steps if name in BACKENDS else ""
    if not path:
        known = ", ".join(backend.name for backend in BACKENDS.values() if backend.steps)
        raise ConfigError(
            f"{name} has no step that could be compared",
            where="--check",
            fix=f"use one of: {known}",
        )
    module, function = path.split(":")
    return getattr(importlib.import_module(module), function)


def scenarios(settings: TrainSettings) -> Iterator[tuple[tuple[Channel, ...], TrainSettings]]:
    """The first channel with a weight alone, each other one added to it, and all of them, with the
    settings of each.

    >>> settings = TrainSettings.model_validate({"hint": {"weight": 1}})
    >>> [channels for channels, _ in scenarios(settings)]
    [('lm_ce',), ('lm_ce', 'hint')]
    """
    first, *others = [name for name in CHANNELS if channel_weights(settings)[name]]
    chosen = [(first,), *((first, name) for name in others), (first, *others)]
    for channels in dict.fromkeys(chosen):
        off = {
            name: getattr(settings, name).model_copy(update={"weight": 0.0})
            for name in CHANNELS
            if name not in channels and not (name == "hint" and settings.hint.is_credit)
        }
        yield channels, settings.model_copy(update={**off, "balance": "none"})


@contextmanager
def reference_steps(config: Config, *, student: Student) -> Iterator[TakeStep]:
    """The reference trainer's own step, on this process's share of the batch."""
    trainer = make_trainer(config, student=student, accelerator=join_ranks())

    def take_step(settings: TrainSettings, inputs: StepInputs) -> StepGradients:
        return _reference_step(_with_settings(trainer, settings), inputs)

    yield take_step


def _with_settings(trainer: Trainer, settings: TrainSettings) -> Trainer:
    """The trainer with other settings and the same models."""
    return replace(
        trainer,
        config=trainer.config.model_copy(update={"train": settings}),
        models=replace(trainer.models, settings=settings),
    )


def _reference_step(trainer: Trainer, inputs: StepInputs) -> StepGradients:
    inputs, _ = with_hint_controls(trainer.config, inputs, step=0)
    trainer.seed(0)
    observed = accumulate(
        trainer, rank_micro_batches(trainer, inputs), step_counts(inputs), scales=trainer.weights
    )
    gradients = {
        name: parameter.grad.detach().clone()
        for name, parameter in trainer.models.student.model.named_parameters()
        if parameter.grad is not None
    }
    norm = gradient_norm(trainer.trainable())
    trainer.optimiser.zero_grad()
    losses: dict[Channel, float] = {
        name: observed[name].loss
        for name in CHANNELS
        if trainer.weights[name] and observed[name].tokens
    }
    return StepGradients(losses=losses, grad_norm=norm, gradients=gradients)


def check_inputs(
    config: Config, *, student: Student, data: TrainingData, live: RolloutSource | None = None
) -> StepInputs:
    """The batch of the first step: drawn and played as in a run. Rollouts whose groups are all flat
    get advantages of +-0.5 in turn, so that there is something to compare."""
    examples, pairs = data.sampler(config).step(0)
    live_step = None
    if live is not None:
        student.model.to(join_ranks().device)
        live_step = live.collect(student.model, step=0)
        if config.train.policy.weight and not any(map(scored_actions, live_step.examples)):
            live_step = with_planted_advantages(live_step)
    return StepInputs.of(examples, pairs, live_step=live_step, dataset=data.examples)


def with_planted_advantages(live_step: LiveStep) -> LiveStep:
    """The rollouts with an advantage of 0.5 and -0.5 in turn."""
    views = {example.session_id: example.hints for example in live_step.examples}
    advantages = itertools.cycle((0.5, -0.5))
    examples = [
        rollout_example(
            rollout, advantage=next(advantages), views=views.get(rollout.session.id, ())
        )
        for rollout in live_step.rollouts
    ]
    return replace(live_step, examples=tuple(examples))


def _distance(gradients: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The norm of the difference; a weight that one of them lacks has a gradient of 0 there."""
    square = 0.0
    for name in {*gradients, *expected}:
        ours, theirs = gradients.get(name), expected.get(name)
        parts = [grad.double().cpu() for grad in (ours, theirs) if grad is not None]
        difference = parts[0] - parts[1] if len(parts) == 2 else parts[0]
        square += float(difference.square().sum())
    return math.sqrt(square)


def _ratio(difference: float, expected: float) -> float:
    return difference / expected if expected else difference
