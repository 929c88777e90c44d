"""The actor of monarch_jobs.py: the processes of its machine."""

from __future__ import annotations

from pathlib import Path

from composer_replication.training.backends.monarch_process import actor_names
from composer_replication.training.diloco.executors.jobs import JobStatus, ReplicaJob
from composer_replication.training.diloco.executors.local_jobs import LocalProcesses

Actor, endpoint = actor_names()


class JobsActor(Actor):
    """Starts, watches and ends jobs on the machine where it runs."""

    def __init__(self, folder: Path | None) -> None:
        self._jobs = LocalProcesses(folder)

    @endpoint
    def alive(self) -> bool:
        """Whether this actor answers."""
        return True

    @endpoint
    def launch(self, job: ReplicaJob) -> str:
        """Start the process; returns its folder."""
        return self._jobs.launch(job)

    @endpoint
    def poll(self, folder: str) -> JobStatus:
        """The state of the process."""
        return self._jobs.poll(folder)

    @endpoint
    def logs(self, folder: str) -> str:
        """What the process has printed."""
        return self._jobs.logs(folder)

    @endpoint
    def cancel(self, folder: str) -> None:
        """End the process and what it started."""
        self._jobs.cancel(folder)
