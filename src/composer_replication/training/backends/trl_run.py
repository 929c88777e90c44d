"""`recompose train --backend trl`: the run's settings and environment in TRL's form, and the usual
run directory.

    result = train_with_trl(config, student=student, renderer=renderer, run=run, pairs=data.pairs)

Optimiser, learning rates, health rules, metrics.jsonl, checkpoints and events are those of
training/loop.py. TRL's checkpoints are in <run>/trl. Each gets a twin in <run>/checkpoints once it
is complete: `recompose evaluate` reads the twin, and a resume starts from the newest TRL checkpoint
that has one. Settings that TRL cannot carry out are refused, or listed in the event "backend"
(training/backends/trl_settings.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.checkpoints import (
    UNSEALED,
    damaged_error,
    find_damage,
    seal,
    whole_checkpoint,
)
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError, need
from composer_replication.core.files import sync_all
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.rollouts.envs.method_env import MethodEnv, MethodEnvs
from composer_replication.rollouts.task_source import open_world
from composer_replication.tokens.example import PreferencePair
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.trl import ComposerReplicationTrainer
from composer_replication.training.backends.trl_rollback import TrlRollback, record_failures
from composer_replication.training.backends.trl_settings import (
    WITHOUT_EFFECT,
    check_hosted,
    trl_settings,
)
from composer_replication.training.draws.identity import data_sha256
from composer_replication.training.forwards.objectives import SCALED
from composer_replication.training.forwards.training_models import TrainingModels
from composer_replication.training.loop import TrainResult
from composer_replication.training.on_policy.live import RolloutSource
from composer_replication.training.run.checkpoint import (
    check_resume,
    read_state,
    save_checkpoint,
    set_aside,
    training_settings,
)
from composer_replication.training.run.optimiser import learning_rate, make_optimiser
from composer_replication.training.run.rollback import Rollback
from composer_replication.training.run.run_logger import Listener, RunLogger
from composer_replication.training.run.state import Trainer

TRL = "trl"
"""Folder of the run that holds TRL's own checkpoints."""


def train_with_trl(
    config: Config,
    *,
    student: Student,
    renderer: Renderer,
    run: RunDir,
    pairs: Sequence[PreferencePair] = (),
    kept_kinds: frozenset[str] | None = None,
    resume: bool = False,
    resume_step: int | None = None,
    accept_changes: bool = False,
    on_step: Listener | None = None,
    on_event: Listener | None = None,
) -> TrainResult:
    """Train `student` in place with TRL's GRPOTrainer, and write the run directory.

    Raises MissingExtraError without TRL, ConfigError for a setting that it does not host,
    StoppedError if a rule of training/run/health.py is broken.
    """
    check_hosted(config, pairs=pairs)
    if not resume and run.metrics():
        raise DataError(
            "this run has taken steps already",
            where=str(run.path),
            fix="resume it, or start a new run",
        )
    identity = {
        "data_sha256": data_sha256((), pairs),
        "start_sha256": weights_sha256(student.model),
    }
    resume_point = newest_trl_checkpoint(run, resume_step) if resume else None
    state = None if resume_point is None else read_state(resume_point.twin)
    if state is not None:
        check_resume(
            state,
            run=run,
            settings=training_settings(config),
            identity=identity,
            accept_changes=accept_changes,
        )
    with open_world(config.rollouts.env, settings=config.rollouts) as task_source:
        if task_source.method_envs is None:
            raise ConfigError(
                f"the environment {task_source.name!r} has no tools as methods, which TRL needs",
                where="rollouts.env",
                fix="use train.backend = reference",
            )
        trainer, optimiser = _trainer(
            config,
            student=student,
            renderer=renderer,
            run=run,
            pairs=pairs,
            kept=kept_kinds,
            method_envs=task_source.method_envs,
        )
        run_logger = RunLogger(
            run=run,
            main=trainer.accelerator.is_main_process,
            on_step=on_step,
            on_event=on_event,
            trackers=config.train.trackers,
        )
        live = RolloutSource(
            config=config, renderer=renderer, task_source=task_source, kept_kinds=kept_kinds
        )
        trl_rollback = _trl_rollback(
            trainer,
            config=config,
            student=student,
            optimiser=optimiser,
            live=live,
            run_logger=run_logger,
        )
        if state is not None:
            trl_rollback.rollback.health.restore(state["policy_health"])
        # a library does not print
        trainer.remove_callback(need("transformers", extra="trl").PrinterCallback)
        trainer.listen(
            run_logger.step,
            lambda step, trl_examples: trl_rollback.check_rollouts(
                step, trl_examples, trainer.environments
            ),
        )
        write_twin = partial(_write_twin, trl_rollback, identity=identity)
        trainer.add_callback(_on_save(write_twin, trl_rollback, config.train.steps))
        with run_logger.attempt():
            ranks, first = (
                trainer.accelerator.num_processes,
                0 if resume_point is None else resume_point.step,
            )
            if (
                resume_step is not None
                and run_logger.main
                and (aside := set_aside(run, after=first))
            ):
                run_logger.event("resume", step=first, set_aside=aside)
            run_logger.event("start", step=first, ranks=ranks, examples=0, pairs=len(pairs))
            run_logger.event(
                "backend",
                name="trl",
                not_hosted=[f"{name}: {why}" for name, why in WITHOUT_EFFECT.items()],
            )
            if resume_point is None:
                write_twin(0, health_metrics={})
            trainer.train(
                resume_from_checkpoint=None if resume_point is None else str(resume_point.folder)
            )
    metrics = run.metrics()
    checkpoints = run.checkpoints()
    return TrainResult(
        run=run,
        steps=trainer.state.global_step,
        statuses={name: metrics[-1][f"{name}/status"] for name in CHANNELS} if metrics else {},
        metrics=metrics[-1] if metrics else {},
        checkpoint=checkpoints[-1][1] if checkpoints else None,
    )


