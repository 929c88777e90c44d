"""The reference trainer's loop: draw, roll out, step, judge, save. training/step.py is the step.

A step is fed by up to four producers: live rollouts of the policy (on_policy/live.py), its own
turns at the sites of imported logs (draws/forked.py), imported examples and anchors, and imported
pairs (draws/batch_sampler.py). With live rollouts, imported examples beside anchors are drawn
only if lm_ce has a weight. The same rollouts, examples and pairs are drawn on every rank. Random
numbers are seeded from (seed, step, rank), so a resumed run repeats the killed one bit by bit on
the same CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.channel_names import CHANNELS, Status
from composer_replication.core.config.root import Config
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.rollouts.groups import Groups
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.draws.forked import ForkSource, ForkStep
from composer_replication.training.inputs import StepInputs, prepare_data
from composer_replication.training.on_policy.live import (
    LiveStep,
    RolloutSource,
    keeps_samples,
    pick_sessions,
)
from composer_replication.training.on_policy.rollout_metrics import lost_rollouts
from composer_replication.training.run.membership import ReplicaExchange
from composer_replication.training.run.run_logger import Listener, Phase
from composer_replication.training.run.step_progress import CountedPhase
from composer_replication.training.setup import TrainSetup, open_training
from composer_replication.training.step import train_step

NUM_SAMPLES = 8
"""Episodes of a step that are written to samples/."""
StepEngine = Callable[[TrainSetup], AbstractContextManager[Callable[..., Any]]]
"""Opens a backend for a run, and gives what makes each step's work (`Trainer.begin_step`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The outcome of a run: the steps taken, the last step's metrics and statuses, and the newest
    checkpoint."""

    run: RunDir
    steps: int
    statuses: dict[str, Status]
    metrics: dict[str, Any]
    checkpoint: Path | None


def train(
    config: Config,
    *,
    student: Student,
    examples: Sequence[TrainingExample] = (),
    pairs: Sequence[PreferencePair] = (),
    run: RunDir,
    live: RolloutSource | None = None,
    forked: ForkSource | None = None,
    reference: Path | None = None,
    resume: bool = False,
    resume_step: int | None = None,
    accept_changes: bool = False,
    on_step: Listener | None = None,
    on_event: Listener | None = None,
    on_progress: Callable[[Phase], None] | None = None,
    step_engine: StepEngine | None = None,
    exchange: ReplicaExchange | None = None,
) -> TrainResult:
    """Train `student` in place for config.train.steps steps and write the run directory.

    `student` holds the start weights also when resuming (they are the frozen teacher); the newest
    checkpoint is loaded here, or the one after `resume_step` steps: later ones are then set aside.
    `reference` is a folder that keeps the reference's log-probs of the pairs between runs.
    `on_progress` is called with what describes the phase that a step is in. `step_engine` opens
    what takes the optimiser steps in place of this process (training/backends/). `exchange` is
    where replicas meet (train.sync.url), e.g. diloco's ObjectStoreExchange().
    Raises StoppedError (exit code 3) if a channel stays starved or dead, or if a rule on the live
    policy is broken (the newest good weights are put back first), DataError if there is nothing to
    train on, ConfigError if an item does not fit into one forward, SyncError if the replicas of
    train.sync cannot meet, SlotTakenError (exit code 17) if another one has this one's slot.
    """
    with ExitStack() as stack:
        setup = stack.enter_context(
            open_training(
                config,
                student=student,
                data=prepare_data(config, examples=examples, pairs=pairs, live=live, forked=forked),
                run=run,
                live=live,
                forked=forked,
                reference_folder=reference,
                resume=resume,
                resume_step=resume_step,
                accept_changes=accept_changes,
                on_step=on_step,
                on_event=on_event,
                on_progress=on_progress,
                exchange=exchange,
            )
        )
        if step_engine is not None:
            setup.trainer.begin_step = stack.enter_context(step_engine(setup))
        metrics, step = setup.last_metrics, setup.first_step
        probe_end(setup, steps=step)
        while step < config.train.steps:
            metrics, step = take_step(setup, step=step)
    return train_result(run, steps=config.train.steps, metrics=metrics)


def take_step(
    setup: TrainSetup, *, step: int, sampled: Groups | None = None
) -> tuple[dict[str, Any], int]:
    """One step of the loop, with its checkpoint if one is due. `sampled` are rollouts that somebody
    else has sampled for it.

    Returns its metrics, and the number of steps that the run has taken: step + 1, or more for a
    replica that was late and goes on where the others are."""
    # 1. Draw imported examples and pairs: a function of seed and step, so nothing to save.
    examples_drawn, pairs_drawn = setup.draw(step)
    # 2. Roll out with the weights before the update: they are judged by these rollouts too.
    #    From here on, the next step's may be sampled beside the training (rollouts.overlap).
    live_step = roll_out(setup, step=step, sampled=sampled)
    fork_step = write_forks(setup, step=step)
    # 3. Step: every channel's loss on the inputs, one backward, one update.
    inputs = StepInputs.of(
        examples_drawn,
        pairs_drawn,
        live_step=live_step,
        fork_step=fork_step,
        hint_sites=setup.hint_sites,
        dataset=setup.data.examples,
    )
    _probe_before(setup, live_step, step=step)
    metrics = train_step(setup.trainer, inputs, step=step, run_logger=setup.run_logger)
    # 4. Meet the other replicas after every round of steps; who was late goes on further.
    steps = meet_replicas(setup, inputs, metrics, steps=step + 1)
    if _is_checkpoint(setup.config, before=step, steps=steps):
        # 5. Judge the new weights: the checkpoint says whether they are good.
        health_metrics = judge_weights(setup, live_step, steps=steps)
        # 6. Save.
        setup.checkpoints.save(steps, health_metrics=health_metrics)
    # 7. Only now the last table: it may take as long as steps do, and what cuts it off loses none.
    probe_end(setup, steps=steps)
    return metrics, steps


def roll_out(setup: TrainSetup, *, step: int, sampled: Groups | None = None) -> LiveStep | None:
    """The step's rollouts, looked at before anything is trained on them; None without an
    environment.

    They are sampled with the current weights, with those of the step before (rollouts.overlap), or
    with those that the server holds. Raises StoppedError if they break a rule of train.health.
    """
    rollback, run_logger, config = setup.rollback, setup.run_logger, setup.config
    if rollback is None or setup.rollouts is None:
        return None
    rollouts = config.rollouts
    stats, ended_before = rollback.live.stats, rollback.live.stats.num_ended
    run_logger.progress(
        CountedPhase(
            "rollouts played",
            total=rollouts.groups * rollouts.group_size,
            ended=lambda: stats.num_ended - ended_before,
        )
    )
    groups = setup.rollouts.take(step) if sampled is None else sampled
    live_step = rollback.live.examples(groups, step=step, kl=rollback.start_kl)
    if keeps_samples(live_step, step=step, settings=config.train):
        run_logger.samples(
            step, pick_sessions(live_step, group_size=rollouts.group_size, count=NUM_SAMPLES)
        )
    if lost := lost_rollouts(live_step.rollouts):
        run_logger.event("lost", step=step, **lost)
    run_logger.note(live_step.metrics)
    run_logger.note(rollback.check_rollouts(live_step, step=step))
    if sampled is None:
        setup.rollouts.begin(step + 1)
    return live_step


def write_forks(setup: TrainSetup, *, step: int) -> ForkStep | None:
    """The student's own messages at imported sites, and the examples of those that repeat the
    mistake; None without train.fork."""
    if setup.forked is None:
        return None
    setup.run_logger.progress(lambda: "the student writes at imported sites")
    model = setup.trainer.models.student.model
    fork_step = setup.forked.collect(model, setup.data.fork_points, step=step)
    setup.run_logger.note(fork_step.metrics)
    setup.run_logger.forks(step, fork_step.forks)
    return fork_step


def meet_replicas(
    setup: TrainSetup, inputs: StepInputs, metrics: Mapping[str, Any], *, steps: int
) -> int:
    """The number of steps that the run has taken; with other replicas it may be more than this
    one's, after a round that it missed."""
    if setup.shared is None:
        return steps
    probe = next((example.ids for example in inputs.examples), ())
    return setup.shared.after_step(steps, metrics, probe=probe)


