"""Train with the reference loop: rollouts, forks and, with train.sync, other replicas."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Unpack

from composer_replication.cli.job import Job
from composer_replication.cli.panel import shown_steps
from composer_replication.cli.resuming import explain_resume
from composer_replication.cli.student_tokenizer import student_renderer
from composer_replication.cli.train_backends import Launch, finish_run, step_engine_of
from composer_replication.cli.train_text import show_event
from composer_replication.core.config.root import Config
from composer_replication.core.errors import need
from composer_replication.core.rundir import RunDir
from composer_replication.tokens.artefact import Dataset

if TYPE_CHECKING:
    from composer_replication.models.load_student import Student
    from composer_replication.training.draws.forked import ForkSource
    from composer_replication.training.on_policy.live import RolloutSource
    from composer_replication.training.run.membership import ReplicaExchange


def with_reference(
    job: Job,
    student: Student,
    data: Dataset,
    run: RunDir,
    *,
    forked: ForkSource | None,
    kinds: frozenset[str] | None,
    tokenizer: Any,
    **launch: Unpack[Launch],
) -> int:
    """Train with the reference loop; returns the exit code."""
    from composer_replication.rollouts.task_history import TaskHistory
    from composer_replication.rollouts.task_source import open_world
    from composer_replication.training.diloco.executors.done_marker import write_done
    from composer_replication.training.loop import train as run_training
    from composer_replication.training.on_policy.live import RolloutSource

    config = job.config
    accept_changes = launch["accept_changes"]
    with explain_resume(job, run, accept_changes=accept_changes), ExitStack() as stack:
        producer: RolloutSource | None = None
        if config.rollouts.env:
            renderer = student_renderer(tokenizer, config)
            world = stack.enter_context(open_world(config.rollouts.env, settings=config.rollouts))
            producer = RolloutSource(
                config=config,
                renderer=renderer,
                task_source=world,
                kept_kinds=kinds,
                history=TaskHistory(run.curriculum_jsonl),
            )
        shown = stack.enter_context(shown_steps(job))

        def on_event(event: Mapping[str, Any]) -> None:
            show_event(job, event)
            if event["kind"] in ("resume", "joined", "sync"):
                shown.go_on_from(event["step"])

        result = run_training(
            config,
            student=student,
            examples=data.examples,
            pairs=data.pairs,
            run=run,
            live=producer,
            forked=forked,
            reference=job.reference,
            **launch,
            on_step=shown,
            on_event=on_event,
            on_progress=shown.progress,
            step_engine=step_engine_of(config),
            exchange=open_exchange(config),
        )
    write_done({"run": str(result.run.path), "steps": result.steps})
    return finish_run(job, result)


def open_exchange(config: Config) -> ReplicaExchange | None:
    """The store through which the run syncs; None without train.sync.url."""
    if not config.train.sync.url:
        return None
    for package in ("obstore", "zstandard"):
        need(package, extra="diloco")
    from composer_replication.training.diloco.shared_training import ObjectStoreExchange

    return ObjectStoreExchange()