def _longest_opening(rows: Sequence[dict[str, Any]], tokenizer: Any, tools: MethodEnv) -> int:
    """The number of tokens of the longest opening."""
    render = partial(
        tokenizer.apply_chat_template,
        tools=[getattr(tools, name) for name in tools.tool_names],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return max(len(render(row["prompt"])) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumePoint:
    """The checkpoint of TRL's that a resume starts from, and its twin."""

    step: int
    folder: Path
    twin: Path


def newest_trl_checkpoint(run: RunDir, step: int | None = None) -> _ResumePoint | None:
    """The newest of TRL's checkpoints that has a twin, or the one after `step` steps; the files of
    both are checked.

    A later checkpoint without a twin was cut off while it was written, or holds refused weights.
    Raises DamagedError like `whole_checkpoint`.
    """
    for at, twin in reversed(run.checkpoints()):
        folder = run.path / TRL / f"checkpoint-{at}"
        if folder.is_dir() and step in (None, at):
            whole_checkpoint(run, at)
            if read_state(twin)["schema"] != UNSEALED and (damage := find_damage(folder, needs=())):
                raise damaged_error(run, at, f"of {TRL}/{folder.name}, {damage}")
            return _ResumePoint(step=at, folder=folder, twin=twin)
    if step is not None:
        raise DataError(
            f"no checkpoint of TRL's after step {step}",
            where=str(run.path),
            fix="resume from another one",
        )
    return None


def _trainer(
    config: Config,
    *,
    student: Student,
    renderer: Renderer,
    run: RunDir,
    pairs: Sequence[PreferencePair],
    kept: frozenset[str] | None,
    method_envs: MethodEnvs,
) -> tuple[Any, torch.optim.Optimizer]:
    """TRL's trainer in these environments, with the optimiser and learning rates of
    training/loop.py."""
    train = config.train
    environment = partial(record_failures(method_envs.env_class), **method_envs.arguments)
    tokenizer = copy.deepcopy(student.tokenizer)
    tokenizer.chat_template = method_envs.adapt_template(tokenizer.chat_template)
    # one row per group of the run
    rows = method_envs.rows(
        stage_seed(config.seed, "trl:tasks"), train.steps * config.rollouts.groups
    )
    args = trl_settings(
        config,
        output=run.path / TRL,
        longest_prompt=_longest_opening(rows, tokenizer, environment()),
    )
    optimiser = make_optimiser(student.model, train)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: learning_rate(train, step) / train.learning_rate
    )
    trainer = ComposerReplicationTrainer(
        model=student.model,
        args=args,
        processing_class=tokenizer,
        train_dataset=need("datasets", extra="trl").Dataset.from_list(rows),
        environment_factory=environment,
        optimizers=(optimiser, rates),
        pairs=pairs if train.preference.weight else (),
        sites=config.sites,
        hints=config.hints,
        kept_kinds=kept,
        family=renderer.family.name if renderer.family is not None else "auto",
    )
    return trainer, optimiser


def _trl_rollback(
    trainer: Any,
    *,
    config: Config,
    student: Student,
    optimiser: torch.optim.Optimizer,
    live: RolloutSource,
    run_logger: RunLogger,
) -> TrlRollback:
    """The rules on the policy, fed with TRL's rollouts; made before the first step, because KL is
    measured to the start weights."""
    reference_trainer = Trainer(
        config=config,
        models=TrainingModels(
            settings=config.train,
            student=student,
            references=dict(trainer.references),
            device=trainer.accelerator.device,
        ),
        optimiser=optimiser,
        accelerator=trainer.accelerator,
        health=trainer.health,
        clip=trainer.clip,
    )
    ends = frozenset(live.renderer.codec.control.values())
    rollback = Rollback.of(reference_trainer, live=live, run_logger=run_logger)
    return TrlRollback(
        rollback=rollback,
        group_size=config.rollouts.group_size,
        end_ids=ends,
        scaled=config.train.policy.objective in SCALED,
    )


def _write_twin(
    trl_rollback: TrlRollback,
    step: int,
    *,
    identity: dict[str, str],
    health_metrics: Mapping[str, float],
) -> None:
    """Write the twin of TRL's checkpoint where the rest of the program looks for one;
    `health_metrics` were measured of these weights."""
    rollback = trl_rollback.rollback
    reference_trainer, run_logger = rollback.trainer, rollback.run_logger
    trl_folder = run_logger.run.path / TRL / f"checkpoint-{step}"
    if run_logger.main and trl_folder.is_dir():
        seal(trl_folder)
        sync_all(trl_folder)
    if run_logger.main:
        state = {
            "settings": training_settings(reference_trainer.config),
            "backend": "trl",
            "good": rollback.health.is_good,
            **identity,
            "policy_health": rollback.health.state(),
        }
        save_checkpoint(
            run_logger.run,
            step,
            student=reference_trainer.models.student,
            optimiser=reference_trainer.optimiser,
            state=state,
            keep=reference_trainer.settings.keep_checkpoints,
        )
    run_logger.event("checkpoint", step=step, good=rollback.health.is_good, **health_metrics)


def _on_save(write_twin: Callable[..., None], trl_rollback: TrlRollback, steps: int) -> Any:
    """A callback that checks the weights of each of TRL's checkpoints, then writes its twin."""
    callback = need("transformers", extra="trl").TrainerCallback

    class OnSave(callback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            health_metrics = trl_rollback.check_weights(
                state.global_step, last=state.global_step == steps
            )
            write_twin(state.global_step, health_metrics=health_metrics)

    return OnSave()
