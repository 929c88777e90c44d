"""Replicas as clusters of SkyPilot (0.14): one cluster per attempt, which takes itself down.

    SkyClusters(infra="aws").launch(job)           # "recompose-0-5f0c.../3b7a...": cluster/request

`job.hardware` names accelerators ("H100:2"), `job.image` a machine image or "docker:NAME". Clusters
and not managed jobs: SkyPilot starts a managed job again by itself, and retries are the group's.
SkyPilot reports no exit code. A cluster that sits idle for `idle_minutes` is taken down, and its
log goes with it. SkyPilot knows no time-out of a job, so the command runs under `timeout` there.
"""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Mapping
from typing import Any

from composer_replication.core.errors import first_line
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    State,
    require_shared,
    sdk,
)

JOB_ID = 1
"""A fresh cluster's first job."""
STATES: Mapping[str, State] = {
    "INIT": "pending",
    "PENDING": "pending",
    "SETTING_UP": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "ended",
    "FAILED": "failed",
    "FAILED_SETUP": "failed",
    "FAILED_DRIVER": "failed",
    "CANCELLED": "cancelled",
}
"""SkyPilot's states of a job in the executors' words."""
_GRACE_S = 60
"""How much later than the group the cluster's own `timeout` ends a job."""


class SkyClusters:
    """Starts each replica on a cluster of its own."""

    name = "skypilot"
    poll_s = 10.0

    def __init__(
        self,
        *,
        infra: str = "",
        shared: str = "",
        idle_minutes: int = 5,
        options: Mapping[str, Any] | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> None:
        """`infra`: SkyPilot's word for where ("aws/us-east-1", "k8s"); `options`: further keywords
        of `sky.Resources` (use_spot, cpus, ...); `task`: of `sky.Task` (setup, workdir, ...)."""
        self._shared, self._task = shared, dict(task or {})
        autostop = {"idle_minutes": idle_minutes, "down": True}
        self._options = {"infra": infra or None, "autostop": autostop, **(options or {})}

    def launch(self, job: ReplicaJob) -> str:
        """Ask for the cluster; the handle is its name and the id of that request."""
        require_shared(job, shared=self._shared, provider="SkyPilot")
        sky = _sky()
        keywords = task_keywords(job)
        task = sky.Task(**self._task, **keywords)
        resources = {"accelerators": job.hardware or None, "image_id": job.image or None}
        task.set_resources(sky.Resources(**resources, **self._options))
        return f"{keywords['name']}/{sky.launch(task, cluster_name=keywords['name'])}"

    def poll(self, handle: str) -> JobStatus:
        """The job's state; "unknown" while SkyPilot's server does not answer."""
        sky, requests = _sky(), sdk("requests", package="skypilot")
        cluster, _, request = handle.partition("/")
        try:
            try:
                status = sky.get(sky.job_status(cluster, [JOB_ID])).get(JOB_ID)
            except (sky.exceptions.ClusterDoesNotExist, sky.exceptions.ClusterNotUpError):
                status = None
            if status is None:
                return _status_of_launch(request)
        except (sky.exceptions.ApiServerConnectionError, requests.RequestException) as error:
            return JobStatus(state="unknown", reason=first_line(error))
        return JobStatus(state=STATES.get(status.value, "unknown"), reason=status.value.lower())

    def logs(self, handle: str) -> str:
        """What the job has printed; nothing if its cluster is not up."""
        sky, printed = _sky(), io.StringIO()
        try:
            sky.tail_logs(handle.partition("/")[0], JOB_ID, follow=False, output_stream=printed)
        except (sky.exceptions.ClusterDoesNotExist, sky.exceptions.ClusterNotUpError):
            return ""
        return printed.getvalue()

    def cancel(self, handle: str) -> None:
        """Stop the job unless it is over; a cluster that is still being made is taken down."""
        sky = _sky()
        cluster, _, request = handle.partition("/")
        state = self.poll(handle).state
        if state in ("running", "unknown"):
            sky.get(sky.cancel(cluster, job_ids=[JOB_ID]))
        elif state == "pending":
            sky.get(sky.api_cancel([request], silent=True))
            try:
                sky.get(sky.down(cluster))
            except sky.exceptions.ClusterDoesNotExist:
                return


def task_keywords(job: ReplicaJob) -> dict[str, Any]:
    """The keywords of `sky.Task` that come of the job.

    >>> job = ReplicaJob(argv=("echo", "a b"), slot=0, results="s3://b/r", timeout_s=10)
    >>> task_keywords(job)["run"]
    "timeout -k 30 70 echo 'a b'"
    """
    limit = math.ceil(job.timeout_s) + _GRACE_S
    return {
        "name": f"{job.name}-{job.slot}-{job.attempt}",
        "run": f"timeout -k 30 {limit} {shlex.join(job.argv)}",
        "envs": job.environment(),
        "secrets": dict(job.secrets) or None,
    }


def _status_of_launch(request: str) -> JobStatus:
    """What became of the request for the cluster, where the cluster has no job to show."""
    sky = _sky()
    found = sky.api_status(request_ids=[request])
    status = found[0].status if found else ""
    if status in ("PENDING", "RUNNING"):
        return JobStatus(state="pending")
    if status == "CANCELLED":
        return JobStatus(state="cancelled", reason="cancelled before the cluster was up")
    if status == "FAILED":
        return JobStatus(state="failed", reason=_reason(request))
    gone = "the cluster is gone" if status else "SkyPilot does not know this cluster"
    return JobStatus(state="lost", reason=gone)


def _reason(request: str) -> str:
    """Why a request failed: asking for its result raises its error."""
    try:
        _sky().get(request)
    except Exception as error:  # noqa: BLE001 -- any error of the server's
        return first_line(error)
    return "the launch failed"


def _sky() -> Any:
    return sdk("sky", package="skypilot")
