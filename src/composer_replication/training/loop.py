"""The reference trainer: which examples and pairs each step gets, what is written down, when it stops. training/step.py is the step.

The same examples and pairs are drawn on every rank. Random numbers are seeded from (seed, step, rank), so a resumed run repeats the
killed one bit by bit on the same CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir
from composer_replication.losses.channel import CHANNELS, Status
from composer_replication.losses.total import RunningMean
from composer_replication.models.load import Student
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.checkpoint import check_resume, load_extra, load_tensors, read_state, save_checkpoint, training_settings
from composer_replication.training.identity import data_sha256, weights_sha256
from composer_replication.training.journal import Journal
from composer_replication.training.plan import check_plan
from composer_replication.training.reference import live
from composer_replication.training.sampler import Sampler
from composer_replication.training.state import Trainer, make_trainer
from composer_replication.training.step import train_step
from composer_replication.training.watch import token_table, watched


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended: steps taken, the last step's line and statuses, and the newest checkpoint."""

    run: RunDir
    steps: int
    statuses: dict[str, Status]
    metrics: dict[str, Any]
    checkpoint: Path | None


def train(
    config: Config,
    *,
    student: Student,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair] = (),
    run: RunDir,
    resume: bool = False,
    accept_changes: bool = False,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> TrainResult:
    """Train `student` in place for config.train.steps steps and write the run directory.

    `student` holds the start weights also when resuming (they are the frozen teacher); the newest checkpoint is loaded here.
    Raises StoppedError (exit code 3) where a channel stays starved or dead, DataError where there is nothing to train on,
    ConfigError where an item does not fit into one forward.
    """
    if not examples and not pairs:
        raise DataError("no examples and no pairs: nothing to train on", fix="run `recompose build` and look at what it counts")
    check_plan(config.train, examples=examples, pairs=pairs)
    if not resume and run.metrics():
        raise DataError("this run has taken steps already", where=str(run.path), fix="resume it, or start a new run")
    accelerator, settings = Accelerator(), config.train
    trainer = make_trainer(config, student=student, accelerator=accelerator)
    sampler = Sampler(examples=examples, pairs=pairs, batch_examples=settings.batch_examples, seed=stage_seed(config.seed, "sampler"))
    identity = {"data_sha256": data_sha256(examples, pairs), "start_sha256": weights_sha256(student.model)}
    sites = watched(examples) if trainer.weights["hint"] else []
    journal = Journal(run=run, main=accelerator.is_main_process, on_step=on_step, on_event=on_event)
    with journal.attempt():
        first = _resume(trainer, journal, identity, accept_changes=accept_changes) if resume else 0
        journal.event("start", step=first, ranks=accelerator.num_processes, examples=len(examples), pairs=len(pairs))
        line: dict[str, Any] = (run.metrics() or [{}])[-1] if first else {}
        for step in range(first, settings.steps):
            if step == 0 and sites:
                journal.tokens(0, _watch(trainer, sites))
            line = train_step(trainer, *sampler.step(step), step=step, journal=journal)
            if step + 1 == settings.steps and sites:
                journal.tokens(step + 1, _watch(trainer, sites))
            if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
                _checkpoint(trainer, journal, step + 1, identity)
    kept = run.checkpoints()
    statuses: dict[str, Status] = {name: line[f"{name}/status"] for name in CHANNELS} if line else {}
    return TrainResult(run=run, steps=settings.steps, statuses=statuses, metrics=line, checkpoint=kept[-1][1] if kept else None)


def _checkpoint(trainer: Trainer, journal: Journal, step: int, identity: Mapping[str, str]) -> None:
    """Weights, optimiser, channel means and health after `step` steps; the main rank writes."""
    if journal.main:
        means = {name: [mean.total, mean.weight] for name, mean in trainer.means.items()}
        state = {"settings": training_settings(trainer.config), "means": means, "health": trainer.health.state(), **identity}
        keep = trainer.settings.keep_checkpoints
        what = {"student": trainer.student, "optimiser": trainer.optimiser, "extra": trainer.extra_tensors()}
        save_checkpoint(journal.run, step, state=state, keep=keep, **what)
    journal.event("checkpoint", step=step)
    trainer.accelerator.wait_for_everyone()


def _resume(trainer: Trainer, journal: Journal, identity: Mapping[str, str], *, accept_changes: bool) -> int:
    """Load the newest checkpoint; returns the number of steps it holds, 0 where the run was killed before its first."""
    if not (kept := journal.run.checkpoints()):
        return 0
    step, folder = kept[-1]
    state = read_state(folder)
    changed = check_resume(state, settings=training_settings(trainer.config), identity=identity, accept_changes=accept_changes)
    load_tensors(folder, student=trainer.student, optimiser=trainer.optimiser)
    trainer.load_extra(load_extra(folder))
    trainer.means.update({name: RunningMean(*state["means"][name]) for name in CHANNELS})
    trainer.health.restore(state["health"])
    if changed and journal.main:
        write_json(journal.run.resolved_json, trainer.config.model_dump(mode="json"))
    journal.event("resume", step=step, changed=changed)
    return step


def _watch(trainer: Trainer, sites: list[TrainingExample]) -> list[dict[str, Any]]:
    """Per-token log-probs of the watched sites, now."""
    place = {"pad_id": trainer.student.pad_id, "max_tokens": trainer.settings.micro_tokens, "device": trainer.accelerator.device}
    how, tokenizer = trainer.settings.hint, trainer.student.tokenizer
    return token_table(sites, student=live(trainer.student), teacher=trainer.references["hint"], how=how, tokenizer=tokenizer, **place)
