"""The run that `train` works on: a new one, or what a dry run says of one that would go on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from composer_replication.cli.flags import dotted_settings
from composer_replication.cli.job import Job
from composer_replication.cli.resuming import check_resume_dry, resume_command
from composer_replication.cli.student_tokenizer import FOLDER
from composer_replication.core.config.base import stage_seed
from composer_replication.core.files import make_work
from composer_replication.core.rundir import RunDir, create_run
from composer_replication.tokens.artefact import EXAMPLES, PAIRS, Dataset


def new_run(job: Job, data: Dataset, name: str, sources: tuple[Path, ...]) -> RunDir:
    """A new run folder, with the settings, the command line that makes it again, and the hashes of its inputs."""
    make_work(job.work)
    settings = [word for key, value in dotted_settings().items() for word in (f"--{key}", value)]
    files = [word for path in job.loaded.files for word in ("-c", str(path.absolute()))]
    named = ["--name", name] if name else []
    command = shlex.join(["recompose", "train", *named, *files, "-o", str(job.work.absolute()), *settings])
    inputs = [(job.examples / EXAMPLES, len(data.examples)), (job.examples / PAIRS, len(data.pairs)), (job.examples / FOLDER, 1)]
    inputs = [*(inputs if data.meta else []), *((file, len(file.read_bytes().splitlines())) for file in sources)]
    seed = stage_seed(job.config.seed, "train")
    return create_run(job.runs, resolved=job.config.model_dump(mode="json"), command=command, seed=seed, inputs=inputs, name=name)


def finish_dry(
    job: Job, plan: dict[str, Any], data: Dataset, going_on: tuple[RunDir, int | None] | None, *, name: str, accept_changes: bool
) -> int:
    """Say what would be written; with --resume, what would be gone on from."""
    if going_on is None:
        return job.finish({"plan": plan}, wrote=[job.runs / (name or "<new run>")], next_command=job.command("train"))
    run, step = going_on
    found = check_resume_dry(job, run, step, data, accept_changes=accept_changes)
    again = resume_command(job, run.path if step is None else run.checkpoint(step), accept_changes=accept_changes)
    return job.finish({"plan": plan, "resume": found}, wrote=[run.path], next_command=again)
