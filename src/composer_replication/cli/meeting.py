"""Where the replicas of `recompose train` meet: checked and printed before anything is loaded."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import ConfigError, need
from composer_replication.core.rundir import RunDir
from composer_replication.report.html import plural
from composer_replication.report.replicas_view import REPLICAS, replica_runs


def check_meeting(job: Job, num_replicas: int) -> None:
    """Raise ConfigError if there is no place where the replicas could meet."""
    url = job.config.train.sync.url
    if not url and not num_replicas:
        return
    meeting = f"--sync file://{(job.work / 'meeting').absolute()}, or s3://bucket/run"
    if not url:
        raise ConfigError(
            f"{num_replicas} replicas, and no place where they meet",
            where="--replicas",
            fix=f"name one: {meeting}",
        )
    from composer_replication.training.diloco.blob_store import check_url

    if check_url(url) == "memory" and num_replicas:
        raise ConfigError(
            f"{num_replicas} processes cannot meet in {url}: each has a memory of its own",
            where="train.sync.url",
            fix=f"name a place that all can reach: {meeting}",
        )
    for package in ("obstore", "zstandard"):
        need(package, extra="diloco")


def print_meeting(job: Job, num_replicas: int) -> dict[str, Any]:
    """Print where and how often the replicas meet; returns it. {} for a run that meets nobody."""
    train = job.config.train
    if not train.sync.url:
        return {}
    rounds = train.steps // train.sync.every
    who = f"{num_replicas} started here" if num_replicas else "this process is one of them"
    job.screen.line(
        f" replicas {who}; they meet at {train.sync.url} after every {train.sync.every} steps:"
        f" {plural(rounds, 'round')}"
    )
    return {"replicas": num_replicas, "meeting": train.sync.url, "rounds": rounds}


def check_resumed(run: RunDir, num_replicas: int, *, again: str) -> None:
    """Raise ConfigError if a run with replicas is resumed without them, or the other way round."""
    found = len(replica_runs(run.path)) if (run.path / REPLICAS).is_dir() else 0
    if found and not num_replicas:
        raise ConfigError(
            f"this run was started with --replicas, and has {plural(found, 'replica')}",
            where=str(run.path),
            fix=f"resume it with them: {again} --replicas {found}",
        )
    if num_replicas and not found and run.checkpoints():
        raise ConfigError(
            "this run was started without --replicas",
            where=str(run.path),
            fix=f"resume it as it was started: {again}; further replicas may join it with --sync",
        )
