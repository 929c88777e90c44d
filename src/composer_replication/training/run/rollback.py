"""The health of a live policy in the loop: measure it, warn, and if a rule is broken, put the last
good weights back and stop.

    rollback = Rollback.of(trainer, live=live, run_logger=run_logger)
    metrics = rollback.check_rollouts(live_step, step=3)               # before the update
    metrics = rollback.check_weights(live_step, steps=4, last=False)   # before a checkpoint

A rollback is made before the first step, because KL is measured to the start weights. The rules are
in training/run/health.py; this file only measures and restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.training.forwards.reference import (
    Reference,
    frozen_reference,
    live_reference,
)
from composer_replication.training.forwards.training_models import TrainingModels
from composer_replication.training.on_policy.live import LiveStep, RolloutSource
from composer_replication.training.on_policy.rewards import start_kl
from composer_replication.training.on_policy.rollout_metrics import measure_drift
from composer_replication.training.run.checkpoint import (
    good_checkpoint,
    load_extra,
    load_tensors,
    set_aside,
)
from composer_replication.training.run.health import PolicyHealth
from composer_replication.training.run.run_logger import RunLogger
from composer_replication.training.run.state import Trainer
from composer_replication.training.run.step_progress import CountedPhase

Part = TypeVar("Part")


@dataclass(slots=True, kw_only=True)
class Rollback:
    """Feeds measurements to `PolicyHealth`, and restores good weights if a rule is broken.

    Every rank sees the same rollouts, so every rank decides the same. `reference_model` has the
    weights at the start.
    """

    trainer: Trainer
    live: RolloutSource
    run_logger: RunLogger
    health: PolicyHealth
    reference_model: Reference

    @classmethod
    def of(cls, trainer: Trainer, *, live: RolloutSource, run_logger: RunLogger) -> Self:
        """The rollback of a trainer before its first step; the frozen weights are shared with the
        hint teacher or the reference of DPO if there is one."""
        return cls(
            trainer=trainer,
            live=live,
            run_logger=run_logger,
            health=PolicyHealth(settings=trainer.settings.health),
            reference_model=_reference_model(trainer.models),
        )

    def check_rollouts(self, live_step: LiveStep, *, step: int) -> dict[str, float]:
        """Measure the policy after `step` steps on its newest rollouts; returns the metrics."""
        metrics = self._drift(live_step)
        if self.health.settings.monitor_tasks and step % self.health.settings.monitor_every == 0:
            metrics |= self._monitor()
        # the measured entropy first: TRL records no log-probs, so its rollouts have none
        for warning in self.health.observe_rollouts(
            {"rollouts/entropy": metrics["health/entropy"], **live_step.metrics}
        ):
            self.run_logger.event("drift", step=step, **warning)
        self._check(step)
        return metrics

    def start_kl(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The KL of each rollout to the start, by session id, in nats."""
        return start_kl(self.reference_model, rollouts, **self._batch_options())

    def check_weights(self, live_step: LiveStep, *, steps: int, last: bool) -> dict[str, float]:
        """Measure the weights of a checkpoint after `steps` steps; at the end of the run also on
        the monitor tasks."""
        metrics = self._drift(live_step)
        if last and self.health.settings.monitor_tasks:
            metrics |= self._monitor()
        self._check(steps)
        return metrics

    def _drift(self, live_step: LiveStep) -> dict[str, float]:
        measured = measure_drift(
            live_reference(self.trainer.models.student),
            self.reference_model,
            live_step.rollouts,
            episodes=self.trainer.settings.health.kl_episodes,
            counted=self._counted,
            **self._batch_options(),
        )
        self.health.observe_kl(measured.kl)
        return {"health/kl": measured.kl, "health/entropy": measured.entropy}

    def _batch_options(self) -> dict[str, Any]:
        return {
            "pad_id": self.trainer.models.student.pad_id,
            "max_tokens": self.trainer.settings.micro_tokens,
            "device": self.trainer.models.device,
        }

    def _counted(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield the parts of a measurement, and report how many have ended."""
        ended = 0
        phase = CountedPhase(
            "KL and entropy of the rollouts, parts", total=len(parts), ended=lambda: ended
        )
        self.run_logger.progress(phase)
        for part in parts:
            yield part
            ended += 1

    def _monitor(self) -> dict[str, float]:
        stats, total = SamplingStats(), self.health.settings.monitor_tasks
        self.run_logger.progress(
            CountedPhase("monitor tasks played", total=total, ended=lambda: stats.num_ended)
        )
        success = self.live.monitor(self.trainer.models.student.model, stats=stats)
        self.health.observe_monitor(success)
        return {"health/monitor": sum(success) / len(success)}

    def _check(self, steps: int) -> None:
        """If a rule is broken: put back the newest good checkpoint, set later ones aside, write an
        event, and raise StoppedError."""
        breach = self.health.find_breach()
        if breach is None:
            return
        # 1. Every rank loads the newest good weights: the caller may go on with the model.
        models = self.trainer.models
        restored, folder = good_checkpoint(self.run_logger.run)
        load_tensors(folder, student=models.student, optimiser=self.trainer.optimiser)
        models.load_extra_tensors(load_extra(folder))
        # 2. Set later checkpoints aside, once every rank has read the folder.
        self.trainer.accelerator.wait_for_everyone()
        aside: list[str] = []
        if self.run_logger.main:
            aside = set_aside(self.run_logger.run, after=restored)
        # 3. Report, and stop.
        self.run_logger.event(
            "restored",
            step=steps,
            rule=breach.rule,
            value=breach.value,
            limit=breach.limit,
            restored=restored,
            set_aside=aside,
            reason=breach.reason,
        )
        raise breach.error(step=steps, restored=restored)


def _reference_model(models: TrainingModels) -> Reference:
    """The frozen start weights: a reference that holds them already, else a copy."""
    if "preference" in models.references:
        return models.references["preference"]
    if models.reference_model is not None:
        return models.reference_model
    if "hint" in models.references and models.settings.hint.teacher == "frozen":
        return models.references["hint"]
    return frozen_reference(models.student)
