"""`recompose train` in this process: load the student, make or resume the run, train.

@tell_driver()                       # whoever started this replica hears what ended it
def train_command(...):
    return train_here(job, data, make=make, resumed=None, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from composer_replication.cli.backend_check import print_check
from composer_replication.cli.job import Job
from composer_replication.cli.train_backends import OWN_LOOPS, Launch
from composer_replication.cli.train_reference import with_reference
from composer_replication.cli.train_run import print_loading, replica_home
from composer_replication.core.errors import (
    ComposerError,
    ConfigError,
    DataError,
    MissingExtraError,
    SlotTakenError,
    StoppedError,
)
from composer_replication.core.rundir import RunDir, remove_unstarted
from composer_replication.tokens.artefact import Dataset

if TYPE_CHECKING:
    from composer_replication.training.draws.forked import ForkSource

_FINAL = (ConfigError, DataError, MissingExtraError, SlotTakenError, StoppedError)
"""Errors that another attempt would meet again."""


@contextmanager
def tell_driver() -> Iterator[None]:
    """In this block the error that ends a replica is left for whoever started it, who starts it
    again unless the next attempt would meet the same error."""
    try:
        yield
    except ComposerError as error:
        from composer_replication.training.diloco.executors.done_marker import write_failure

        write_failure(error, final=isinstance(error, _FINAL))
        raise


@contextmanager
def removed_if_refused(run: RunDir) -> Iterator[None]:
    """A run that is refused in this block before it has started leaves no folder, so its name can
    be used again; a replica's is its driver's."""
    from composer_replication.training.run.ranks import join_ranks

    try:
        yield
    except ComposerError:
        if replica_home() is None and join_ranks().is_main_process:
            remove_unstarted(run)
        raise


def train_here(
    job: Job,
    data: Dataset,
    *,
    make: Callable[..., RunDir],
    resumed: tuple[RunDir, int | None] | None,
    check: bool,
    accept_changes: bool,
    forked: ForkSource | None,
    kinds: frozenset[str] | None,
    tokenizer: Any,
) -> int:
    """Load the student, and train it in this process; `make` makes a new run."""
    from composer_replication.models.load_student import load_student
    from composer_replication.training.run.ranks import shared_run

    weights = print_loading(job)
    student = load_student(job.config.student, tokenizer=tokenizer, seed=job.config.seed)
    if check:
        return print_check(job, student, data, kinds=kinds)
    run, step = (
        resumed if resumed is not None else (shared_run(lambda: make(weights=weights)), None)
    )
    launch: Launch = {
        "resume": resumed is not None,
        "resume_step": step,
        "accept_changes": accept_changes,
    }
    job.screen.line(
        f" run      {run.path}   ({student.num_trainable} of {student.num_parameters} weights are"
        " trained)"
    )
    with removed_if_refused(run):
        if train_with := OWN_LOOPS.get(job.config.train.backend):
            return train_with(job, student, data, run, kinds=kinds, **launch)
        return with_reference(
            job, student, data, run, forked=forked, kinds=kinds, tokenizer=tokenizer, **launch
        )
