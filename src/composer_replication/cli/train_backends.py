"""The backends of `train`: hand the run over, and print how it ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from composer_replication.cli.job import Job
from composer_replication.cli.next_step import after_run, held_out_sessions
from composer_replication.cli.panel import shown_steps
from composer_replication.cli.resuming import explain_resume
from composer_replication.cli.train_text import show_event
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import RunDir
from composer_replication.tokens.artefact import Dataset
from composer_replication.tokens.renderer import Renderer

if TYPE_CHECKING:
    from composer_replication.models.load_student import Student
    from composer_replication.training.loop import StepEngine, TrainResult


NOT_RESUMED = {
    "verl": "verl's optimiser states are not in a checkpoint of this package",
    "prime_rl": "prime-rl resumes by itself, from its own checkpoints",
}
"""Why some backends cannot go on with a run of this package."""


def check_resumable(backend: str) -> None:
    """Raise ConfigError if runs of this backend cannot be resumed."""
    if backend in NOT_RESUMED:
        raise ConfigError(
            NOT_RESUMED[backend],
            where="--resume",
            fix="start a new run from the run's weights (export), or use the reference trainer",
        )


def step_engine_of(config: Config) -> StepEngine | None:
    """What takes the optimiser steps in the reference trainer's loop; None = that process
    itself."""
    if config.train.backend != "verl":
        return None
    from composer_replication.training.backends.verl_run import step_engine

    return step_engine


class Launch(TypedDict):
    """Whether a run is new or resumed, and from which step."""

    resume: bool
    resume_step: int | None
    accept_changes: bool


def with_trl(
    job: Job,
    student: Student,
    data: Dataset,
    run: RunDir,
    *,
    kinds: frozenset[str] | None,
    **launch: Unpack[Launch],
) -> int:
    """Train with TRL's GRPOTrainer taking the steps."""
    from composer_replication.training.backends.trl_run import train_with_trl

    renderer = Renderer.for_tokenizer(student.tokenizer, family=job.config.student.template)
    with (
        explain_resume(job, run, accept_changes=launch["accept_changes"]),
        shown_steps(job) as on_step,
    ):
        result = train_with_trl(
            job.config,
            student=student,
            renderer=renderer,
            run=run,
            pairs=data.pairs,
            kept_kinds=kinds,
            **launch,
            on_step=on_step,
            on_event=lambda event: show_event(job, event),
        )
    return finish_run(job, result)


def with_monarch(
    job: Job,
    student: Student,
    data: Dataset,
    run: RunDir,
    *,
    kinds: frozenset[str] | None,
    **launch: Unpack[Launch],
) -> int:
    """Train in actors of Monarch: trainers, generators and environments are processes."""
    from composer_replication.models.load_student import load_student
    from composer_replication.training.backends.monarch_run import (
        shutdown_monarch,
        train_with_monarch,
    )
    from composer_replication.training.backends.monarch_workers import RunParts, TrainerLaunch

    config = job.config
    make_student = partial(
        load_student, config.student, tokenizer=student.tokenizer, seed=config.seed
    )
    try:
        with (
            explain_resume(job, run, accept_changes=launch["accept_changes"]),
            shown_steps(job) as on_step,
        ):
            result = train_with_monarch(
                RunParts.of(config, make_student=make_student),
                launch=TrainerLaunch(
                    run=run.path,
                    examples=tuple(data.examples),
                    pairs=tuple(data.pairs),
                    kept_kinds=kinds,
                    reference=job.reference,
                    **launch,
                ),
                on_step=on_step,
                on_event=lambda event: show_event(job, event),
            )
    finally:
        shutdown_monarch()
    return finish_run(job, result)


OWN_LOOPS = {"trl": with_trl, "monarch": with_monarch}
"""The backends with a loop of their own, and what runs it; the others run training/loop.py
(`step_engine_of`)."""


def finish_run(job: Job, result: TrainResult) -> int:
    """Print how a run ended and the next command; returns the exit code."""
    value: dict[str, Any] = {
        "run": str(result.run.path),
        "steps": result.steps,
        "statuses": result.statuses,
        "metrics": result.metrics,
    }
    wrote = [result.run.path, *([result.checkpoint] if result.checkpoint else [])]
    evaluation = "`recompose evaluate` plays unseen tasks, before and after"
    if not job.config.rollouts.env:
        held = held_out_sessions(job)
        evaluation = (
            "`recompose evaluate --logs` has it write at the held-out mistakes"
            if held
            else "nothing was held out (held_out.fraction)"
        )
    job.screen.line(f" a loss that falls is no evidence of learning; {evaluation}", style="dim")
    return job.finish(value, wrote=wrote, next_command=after_run(job, result.run.path.name))
