"""`recompose train --replicas N`: N replicas as processes of this machine, one run folder.

    runs/2026-11-20-a/                 the run: metrics and last checkpoint of one that finished
      replicas/0/ .. 3/                each replica's own run directory
      replicas/jobs/                   logs and exit codes of the processes

A replica that dies is started again in its own slot; the others go on without it meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from composer_replication.cli.flags import dotted_settings
from composer_replication.cli.job import Job
from composer_replication.cli.replica_rounds import RoundWatcher
from composer_replication.cli.resuming import explain_end, resume_command, short_path
from composer_replication.cli.train_backends import finish_run
from composer_replication.cli.train_run import REPLICA_HOME
from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.errors import (
    ReplicaError,
    StoppedError,
)
from composer_replication.core.files import make_folder
from composer_replication.core.rundir import RunDir
from composer_replication.report.replicas_view import REPLICAS, replica_runs, rounds_of

if TYPE_CHECKING:
    from composer_replication.training.diloco.executors.jobs import ReplicaJob
    from composer_replication.training.loop import TrainResult

ATTEMPTS = 3
"""How often a replica is started before it counts as failed."""
_WAIT_S = 365 * 86_400.0
_KEPT = ("metrics.jsonl", "tokens", "samples", "forks")


def train_replicas(
    job: Job,
    num_replicas: int,
    *,
    make: Callable[[], RunDir],
    resumed: tuple[RunDir, int | None] | None,
) -> int:
    """Start the replicas of a new or resumed run, and wait for them; returns the exit code.

    Raises ReplicaError if none of them finishes, StoppedError if a health rule stopped them all.
    """
    from composer_replication.training.diloco.executors.local_jobs import LocalProcesses
    from composer_replication.training.diloco.executors.replica_group import ReplicaGroup

    run = make() if resumed is None else resumed[0]
    folder = run.path / REPLICAS
    make_folder(folder)
    logs = folder / "jobs"
    job.screen.line(f" run      {short_path(run.path)}   their output: {short_path(logs)}")
    finished = {
        slot
        for slot, replica in replica_runs(run.path).items()
        if replica.info()["state"] == "done"
    }
    watcher = RoundWatcher(job, run)
    executor = LocalProcesses(logs)
    group = ReplicaGroup(executor, max_attempts=ATTEMPTS, on_restart=watcher.print_restart)
    running: set[int] = set()
    for replica, handle in executor.running():  # they outlived the launch that started them
        group.adopt(replica, handle)
        running.add(replica.slot)
        job.screen.line(
            f" note     replica {replica.slot} is still running from the previous launch"
        )
    explained = explain_end(
        run,
        progress=lambda: _progress(run),
        go_on="to go on from the newest round",
        command=resume_command(job, run.path, replicas=num_replicas),
    )
    with explained, run.attempt(), watcher:
        try:
            group.launch(
                _replica_job(job, run, slot, num_replicas=num_replicas)
                for slot in range(num_replicas)
                if slot not in finished | running
            )
            finished |= set(group.collect(timeout_s=_WAIT_S))
        except ReplicaError as error:
            finished |= set(error.results)
            if not finished:
                if {s.exit_code for s in group.poll().values()} == {StoppedError.exit_code}:
                    raise StoppedError(error.what, where=short_path(run.path)) from error
                raise
            job.screen.line(f" WARNING  {error.what}", style="bold red")
        finally:
            group.cancel()
        result = _collect(job, run, min(finished))
    return finish_run(job, result)


def _progress(run: RunDir) -> str:
    """How far interrupted replicas came."""
    rounds = rounds_of(replica_runs(run.path))
    reached = f"after round {max(rounds)}" if rounds else "before the first round was over"
    return f"the replicas were interrupted {reached}"


def _replica_job(job: Job, run: RunDir, slot: int, *, num_replicas: int) -> ReplicaJob:
    """This call's own command, for one slot."""
    from composer_replication.training.diloco.executors.jobs import ReplicaJob

    settings = {
        **dotted_settings(),
        "train.sync.url": job.config.train.sync.url,
        "train.sync.slot": str(slot),
        "train.sync.replicas": str(num_replicas),
    }
    files = [word for path in job.loaded.files for word in ("-c", str(path.absolute()))]
    trust = ["--trust-settings"] * job.common.trust_settings
    argv = (
        *(sys.executable, "-m", "composer_replication.cli", "train", *files, *trust),
        *("-o", str(job.work.absolute())),
        *(word for key, value in settings.items() for word in (f"--{key}", value)),
    )
    folder = (run.path / REPLICAS).absolute()
    env = {REPLICA_HOME: str(folder / str(slot)), **_share_of_machine(slot, num_replicas)}
    return ReplicaJob(argv=argv, slot=slot, results=f"file://{folder}", env=env, timeout_s=_WAIT_S)


def _share_of_machine(slot: int, num_replicas: int) -> dict[str, str]:
    """The variables that give a replica its GPU and its share of the cores, if nothing is set."""
    import torch

    env: dict[str, str] = {}
    if "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // num_replicas))
    if "CUDA_VISIBLE_DEVICES" not in os.environ and torch.cuda.device_count() > 1:
        env["CUDA_VISIBLE_DEVICES"] = str(slot % torch.cuda.device_count())
    return env


def _collect(job: Job, run: RunDir, slot: int) -> TrainResult:
    """Put what a finished replica has learned into the run: all hold the same weights."""
    from composer_replication.training.loop import TrainResult

    source = RunDir(run.path / REPLICAS / str(slot))
    for name in _KEPT:
        _copy(source.path / name, run.path / name)
    steps, newest = source.checkpoints()[-1]
    _copy(newest, run.checkpoint(steps))
    run.add_event("collected", replica=slot, step=steps)
    metrics = run.metrics()[-1] if run.metrics() else {}
    statuses = {name: metrics[f"{name}/status"] for name in CHANNELS if metrics}
    return TrainResult(
        run=run, steps=steps, statuses=statuses, metrics=metrics, checkpoint=run.checkpoint(steps)
    )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        shutil.copy2(source, target)
