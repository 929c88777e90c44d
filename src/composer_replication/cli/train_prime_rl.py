"""`train --backend prime_rl`: the file that starts the run in prime-rl."""

from __future__ import annotations

from pathlib import Path

from composer_replication.cli.job import Job
from composer_replication.core.rundir import RunDir


def write_for_prime_rl(job: Job, run: RunDir) -> int:
    """Write prime-rl's settings file into the run, and print the line that starts it: nothing is
    trained here, because its trainer needs GPUs and a checkout of its own."""
    from composer_replication.training.backends.prime_rl_settings import launch_line, write_files

    path = write_files(job.config, folder=run.path / "prime_rl")
    line = launch_line(path.absolute())
    job.screen.line(f" prime-rl  {path}: written, not run here")
    job.screen.line("           in a checkout of prime-rl that has this package installed:")
    job.screen.line(f"           {line}")
    if Path(job.config.student.model).is_dir():
        job.screen.line(
            "           student.model is a folder, and prime-rl knows the chat templates of hub"
            " names: name its own in [orchestrator.renderer]"
        )
    if job.config.train.hint.weight or job.config.train.preference.weight:
        job.screen.line(
            "           the hint and preference channels reach it by a hook in its orchestrator:"
            " docs/backends/prime_rl.md"
        )
    return job.finish({"run": str(run.path), "launch": line}, wrote=[path], next_command=line)
