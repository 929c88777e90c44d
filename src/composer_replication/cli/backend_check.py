"""`train --check`: one step of the backend beside the reference trainer's, printed per scenario."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from composer_replication.cli.job import Job
from composer_replication.core.errors import StoppedError
from composer_replication.tokens.artefact import Dataset

if TYPE_CHECKING:
    from composer_replication.models.load_student import Student


def print_check(job: Job, student: Student, data: Dataset, *, kinds: frozenset[str] | None) -> int:
    """Print the loss and the gradient norm of each scenario beside the reference trainer's; returns
    the exit code. Writes nothing.

    Raises StoppedError (exit code 3) if they differ by more than the tolerance.
    """
    from composer_replication.rollouts.task_source import open_world
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.training.backends.step_check import (
        TOLERANCE,
        check_inputs,
        check_steps,
        registered_steps,
    )
    from composer_replication.training.inputs import prepare_data
    from composer_replication.training.on_policy.live import RolloutSource

    # the comparison is of a step's gradients: what a run does between steps is left out
    train = job.config.train.model_copy(update={"fork": False})
    config = job.config.model_copy(update={"train": train})
    open_steps = registered_steps(train.backend)
    with ExitStack() as stack:
        live = None
        if config.rollouts.env:
            renderer = Renderer.for_tokenizer(student.tokenizer, family=config.student.template)
            world = stack.enter_context(open_world(config.rollouts.env, settings=config.rollouts))
            live = RolloutSource(
                config=config, renderer=renderer, task_source=world, kept_kinds=kinds
            )
        prepared = prepare_data(
            config, examples=data.examples, pairs=data.pairs, live=live, forked=None
        )
        inputs = check_inputs(config, student=student, data=prepared, live=live)
        comparisons = check_steps(config, student=student, inputs=inputs, open_steps=open_steps)
    for comparison in comparisons:
        job.screen.line(f" {comparison.text()}")
    value = {
        "tolerance": TOLERANCE,
        "scenarios": [
            {
                "channels": list(comparison.channels),
                "passes": comparison.passes,
                "grad_norm": [comparison.reference.grad_norm, comparison.backend.grad_norm],
                "differences": comparison.differences,
            }
            for comparison in comparisons
        ],
    }
    if failed := [comparison for comparison in comparisons if not comparison.passes]:
        channels = " + ".join(failed[0].channels)
        raise StoppedError(
            f"{train.backend} is not shown to compute the reference trainer's step:"
            f" {failed[0].verdict}, {channels}",
            where="--check",
            fix=(
                "the student in float32, and a batch that feeds each channel (rollouts.groups,"
                " train.batch_examples); if it still differs, do not train with it"
            ),
        )
    return job.finish(
        value, wrote=[], next_command=job.command("train", f"--train.backend {train.backend}")
    )
