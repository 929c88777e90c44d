"""Saving a run's state, and going on from it: what is in a checkpoint besides the tensors.

training/run/checkpoint.py writes and reads the files; the state of each part is put together here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.checkpoints import whole_checkpoint
from composer_replication.core.jsonl import write_json
from composer_replication.losses.total import RunningMean
from composer_replication.models.sharding import gathered
from composer_replication.training.run.checkpoint import (
    check_resume,
    check_unchanged,
    load_extra,
    load_tensors,
    optimiser_moments,
    read_state,
    remove_partial_checkpoints,
    save_checkpoint,
    set_aside,
    settings_of,
    training_settings,
)
from composer_replication.training.run.membership import Membership
from composer_replication.training.run.rollback import Rollback
from composer_replication.training.run.run_logger import RunLogger
from composer_replication.training.run.state import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManager:
    """Writes and loads the checkpoints of one launch.

    `identity` are the hashes of data, start weights and environment: a resume with others is
    refused. `rollback` holds the health of a live policy, None in a run without rollouts; `shared`
    is the membership among replicas, None in a run that trains alone.
    """

    trainer: Trainer
    run_logger: RunLogger
    identity: Mapping[str, str]
    rollback: Rollback | None = None
    shared: Membership | None = None

    def save(self, steps: int, *, health_metrics: Mapping[str, float] | None = None) -> None:
        """Write weights, optimiser, channel means and health after `steps` steps; the main rank
        writes. `health_metrics` were measured of these weights."""
        trainer = self.trainer
        is_good = {} if self.rollback is None else {"good": self.rollback.health.is_good}
        extra, whole_tensors = trainer.models.extra_tensors(), {}
        if trainer.models.sharding is not None:  # every rank takes part, the main one keeps them
            student, keep = trainer.models.student, self.run_logger.main
            whole_tensors = {
                "weights": gathered(dict(student.model.named_parameters()), keep=keep),
                "moments": gathered(optimiser_moments(student, trainer.optimiser), keep=keep),
            }
            extra = gathered(extra, keep=keep)
        if self.run_logger.main:
            clip_mean = trainer.clip.mean
            state = {
                "settings": training_settings(trainer.config),
                "means": {name: [mean.total, mean.weight] for name, mean in trainer.means.items()},
                "health": trainer.health.state(),
                **self.identity,
                **is_good,
                "clip": [clip_mean.total, clip_mean.weight],
            }
            if trainer.models.taid is not None:
                state["taid"] = trainer.models.taid.state()
            if self.shared is not None:
                state["sync"] = self.shared.state()
                extra = {**extra, **self.shared.tensors()}
            if self.rollback is not None:
                state["policy_health"] = self.rollback.health.state()
            save_checkpoint(
                self.run_logger.run,
                steps,
                student=trainer.models.student,
                optimiser=trainer.optimiser,
                state=state,
                keep=trainer.settings.keep_checkpoints,
                extra=extra,
                **whole_tensors,
            )
        self.run_logger.event("checkpoint", step=steps, **is_good, **(health_metrics or {}))
        trainer.accelerator.wait_for_everyone()

    def resume(self, steps: int | None, *, accept_changes: bool) -> int:
        """Load the newest checkpoint, or the one after `steps` steps, whose files are checked.

        Returns the number of steps it holds, 0 if the run was killed before its first checkpoint.
        """
        trainer, run_logger = self.trainer, self.run_logger
        if run_logger.main:
            remove_partial_checkpoints(run_logger.run, keep=trainer.settings.keep_checkpoints)
        if steps is None and not run_logger.run.checkpoints():
            changed = check_unchanged(
                settings_of(run_logger.run),
                training_settings(trainer.config),
                run=run_logger.run,
                accept_changes=accept_changes,
            )
            self._keep_settings(changed)
            return 0
        steps_taken, folder = whole_checkpoint(run_logger.run, steps)
        state = read_state(folder)
        changed = check_resume(
            state,
            run=run_logger.run,
            settings=training_settings(trainer.config),
            identity=self.identity,
            accept_changes=accept_changes,
        )
        load_tensors(folder, student=trainer.models.student, optimiser=trainer.optimiser)
        extra = load_extra(folder)
        trainer.models.load_extra_tensors(extra)
        if self.shared is not None:
            self.shared.restore(state.get("sync", {}), extra)
        trainer.means.update({name: RunningMean(*state["means"][name]) for name in CHANNELS})
        trainer.clip.mean = RunningMean(*state["clip"])
        trainer.health.restore(state["health"])
        if trainer.models.taid is not None:
            trainer.models.taid.restore(state["taid"])
        if self.rollback is not None:
            self.rollback.health.restore(state["policy_health"])
        self._keep_settings(changed)
        # no rank may still read the later checkpoints when they are renamed
        trainer.accelerator.wait_for_everyone()
        aside: list[str] = []
        if run_logger.main and steps is not None:
            aside = set_aside(run_logger.run, after=steps_taken)
        run_logger.event(
            "resume",
            step=steps_taken,
            changed=changed,
            **({"set_aside": aside} if aside else {}),
        )
        return steps_taken

    def _keep_settings(self, changed: Sequence[str]) -> None:
        """Write the run's settings again if some changed."""
        if changed and self.run_logger.main:
            write_json(
                self.run_logger.run.resolved_json, self.trainer.config.model_dump(mode="json")
            )
