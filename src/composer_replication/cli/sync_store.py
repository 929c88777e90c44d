"""The store through which the replicas of `recompose train` sync: checked first of all."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import ConfigError, need
from composer_replication.core.rundir import RunDir
from composer_replication.report.html import plural
from composer_replication.report.replicas_view import REPLICAS, replica_runs


def check_sync_store(job: Job, num_replicas: int) -> None:
    """Raise ConfigError if there is no store through which the replicas can sync."""
    url = job.config.train.sync.url
    if not url and not num_replicas:
        return
    example = f"--sync file://{(job.work / 'sync').absolute()}, or s3://bucket/run"
    if not url:
        raise ConfigError(
            f"{num_replicas} replicas, but no store through which they sync",
            where="--replicas",
            fix=f"name one: {example}",
        )
    from composer_replication.training.diloco.blob_store import check_url

    if check_url(url) == "memory" and num_replicas:
        raise ConfigError(
            f"{num_replicas} processes cannot sync through {url}: they share no memory",
            where="train.sync.url",
            fix=f"name a store that all of them can reach: {example}",
        )
    for package in ("obstore", "zstandard"):
        need(package, extra="diloco")


def print_sync_plan(job: Job, num_replicas: int) -> dict[str, Any]:
    """Print and return where and how often the replicas sync; {} for a run without replicas."""
    train = job.config.train
    if not train.sync.url:
        return {}
    rounds = train.steps // train.sync.every
    who = f"{num_replicas} started here" if num_replicas else "this process is one of them"
    job.screen.line(
        f" replicas {who}; they sync through {train.sync.url} every {train.sync.every} steps:"
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
