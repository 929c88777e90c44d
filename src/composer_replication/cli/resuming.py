"""Choose a run or checkpoint by name, and print how to resume after an interruption or damage.

run, step = chosen_run(job, "runs/a/checkpoints/step_000040")  # step is None for a run's name
with offer_earlier_checkpoint(job, "evaluate"):  # damaged: `recompose evaluate <earlier one>`
    ...
with explain_resume(job, run):                   # Ctrl-C, full disk: `recompose train --resume`
    ...
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from composer_replication.cli.flags import TOP_LEVEL, dotted_settings
from composer_replication.cli.job import Job
from composer_replication.cli.problems import InterruptedRunError
from composer_replication.cli.show_run import placebo_of, run_folder
from composer_replication.cli.trusting import decide
from composer_replication.core.config.load_config import load_config
from composer_replication.core.errors import (
    ConfigError,
    DamagedError,
    UntrustedError,
    UnwrittenError,
)
from composer_replication.core.rundir import RunDir, open_run
from composer_replication.report.html import plural

if TYPE_CHECKING:
    from composer_replication.evaluation.players import Player

_STEP = re.compile(r"step_(\d{6,})")


def chosen_run(job: Job, wanted: str) -> tuple[RunDir, int | None]:
    """(run, None) for a run's folder, name or "latest"; (run, steps) for a checkpoint's folder."""
    path = Path(wanted)
    if path.parent.name == "checkpoints" and (match := _STEP.fullmatch(path.name)):
        return open_run(path.parent.parent), int(match[1])
    return open_run(run_folder(job, wanted)), None


def resume_command(job: Job, path: Path, *, accept_changes: bool = False, replicas: int = 0) -> str:
    """The shortest command that resumes a run, or one of its checkpoints, with the settings of this
    call: flags that say what the settings files and defaults say anyway are left out."""
    settings = [word for key, value in _needed_flags(job) for word in (f"--{key}", value)]
    settings += ["--replicas", str(replicas)] if replicas else []
    accept = ["--accept-changes"] * accept_changes
    words = ["--resume", short_path(path), *settings, *accept]
    return f"{job.command_without_settings('train')} {shlex.join(words)}"


def _needed_flags(job: Job) -> list[tuple[str, str]]:
    """The dotted flags of this call without which its settings would be others."""
    flags = dict(dotted_settings())
    load = partial(
        load_config,
        job.common.config,
        start=Path.cwd(),
        trusted_by=partial(decide, common=job.common),
    )
    wanted = load(flags=flags).config
    for key in list(flags):
        fewer = {name: value for name, value in flags.items() if name != key}
        # without this flag a file may hold what has to be trusted first
        with suppress(ConfigError, UntrustedError):
            flags = fewer if load(flags=fewer).config == wanted else flags
    return [(key, value) for key, value in flags.items() if key not in TOP_LEVEL[1:]]


def chosen_player(
    job: Job, verb: str, wanted: str, *, name: str, arguments: str = ""
) -> tuple[RunDir, Player]:
    """A run, and its student at the chosen checkpoint; a damaged one raises DamagedError with the
    command for the one before it."""
    from composer_replication.evaluation.players import player_of

    run, step = chosen_run(job, wanted)
    with offer_earlier_checkpoint(job, verb, arguments=arguments):
        return run, player_of(run, name=name, step=step)


def print_chosen(job: Job, run: RunDir, player: Player) -> None:
    """Print which run and checkpoint was chosen, and warn if it is a placebo."""
    job.screen.line(f" run      {run.path.name}, after {plural(player.steps, 'step')}")
    if placebo := placebo_of(run):
        job.screen.line(
            f" WARNING  {run.path.name} is a placebo ({', '.join(placebo)}): it learnt from nulled"
            f" signals and is a control, no trained student. All runs: {job.command('show run')}",
            style="bold yellow",
        )


@contextmanager
def offer_earlier_checkpoint(
    job: Job, verb: str, *, arguments: str = "", accept_changes: bool = False
) -> Iterator[None]:
    """Add to the DamagedError of a checkpoint the command that uses the one before it.

    `arguments` precede the checkpoint in that command.
    """
    try:
        yield
    except DamagedError as error:
        if error.before is None:
            raise
        again = resume_command(job, error.before, accept_changes=accept_changes)
        command = (
            again
            if verb == "train"
            else f"{job.command(verb)} {arguments}{shlex.quote(short_path(error.before))}"
        )
        fix = f"the one before it is whole; to go on from there: {command}"
        raise DamagedError(error.what, where=error.where, fix=fix, before=error.before) from error


@contextmanager
def explain_resume(job: Job, run: RunDir, *, accept_changes: bool = False) -> Iterator[None]:
    """If the training in this block is cut short, raise with the newest checkpoint and the resume
    command."""
    command = resume_command(job, run.path, accept_changes=accept_changes)

    def progress() -> str:
        checkpoints, metrics = run.checkpoints(), run.metrics()
        reached = (
            f"interrupted after step {metrics[-1]['step']}"
            if metrics
            else "interrupted before the first step was done"
        )
        newest = (
            f"; the newest checkpoint is {short_path(checkpoints[-1][1])}"
            if checkpoints
            else "; there is no checkpoint yet: it begins again"
        )
        return reached + newest

    with (
        explain_end(run, progress=progress, go_on="to go on", command=command),
        offer_earlier_checkpoint(job, "train", accept_changes=accept_changes),
    ):
        yield


@contextmanager
def explain_end(
    run: RunDir, *, progress: Callable[[], str], go_on: str, command: str
) -> Iterator[None]:
    """If this block is interrupted or the disk is full, raise with how far the run came and the
    command that goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            progress(), where=short_path(run.path), fix=f"{go_on}: {command}"
        ) from error
    except UnwrittenError as error:
        raise UnwrittenError(
            error.what, where=error.where, fix=f"make room there, then: {command}"
        ) from error


def short_path(path: Path) -> str:
    """The path relative to the current folder, if it is inside it."""
    current = Path.cwd()
    return str(path.relative_to(current)) if path.is_relative_to(current) else str(path)
