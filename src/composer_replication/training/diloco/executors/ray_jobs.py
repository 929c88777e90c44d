"""Replicas as jobs of a Ray cluster (ray[default] 2.60; its dashboard must run).

    RayJobs("http://127.0.0.1:8265").launch(job)   # "recompose-0-5f0c..."

`job.hardware` is a number of GPUs ("1", "0.5"); a job also takes one CPU. Ray is the launcher, not
the transport: replicas meet in the results folder or bucket, and outlive the driver. Ray shows a
job's variables to everyone who can see the cluster and stores no secrets, so secrets are refused.
"""

from __future__ import annotations

import shlex
from typing import Any

from composer_replication.core.errors import ConfigError, first_line
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    require_shared,
    sdk,
    status_of_exit,
)


class RayJobs:
    """Starts each replica as a job of a Ray cluster."""

    name = "ray"
    poll_s = 2.0

    def __init__(
        self, address: str = "http://127.0.0.1:8265", *, shared: str = "", num_cpus: float = 1
    ) -> None:
        """`address`: of the cluster's dashboard; `num_cpus`: that each replica takes."""
        self._address, self._shared, self._num_cpus = address, shared, num_cpus

    def launch(self, job: ReplicaJob) -> str:
        """Submit the job; its submission id is the handle."""
        require_shared(job, shared=self._shared, provider="Ray")
        if job.secrets:
            raise ConfigError(
                f"Ray has no store for secrets, and would show {sorted(job.secrets)} to everyone",
                fix="set them where the cluster's nodes start, and leave them out of the job",
            )
        return self._client().submit_job(**submit_keywords(job, num_cpus=self._num_cpus))

    def poll(self, handle: str) -> JobStatus:
        """The job's status and its driver's exit code; "unknown" while Ray does not answer."""
        requests = sdk("requests", package="ray[default]")
        try:
            info = self._client().get_job_info(handle)
        except (requests.RequestException, ConnectionError) as error:
            return JobStatus(state="unknown", reason=first_line(error))
        except RuntimeError as error:  # the client raises nothing else for a missing job
            if "404" not in str(error):
                return JobStatus(state="unknown", reason=first_line(error))
            return JobStatus(state="lost", reason="Ray does not know this job")
        return status_of_job(str(info.status.value), info.driver_exit_code, info.message or "")

    def logs(self, handle: str) -> str:
        """What the job has printed."""
        return self._client().get_job_logs(handle)

    def cancel(self, handle: str) -> None:
        """Stop the job unless it is over: SIGTERM, three seconds later SIGKILL."""
        if not self.poll(handle).over:
            self._client().stop_job(handle)

    def _client(self) -> Any:
        return sdk("ray.job_submission", package="ray[default]").JobSubmissionClient(self._address)


def submit_keywords(job: ReplicaJob, *, num_cpus: float) -> dict[str, Any]:
    """The keywords of `JobSubmissionClient.submit_job` for a job."""
    try:
        num_gpus = float(job.hardware or 0)
    except ValueError as error:
        raise ConfigError(
            f"hardware {job.hardware!r} is no number of GPUs", fix='write "1" or "0.5"'
        ) from error
    return {
        "entrypoint": shlex.join(job.argv),
        "submission_id": f"{job.name}-{job.slot}-{job.attempt}",
        "runtime_env": {"env_vars": job.environment()},
        "entrypoint_num_cpus": num_cpus,
        "entrypoint_num_gpus": num_gpus,
        "metadata": {"slot": str(job.slot), "attempt": job.attempt},
    }


def status_of_job(status: str, exit_code: int | None, message: str) -> JobStatus:
    """Ray's status of a job in the executors' words.

    >>> status_of_job("FAILED", 3, "").reason, status_of_job("STOPPED", None, "").state
    ('exit code 3', 'cancelled')
    """
    if status == "FAILED" and exit_code:
        return status_of_exit(exit_code)
    states = {"PENDING": "pending", "RUNNING": "running", "STOPPED": "cancelled"}
    states |= {"SUCCEEDED": "ended", "FAILED": "failed"}
    return JobStatus(state=states.get(status, "unknown"), exit_code=exit_code, reason=message)  # pyright: ignore[reportArgumentType]
