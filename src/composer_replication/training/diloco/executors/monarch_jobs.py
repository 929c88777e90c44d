"""Replicas as processes of machines that run Monarch's workers (torchmonarch 0.7).

    with MonarchHosts(["tcp://node1:26600", "tcp://node2:26600"], shared="/mnt/run") as executor:
        handle = executor.launch(job)      # "tcp://node1:26600 /tmp/recompose-.../0.5f0c..."

One actor per machine starts and watches its jobs, by local_jobs.py; slots go round the machines.
Without addresses the machine is this one. A job leads a process group of its own, so it outlives
the actor and the driver; a later driver sends an actor of its own, which reads the job's folder.
`job.hardware` names the job's cards ("0" or "0,1"; "" is all), `job.image` is ignored. What is sent
to a tcp:// worker, secrets too, is not encrypted: the network has to be yours.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ConfigError, ReplicaError, first_line
from composer_replication.training.backends.monarch_process import monarch, prepare_process
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    require_shared,
)

HERE = "here"
"""The address of this machine in a handle."""
_ANSWER_S = 60.0
"""How long an actor may take: `cancel` waits five seconds for the job."""


class MonarchHosts:
    """Starts each replica on one of the machines that run Monarch's workers, or on this one."""

    name = "monarch"
    poll_s = 0.5

    def __init__(
        self, workers: Sequence[str] = (), *, shared: str = "", folder: Path | None = None
    ) -> None:
        """`workers`: their addresses; `shared`: the folder that driver and workers mount;
        `folder`: where each machine keeps its jobs (a temporary one)."""
        self._addresses = tuple(workers) or (HERE,)
        self._remote, self._shared, self._folder = bool(workers), shared, folder
        self._meshes: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}

    def __enter__(self) -> MonarchHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the actors go; the jobs go on."""
        for address in list(self._meshes):
            self._release(address)

    def launch(self, job: ReplicaJob) -> str:
        """Start the job on the machine of its slot."""
        if self._remote:
            require_shared(job, shared=self._shared, provider="another machine")
        address = self._addresses[job.slot % len(self._addresses)]
        if job.hardware:
            job = replace(job, env={**job.env, "CUDA_VISIBLE_DEVICES": job.hardware})
        self._ask(address, "alive")  # an actor that died is replaced here, so launch is asked once
        try:
            folder = self._actor(address).launch.call_one(job).get(timeout=_ANSWER_S)
        except (RuntimeError, TimeoutError) as error:
            raise ReplicaError(
                f"the job of slot {job.slot} was not started: {_last_line(error)}",
                where=address,
                fix="look at the log of the worker there",
            ) from error
        return f"{address} {folder}"

    def poll(self, handle: str) -> JobStatus:
        """The state of the process; "unknown" while its machine does not answer."""
        try:
            return self._of(handle, "poll")
        except ReplicaError as error:
            return JobStatus(state="unknown", reason=first_line(error))

    def logs(self, handle: str) -> str:
        """What the process has written to stdout and stderr."""
        return self._of(handle, "logs")

    def cancel(self, handle: str) -> None:
        """End the process and what it started, on its machine."""
        self._of(handle, "cancel")

    def _of(self, handle: str, method: str) -> Any:
        address, _, folder = handle.partition(" ")
        if address not in self._addresses:
            raise ConfigError(
                f"this job runs at {address}, which is none of {', '.join(self._addresses)}",
                fix="name the workers that the job was launched with",
            )
        return self._ask(address, method, folder)

    def _ask(self, address: str, method: str, *arguments: Any) -> Any:
        """What the machine's actor answers; one that died is replaced once."""
        error: BaseException | None = None
        for _ in range(2):
            try:
                endpoint = getattr(self._actor(address), method)
                return endpoint.call_one(*arguments).get(timeout=_ANSWER_S)
            except (RuntimeError, TimeoutError) as failure:
                error = failure
                self._release(address)
        raise ReplicaError(
            f"the worker does not answer: {_last_line(error)}", where=address, fix="start it again"
        )

    def _actor(self, address: str) -> Any:
        if address not in self._actors:
            from composer_replication.training.diloco.executors.monarch_actor import JobsActor

            prepare_process()
            mesh = self._host(address).spawn_procs(per_host={"jobs": 1})
            self._meshes[address] = mesh
            self._actors[address] = mesh.spawn("jobs", JobsActor, self._folder)
        return self._actors[address]

    def _host(self, address: str) -> Any:
        if address == HERE:
            return monarch("actor").this_host()
        return monarch("actor").attach_to_workers(ca="trust_all_connections", workers=[address])

    def _release(self, address: str) -> None:
        self._actors.pop(address, None)
        mesh = self._meshes.pop(address, None)
        if mesh is not None:
            with suppress(Exception):
                mesh.stop().get(timeout=_ANSWER_S)


def _last_line(error: BaseException | None) -> str:
    """Of Monarch's errors the last line says what happened."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
