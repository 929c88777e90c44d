"""The run of `train`: make a new one or check one to resume, and print it, in a dry run too."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.cli.flags import dotted_settings
from composer_replication.cli.job import Job
from composer_replication.cli.resume_checks import check_resume_dry
from composer_replication.cli.resuming import (
    chosen_run,
    resume_command,
    short_path,
)
from composer_replication.cli.student_tokenizer import FOLDER
from composer_replication.core.errors import ConfigError
from composer_replication.core.files import make_work
from composer_replication.core.lock import check_free
from composer_replication.core.rundir import LAUNCH, RunDir, create_run, open_run
from composer_replication.models.adapter_folder import base_model
from composer_replication.models.gguf_file import describe_gguf
from composer_replication.report.html import plural
from composer_replication.report.replicas_view import REPLICAS, replica_runs, rounds_of
from composer_replication.tokens.artefact import EXAMPLES, PAIRS, Dataset

REPLICA_HOME = "RECOMPOSE_REPLICA_HOME"
"""The variable with which --replicas gives a replica its run folder."""


def replica_home() -> Path | None:
    """The run folder of this process if it is a replica that --replicas started."""
    return Path(os.environ[REPLICA_HOME]) if REPLICA_HOME in os.environ else None


def replica_run() -> tuple[RunDir, None] | None:
    """That run if an earlier launch has made it: a replica that was killed goes on by itself."""
    home = replica_home()
    return (open_run(home), None) if home is not None and (home / "run.json").exists() else None


def new_run(
    job: Job, data: Dataset, name: str, sources: tuple[Path, ...], *, weights: str
) -> RunDir:
    """Make a run folder with the settings, the command line and the hashes of its inputs.

    `weights` says where the student's weights come from, e.g. "Q4_1, de-quantised to float32".
    """
    make_work(job.work)
    runs, name = (job.runs, name) if (home := replica_home()) is None else (home.parent, home.name)
    settings = [word for key, value in dotted_settings().items() for word in (f"--{key}", value)]
    files = [word for path in job.loaded.files for word in ("-c", str(path.absolute()))]
    named = ["--name", name] if name else []
    command = shlex.join(
        ["recompose", "train", *named, *files, "-o", str(job.work.absolute()), *settings]
    )
    inputs = [
        (job.examples / EXAMPLES, len(data.examples)),
        (job.examples / PAIRS, len(data.pairs)),
        (job.examples / FOLDER, 1),
    ]
    inputs = [
        *(inputs if data.meta else []),
        *((file, len(file.read_bytes().splitlines())) for file in sources),
    ]
    return create_run(
        runs,
        resolved=job.config.model_dump(mode="json"),
        command=command,
        seed=job.config.seed,
        inputs=inputs,
        name=name,
        about={"weights": weights} if weights else {},
    )


def finish_dry(
    job: Job,
    plan: dict[str, Any],
    data: Dataset,
    resumed: tuple[RunDir, int | None] | None,
    *,
    name: str,
    accept_changes: bool,
    replicas: int = 0,
) -> int:
    """End a dry run: print what would be written or, with --resume, resumed."""
    if resumed is None:
        return job.finish(
            {"plan": plan},
            wrote=[job.runs / (name or "<new run>")],
            next_command=job.command("train", f"--replicas {replicas}" * bool(replicas)),
        )
    run, step = resumed
    checked = check_resume_dry(job, run, step, data, accept_changes=accept_changes)
    again = resume_command(
        job,
        run.path if step is None else run.checkpoint(step),
        accept_changes=accept_changes,
        replicas=replicas,
    )
    return job.finish({"plan": plan, "resume": checked}, wrote=[run.path], next_command=again)


def run_to_resume(job: Job, resume: str) -> tuple[RunDir, int | None] | None:
    """The run to go on with and its step; None for a new run."""
    return chosen_run(job, resume) if resume else replica_run()


def print_loading(job: Job) -> str:
    """Print which student is loaded; returns where its weights come from, "" if they are as saved,
    e.g. "Q4_1, de-quantised to float32"."""
    settings = job.config.student
    weights = describe_gguf(base_model(settings), dtype=settings.dtype)
    source = f" ({weights})" if weights else ""
    job.screen.line(f" loading  the student {settings.model}{source}", style="dim")
    return weights


def print_resume(job: Job, run: RunDir, step: int | None) -> None:
    """Print which run is resumed and from where; raises BusyError if a process works on it."""
    check_free(run.path, task=LAUNCH)
    checkpoints = [pair for pair in run.checkpoints() if step in (None, pair[0])]
    _check_left(job, run, checkpoints)
    if (run.path / REPLICAS).is_dir():
        rounds = rounds_of(replica_runs(run.path))
        newest = f"after round {max(rounds)}" if rounds else "from the first round"
        job.screen.line(f" resume   {short_path(run.path)}   the replicas continue {newest}")
        return
    start = (
        f"from {checkpoints[-1][1].name}, {checkpoints[-1][0]} of {job.config.train.steps} steps"
        if checkpoints
        else "no checkpoint yet: from the first step"
    )
    later = ", ".join(path.name for at, path in run.checkpoints() if step is not None and at > step)
    set_aside = f"; set aside: {later}" if later else ""
    job.screen.line(f" resume   {short_path(run.path)}   {start}{set_aside}")


def _check_left(job: Job, run: RunDir, checkpoints: Sequence[tuple[int, Path]]) -> None:
    """Raise ConfigError if no step is left.

    A run that was cut short after its last step, before it was done, may still be finished.
    """
    steps = job.config.train.steps
    if (
        not checkpoints
        or checkpoints[-1][0] < steps
        or (checkpoints[-1][0] == steps and run.info().get("state") != "done")
    ):
        return
    steps_done, path = checkpoints[-1]
    evaluate = f"{job.command('evaluate')} {shlex.quote(short_path(path))}"
    fix = (
        f"to go on, set train.steps above {steps_done}: --train.steps N --accept-changes; to judge"
        f" it as it is: {evaluate}"
    )
    raise ConfigError(
        f"nothing is left to train: {path.name} has {plural(steps_done, 'step')}, train.steps is"
        f" {steps}",
        where=short_path(run.path),
        fix=fix,
    )
