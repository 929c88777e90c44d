"""Replicas as Hugging Face Jobs (huggingface_hub 2.4; the token of `hf auth login` or HF_TOKEN).

    HfJobs(options={"namespace": "my-team"}).launch(job)   # "my-team/68780d00bbe36d38803f645f"

`job.hardware` is a flavor ("a10g-large"), `job.image` a Docker image that holds this package. One
job per replica, each with one attempt; the Hub reports a stage and a message, no exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer_replication.core.errors import first_line, need
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    State,
    require_shared,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

IMAGE = "python:3.11"
STAGES: Mapping[str, State] = {
    "SCHEDULING": "pending",
    "RUNNING": "running",
    "COMPLETED": "ended",
    "ERROR": "failed",
    "CANCELED": "cancelled",
    "DELETED": "lost",
}
"""The Hub's stages as states; a stage that is not listed is "unknown"."""


class HfJobs:
    """Starts each replica as a job of the Hugging Face Hub."""

    name = "hf_jobs"
    poll_s = 10.0

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        shared: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are further keywords of `run_job` (namespace, volumes, network_group, ...)."""
        self._endpoint, self._token, self._shared = endpoint, token, shared
        self._options = dict(options or {})

    def launch(self, job: ReplicaJob) -> str:
        """Start the job; the handle is "namespace/id"."""
        require_shared(job, shared=self._shared, provider="Hugging Face Jobs")
        started = self._api().run_job(**run_keywords(job), **self._options)
        namespace = self._options.get("namespace") or (started.owner and started.owner.name)
        return f"{namespace}/{started.id}"

    def poll(self, handle: str) -> JobStatus:
        """The job's stage; "unknown" while the Hub does not answer."""
        from huggingface_hub.errors import HfHubHTTPError

        namespace, _, job_id = handle.rpartition("/")
        try:
            status = self._api().inspect_job(job_id=job_id, namespace=namespace).status
        except HfHubHTTPError as error:
            if error.response.status_code == 404:
                return JobStatus(state="lost", reason="the Hub does not know this job")
            if error.response.status_code < 500 and error.response.status_code != 429:
                raise
            return JobStatus(state="unknown", reason=first_line(error))
        except (OSError, need("httpx2", extra="replay").TransportError) as error:
            return JobStatus(state="unknown", reason=first_line(error))
        state = STAGES.get(str(getattr(status.stage, "value", status.stage)), "unknown")
        return JobStatus(state=state, reason=status.message or "")

    def logs(self, handle: str) -> str:
        """The lines that the Hub has kept."""
        namespace, _, job_id = handle.rpartition("/")
        return "\n".join(self._api().fetch_job_logs(job_id=job_id, namespace=namespace))

    def cancel(self, handle: str) -> None:
        """Cancel the job unless it is over."""
        if not self.poll(handle).over:
            namespace, _, job_id = handle.rpartition("/")
            self._api().cancel_job(job_id=job_id, namespace=namespace)

    def _api(self) -> HfApi:
        hub = need("huggingface_hub", extra="train")
        return hub.HfApi(endpoint=self._endpoint, token=self._token)


def run_keywords(job: ReplicaJob) -> dict[str, Any]:
    """The keywords of `run_job` for a job; `attempts` is 1, because the group retries."""
    return {
        "image": job.image or IMAGE,
        "command": list(job.argv),
        "env": job.environment(),
        "secrets": dict(job.secrets) or None,
        "flavor": job.hardware or None,
        "timeout": int(job.timeout_s),
        "attempts": 1,
        "name": f"{job.name}-{job.slot}-{job.attempt}",
    }
