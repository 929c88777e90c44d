"""What the loop asks of a live policy's health: measure it, warn, and on a broken rule put the last
good weights back and stop.

    guard = Guard.of(trainer, live=live, journal=journal)       # before the first step: the start weights are what KL is measured from
    facts = guard.look(made, step=3)                            # before the update; raises StoppedError after the weights were put back
    facts = guard.judge(made, steps=4, last=False)              # after the update, for the checkpoint that is about to be written
    guard.health.good

The rules stand in training/health.py; this file only measures and restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from composer_replication.rollouts.episode import Rollout
from composer_replication.training.checkpoint import (
    good_checkpoint,
    load_extra,
    load_tensors,
    set_aside,
)
from composer_replication.training.health import PolicyHealth
from composer_replication.training.live import LiveStep, RolloutSource
from composer_replication.training.reference import Reference, frozen
from composer_replication.training.reference import live as current
from composer_replication.training.rewards import start_kl
from composer_replication.training.rollout_metrics import drift
from composer_replication.training.run_logger import RunLogger
from composer_replication.training.state import Trainer


@dataclass(slots=True, kw_only=True)
class Guard:
    """Eyes and hands of `PolicyHealth` in the loop; every rank sees the same rollouts and so
    decides the same."""

    trainer: Trainer
    live: RolloutSource
    journal: RunLogger
    health: PolicyHealth
    start: Reference

    @classmethod
    def of(cls, trainer: Trainer, *, live: RolloutSource, journal: RunLogger) -> Self:
        """A guard of a trainer at its start; the frozen weights are shared with the teacher or the
        reference of DPO where there is one."""
        health = PolicyHealth(settings=trainer.settings.health)
        return cls(
            trainer=trainer, live=live, journal=journal, health=health, start=_start(trainer)
        )

    def look(self, made: LiveStep, *, step: int) -> dict[str, float]:
        """Measure the policy after `step` steps on the rollouts it has just made; returns what was
        measured."""
        facts = self._drift(made)
        if self.health.settings.monitor_tasks and step % self.health.settings.monitor_every == 0:
            facts |= self._monitor()
        # TRL records no log-probs
        for warning in self.health.calls(
            {"rollouts/entropy": facts["health/entropy"], **made.facts}
        ):
            self.journal.event("drift", step=step, **warning)
        self._check(step)
        return facts

    def start_kl(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The KL of each rollout to the start, by session id, in nats."""
        return start_kl(self.start, rollouts, **self._place())

    def judge(self, made: LiveStep, *, steps: int, last: bool) -> dict[str, float]:
        """Measure the weights of a checkpoint after `steps` steps, at the end of the run on the
        monitor tasks too."""
        facts = self._drift(made)
        if last and self.health.settings.monitor_tasks:
            facts |= self._monitor()
        self._check(steps)
        return facts

    def _drift(self, made: LiveStep) -> dict[str, float]:
        student, settings = self.trainer.student, self.trainer.settings
        found = drift(
            current(student),
            self.start,
            made.rollouts,
            episodes=settings.health.kl_episodes,
            **self._place(),
        )
        self.health.kl(found.kl)
        return {"health/kl": found.kl, "health/entropy": found.entropy}

    def _place(self) -> dict[str, Any]:
        student, settings = self.trainer.student, self.trainer.settings
        return {
            "pad_id": student.pad_id,
            "max_tokens": settings.micro_tokens,
            "device": self.trainer.accelerator.device,
        }

    def _monitor(self) -> dict[str, float]:
        success = self.live.monitor(self.trainer.student.model)
        self.health.monitor(success)
        return {"health/monitor": sum(success) / len(success)}

    def _check(self, steps: int) -> None:
        """Where a rule is broken: put back the newest good checkpoint, set later ones aside, say
        so, and raise StoppedError."""
        breach = self.health.breach()
        if breach is None:
            return
        restored, folder = good_checkpoint(self.journal.run)
        load_tensors(folder, student=self.trainer.student, optimiser=self.trainer.optimiser)
        self.trainer.load_extra(load_extra(folder))
        self.trainer.accelerator.wait_for_everyone()
        aside = set_aside(self.journal.run, after=restored) if self.journal.main else []
        what = {
            "rule": breach.rule,
            "value": breach.value,
            "limit": breach.limit,
            "restored": restored,
            "set_aside": aside,
        }
        self.journal.event("restored", step=steps, **what, reason=breach.words)
        raise breach.error(step=steps, restored=restored)


def _start(trainer: Trainer) -> Reference:
    """The frozen start weights: those that score already, else a copy of their own."""
    if "preference" in trainer.references:
        return trainer.references["preference"]
    if trainer.start is not None:
        return trainer.start
    if "hint" in trainer.references and trainer.settings.hint.teacher == "frozen":
        return trainer.references["hint"]
    return frozen(trainer.student)