def judge_weights(
    setup: TrainSetup, live_step: LiveStep | None, *, steps: int
) -> Mapping[str, float]:
    """The health of the weights after `steps` steps, measured on the last rollouts; {} without
    any. Raises StoppedError if they break a rule."""
    if setup.rollback is None or live_step is None:
        return {}
    return setup.rollback.check_weights(
        live_step, steps=steps, last=steps == setup.config.train.steps
    )


def _is_checkpoint(config: Config, *, before: int, steps: int) -> bool:
    """Whether a multiple of checkpoint_every, or the end, was reached after `before` steps."""
    every = config.train.checkpoint_every
    return steps // every > before // every or steps == config.train.steps


def _probe_before(setup: TrainSetup, live_step: LiveStep | None, *, step: int) -> None:
    """Write the token table of the start: imported sites at step 0, those of rollouts at the first
    step that has some."""
    probe = setup.token_probe
    if probe is None:
        return
    if live_step is not None:
        probe.choose(live_step, step=step)
    elif step == 0:
        probe.write(0)


def probe_end(setup: TrainSetup, *, steps: int) -> None:
    """Write the token table of the end, if the run has taken all its steps: after the last one, and
    in a launch that finds none left, as the one before it may have been cut off here."""
    if setup.token_probe is not None and steps == setup.config.train.steps:
        setup.token_probe.write(steps)


def train_result(run: RunDir, *, steps: int, metrics: dict[str, Any]) -> TrainResult:
    """The outcome of a run, from its folder and its last metrics."""
    checkpoints = run.checkpoints()
    statuses: dict[str, Status] = {}
    if metrics:
        statuses = {name: metrics[f"{name}/status"] for name in CHANNELS}
    return TrainResult(
        run=run,
        steps=steps,
        statuses=statuses,
        metrics=metrics,
        checkpoint=checkpoints[-1][1] if checkpoints else None,
    )
