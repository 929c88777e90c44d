"""The guide's executors, fronts of the ones here: a function per replica instead of a command line.

    executor = LocalProcessExecutor()                      # or ModalExecutor(gpu="A100")
    handles = executor.launch_replicas(
        n_replicas=4, entrypoint="my_package.train_replica", entrypoint_args={"rendezvous_uri": uri}
    )
    results = executor.collect(handles, timeout=600)       # what each returned, by rank

A replica finds its number in REPLICA_RANK and the number of all in REPLICA_WORLD_SIZE. The first
failure ends `collect`: replicas of a fixed world wait for each other.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.executors.hf_jobs import HfJobs
from composer_replication.training.diloco.executors.jobs import Executor, JobStatus, ReplicaJob
from composer_replication.training.diloco.executors.local_jobs import LocalProcesses
from composer_replication.training.diloco.executors.modal_jobs import ModalSandboxes
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup

SHARED = "RECOMPOSE_SHARED"
"""The variable that names a folder which the driver and all jobs mount at the same path."""
_RUN = "composer_replication.training.diloco.executors.run_entrypoint"


@dataclass(frozen=True, slots=True)
class ReplicaHandle:
    """One launched replica: its rank, its job and the executor's text for it."""

    rank: int
    job: ReplicaJob
    text: str


class ServerlessExecutor:
    """What the guide's executors share, around any executor of this package."""

    def __init__(
        self,
        executor: Executor,
        *,
        python: str = "python",
        image: str = "",
        hardware: str = "",
        results_uri: str = "",
    ) -> None:
        """`results_uri`: where replicas put their results; default: the rendezvous_uri of the
        arguments, a temporary folder for local processes."""
        self.executor, self._python, self._results = executor, python, results_uri
        self._image, self._hardware = image, hardware

    def launch_replicas(
        self,
        n_replicas: int,
        entrypoint: str,
        entrypoint_args: Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> list[ReplicaHandle]:
        """Start `n_replicas` processes that call `entrypoint(**entrypoint_args)`."""
        if n_replicas < 1:
            raise ConfigError(f"n_replicas = {n_replicas}", fix="start one or more")
        keywords = dict(entrypoint_args or {})
        variables = {"REPLICA_WORLD_SIZE": str(n_replicas), **(env or {})}
        ranks = ("REPLICA_RANK", str(keywords.get("rank_env", "REPLICA_RANK")))
        argv = (self._python, "-m", _RUN, entrypoint, json.dumps(keywords))
        jobs = [
            ReplicaJob(
                argv=argv,
                slot=rank,
                results=self._results_uri(keywords),
                env={**variables, **dict.fromkeys(ranks, str(rank))},
                secrets=secrets or {},
                image=self._image,
                hardware=self._hardware,
            )
            for rank in range(n_replicas)
        ]
        group = ReplicaGroup(self.executor)
        group.launch(jobs)
        handles = group.handles()
        return [ReplicaHandle(job.slot, job, handles[job.slot]) for job in jobs]

    def poll(self, handle: ReplicaHandle) -> JobStatus:
        """What the provider says about one replica."""
        return self.executor.poll(handle.text)

    def logs(self, handle: ReplicaHandle) -> str:
        """What one replica has printed."""
        return self.executor.logs(handle.text)

    def cancel(self, handles: Sequence[ReplicaHandle]) -> None:
        """Stop the replicas that still run."""
        for handle in handles:
            self.executor.cancel(handle.text)

    def collect(self, handles: Sequence[ReplicaHandle], timeout: float = 3600.0) -> list[Any]:
        """What each replica returned, by rank; raises ReplicaError if one failed, and cancels the
        rest then or after `timeout` seconds."""
        group = ReplicaGroup(self.executor)
        for handle in handles:
            group.adopt(handle.job, handle.text)
        try:
            results = group.collect(timeout_s=timeout, fail_fast=True)
        except BaseException:
            group.cancel()
            raise
        return [dict(results[handle.rank]) for handle in handles]

    def _results_uri(self, keywords: Mapping[str, Any]) -> str:
        uri = self._results or str(keywords.get("rendezvous_uri", ""))
        if uri:
            return uri
        if isinstance(self.executor, LocalProcesses):
            return tempfile.mkdtemp(prefix="recompose-results-")
        raise ConfigError(
            "the replicas have no place for their results",
            where="results_uri",
            fix='give ...Executor(results_uri="s3://bucket/run") or a rendezvous_uri',
        )


class LocalProcessExecutor(ServerlessExecutor):
    """Replicas as processes of this machine."""

    def __init__(self, *, results_uri: str = "") -> None:
        super().__init__(LocalProcesses(), python=sys.executable, results_uri=results_uri)


class ModalExecutor(ServerlessExecutor):
    """Replicas as Modal sandboxes; an `image` "modal:python3.11" is Modal's own."""

    def __init__(
        self,
        image: Any = "",
        gpu: str = "",
        *,
        app: str = "recompose",
        results_uri: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        name = image if isinstance(image, str) else ""
        sandboxes = ModalSandboxes(
            app=app,
            shared=os.environ.get(SHARED, ""),
            image=None if isinstance(image, str) else image,
            options=options,
        )
        super().__init__(sandboxes, image=name, hardware=gpu, results_uri=results_uri)


class HFJobsExecutor(ServerlessExecutor):
    """Replicas as jobs of the Hugging Face Hub; `hardware` is a flavor."""

    def __init__(
        self,
        hardware: str = "",
        *,
        image: str = "",
        results_uri: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        jobs = HfJobs(shared=os.environ.get(SHARED, ""), options=options)
        super().__init__(jobs, image=image, hardware=hardware, results_uri=results_uri)
