"""`recompose train --backend trl`: the settings of a run as TRL's, the environment as TRL wants it,
the run directory as ever.

    result = train_with_trl(config, student=student, pairs=data.pairs, run=run, renderer=renderer, resume=False)

Optimiser, learning rates, health rules, metrics.jsonl, checkpoints and events are those of
training/loop.py. TRL's own checkpoints lie in <run>/trl; each gets a twin in <run>/checkpoints,
once it is whole: `recompose evaluate` reads that, and a resume starts from the newest TRL
checkpoint that has one. What TRL gives no place for is refused, or said in the event "backend"
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
from composer_replication.losses.channel import CHANNELS
from composer_replication.models.load_student import Student
from composer_replication.rollouts.envs.method_env import MethodEnv, MethodEnvs
from composer_replication.rollouts.task_source import open_world
from composer_replication.tokens.example import PreferencePair
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.trl import ComposerReplicationTrainer
from composer_replication.training.backends.trl_guard import TrlRollback, record_failures
from composer_replication.training.backends.trl_settings import SAID, check_hosted, trl_settings
from composer_replication.training.checkpoint import (
    check_resume,
    read_state,
    save_checkpoint,
    set_aside,
    training_settings,
)
from composer_replication.training.identity import data_sha256, weights_sha256
from composer_replication.training.live import RolloutSource
from composer_replication.training.loop import TrainResult
from composer_replication.training.objectives import SCALED
from composer_replication.training.optimiser import learning_rate, make_optimiser
from composer_replication.training.rollback import Rollback
from composer_replication.training.run_logger import Listener, RunLogger
from composer_replication.training.state import Trainer
from composer_replication.training.training_models import TrainingModels

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
    """Train `student` in place in its environment with TRL's GRPOTrainer and write the run directory.

    Raises MissingExtraError without TRL, ConfigError for what it does not host, StoppedError where
    a rule of training/health.py is broken.
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
    last = newest(run, resume_step) if resume else None
    state = None if last is None else read_state(last.twin)
    if state is not None:
        check_resume(
            state,
            settings=training_settings(config),
            identity=identity,
            accept_changes=accept_changes,
        )
    with open_world(config.rollouts.env) as world:
        if world.method_envs is None:
            raise ConfigError(
                f"the environment {world.name!r} has no tools as methods, which TRL needs",
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
            method_envs=world.method_envs,
        )
        run_logger = RunLogger(
            run=run, main=trainer.accelerator.is_main_process, on_step=on_step, on_event=on_event
        )
        live = RolloutSource(config=config, renderer=renderer, task_source=world, kept_kinds=kept_kinds)
        watch = _watch(
            trainer,
            config=config,
            student=student,
            optimiser=optimiser,
            live=live,
            run_logger=run_logger,
        )
        if state is not None:
            watch.rollback.health.restore(state["policy_health"])
        # a library does not print
        trainer.remove_callback(need("transformers", extra="trl").PrinterCallback)
        trainer.listen(
            run_logger.step, lambda step, made: watch.check_rollouts(step, made, trainer.environments)
        )
        keep = partial(_keep, watch, identity=identity)
        trainer.add_callback(_on_save(keep, watch, config.train.steps))
        with run_logger.attempt():
            ranks, first = trainer.accelerator.num_processes, 0 if last is None else last.step
            if (
                resume_step is not None
                and run_logger.main
                and (aside := set_aside(run, after=first))
            ):
                run_logger.event("resume", step=first, set_aside=aside)
            run_logger.event("start", step=first, ranks=ranks, examples=0, pairs=len(pairs))
            run_logger.event(
                "backend", name="trl", not_hosted=[f"{name}: {why}" for name, why in SAID.items()]
            )
            if last is None:
                keep(0, facts={})
            trainer.train(resume_from_checkpoint=None if last is None else str(last.folder))
    lines = run.metrics()
    kept_folders = run.checkpoints()
    return TrainResult(
        run=run,
        steps=trainer.state.global_step,
        statuses={name: lines[-1][f"{name}/status"] for name in CHANNELS} if lines else {},
        metrics=lines[-1] if lines else {},
        checkpoint=kept_folders[-1][1] if kept_folders else None,
    )


def _longest(rows: Sequence[dict[str, Any]], tokenizer: Any, tools: MethodEnv) -> int:
    """Tokens of the longest opening."""
    render = partial(
        tokenizer.apply_chat_template,
        tools=[getattr(tools, name) for name in tools.tool_names],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return max(len(render(row["prompt"])) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    """Where a resume starts: TRL's checkpoint, and its twin."""

    step: int
    folder: Path
    twin: Path


def newest(run: RunDir, step: int | None = None) -> _Last | None:
    """The newest of TRL's checkpoints that has a twin, or the one after `step` steps; both with
    every file checked.

    A later one without a twin was cut off while it was written, or belongs to refused weights.
    Raises DamagedError as `whole_checkpoint`.
    """
    for at, twin in reversed(run.checkpoints()):
        folder = run.path / TRL / f"checkpoint-{at}"
        if folder.is_dir() and step in (None, at):
            whole_checkpoint(run, at)
            if read_state(twin)["schema"] != UNSEALED and (found := find_damage(folder, needs=())):
                raise damaged_error(run, at, f"of {TRL}/{folder.name}, {found}")
            return _Last(step=at, folder=folder, twin=twin)
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
    """TRL's trainer in these environments, with the optimiser and the learning rates of
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
        config, output=run.path / TRL, longest_prompt=_longest(rows, tokenizer, environment())
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


def _watch(
    trainer: Any,
    *,
    config: Config,
    student: Student,
    optimiser: torch.optim.Optimizer,
    live: RolloutSource,
    run_logger: RunLogger,
) -> TrlRollback:
    """The rules on the policy, fed by TRL's rollouts; made before the first step, so that KL is
    measured from the start weights."""
    held = Trainer(
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
    rollback = Rollback.of(held, live=live, run_logger=run_logger)
    return TrlRollback(
        rollback=rollback,
        group_size=config.rollouts.group_size,
        end_ids=ends,
        scaled=config.train.policy.objective in SCALED,
    )


def _keep(watch: TrlRollback, step: int, *, identity: dict[str, str], facts: Mapping[str, float]) -> None:
    """Write a checkpoint where the rest of the program looks for one; `facts` were measured of
    these weights."""
    rollback = watch.rollback
    theirs = rollback.run_logger.run.path / TRL / f"checkpoint-{step}"
    if rollback.run_logger.main and theirs.is_dir():
        seal(theirs)
        sync_all(theirs)
    held, run_logger = rollback.trainer, rollback.run_logger
    if run_logger.main:
        state = {
            "settings": training_settings(held.config),
            "backend": "trl",
            "good": rollback.health.is_good,
            **identity,
        }
        state["policy_health"] = rollback.health.state()
        what = {
            "student": held.models.student,
            "optimiser": held.optimiser,
            "keep": held.settings.keep_checkpoints,
        }
        save_checkpoint(run_logger.run, step, state=state, **what)
    run_logger.event("checkpoint", step=step, good=rollback.health.is_good, **facts)


def _on_save(keep: Callable[..., None], watch: TrlRollback, steps: int) -> Any:
    """A callback that judges the weights of each of TRL's checkpoints, and then writes its twin."""
    callback = need("transformers", extra="trl").TrainerCallback

    class OnSave(callback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            facts = watch.check_weights(state.global_step, last=state.global_step == steps)
            keep(state.global_step, facts=facts)

    return OnSave()
