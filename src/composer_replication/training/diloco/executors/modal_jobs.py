"""Replicas as Modal sandboxes (modal 1.6; `modal setup` stores the account's token).

    ModalSandboxes(app="my-run").launch(job)       # "sb-..."

`job.hardware` is a GPU ("A100", "H100:2"), `job.image` an image name of a registry. One sandbox per
replica, never a function's map: a function is preempted and run again by Modal itself, a sandbox is
not. Modal reports 137 for a sandbox that was terminated *and* for one that was killed, and 124 for
one that took too long: all three are "failed" here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.core.errors import first_line
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    require_shared,
    sdk,
    status_of_exit,
)

PYTHON_IMAGE = "modal:python"
"""`modal:python3.11` is Modal's own slim image with that Python."""
TIMED_OUT = 124
_LOG_ENTRIES = 1_000


class ModalSandboxes:
    """Starts each replica as a sandbox of Modal."""

    name = "modal"
    poll_s = 5.0

    def __init__(
        self,
        *,
        app: str = "recompose",
        shared: str = "",
        image: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`image`: a modal.Image in place of `job.image`; `options`: further keywords of
        `Sandbox.create` (volumes, region, cpu, memory, ...)."""
        self._app, self._shared, self._image = app, shared, image
        self._options = dict(options or {})

    def launch(self, job: ReplicaJob) -> str:
        """Start the sandbox; its object id is the handle."""
        require_shared(job, shared=self._shared, provider="Modal")
        client = _modal()
        sandbox = client.Sandbox.create(
            *job.argv,
            app=client.App.lookup(self._app, create_if_missing=True),
            image=self._image or image_named(job.image),
            secrets=[client.Secret.from_dict(dict(job.secrets))] if job.secrets else [],
            **sandbox_keywords(job),
            **self._options,
        )
        return sandbox.object_id

    def poll(self, handle: str) -> JobStatus:
        """The sandbox's exit code; "unknown" while Modal does not answer."""
        errors = _modal().exception
        try:
            code = _modal().Sandbox.from_id(handle).poll()
        except errors.NotFoundError:
            return JobStatus(state="lost", reason="Modal does not know this sandbox")
        except (errors.ConnectionError, errors.ServiceError, errors.InternalError) as error:
            return JobStatus(state="unknown", reason=first_line(error))
        if code is None:
            return JobStatus(state="running")
        if code == TIMED_OUT:
            return JobStatus(state="failed", exit_code=code, reason="timed out")
        return status_of_exit(code)

    def logs(self, handle: str) -> str:
        """The newest entries that Modal has kept."""
        sandbox = _modal().Sandbox.from_id(handle)
        return "".join(entry.message for entry in sandbox.logs.tail(_LOG_ENTRIES))

    def cancel(self, handle: str) -> None:
        """Terminate the sandbox unless it is over."""
        if not self.poll(handle).over:
            _modal().Sandbox.from_id(handle).terminate()


def sandbox_keywords(job: ReplicaJob) -> dict[str, Any]:
    """The keywords of `Sandbox.create` that come of the job; Modal's own time-out is 5 minutes."""
    return {
        "env": job.environment(),
        "gpu": job.hardware or None,
        "timeout": int(job.timeout_s),
        "tags": {"slot": str(job.slot), "attempt": job.attempt},
    }


def image_named(name: str) -> Any:
    """The Modal image of a name: "modal:python3.11" is Modal's own, others are a registry's."""
    images = _modal().Image
    if not name:
        return images.debian_slim()
    if name.startswith(PYTHON_IMAGE):
        return images.debian_slim(python_version=name.removeprefix(PYTHON_IMAGE) or None)
    return images.from_registry(name)


def _modal() -> Any:
    return sdk("modal", package="modal")
