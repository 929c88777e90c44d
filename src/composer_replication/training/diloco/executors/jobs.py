"""What an executor starts and reports: `ReplicaJob`, `JobStatus`, and the protocol `Executor`.

    job = ReplicaJob(argv=("python", "train.py"), slot=0, results="file:///tmp/run")
    handle = LocalProcesses().launch(job)          # a plain text; another process may poll it
    LocalProcesses().poll(handle)                  # JobStatus(state="running")

Rules that every executor keeps, tested by tests/executors/conformance.py:

- A handle is a text with no live object behind it, so a driver that died can attach again.
- `poll` reports what the provider says. It never decides about success: that is the replica's own
  done marker (done_marker.py), because providers report exit code 0 for a killed container.
- `cancel` may be called twice, and for a job that has ended.
- An executor never retries a job: retries belong to `ReplicaGroup` alone, or a job that fails three
  times would run nine times.
- `secrets` travel apart from `env`, in the provider's own secret store, and are in no repr or log.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote, urlsplit

from composer_replication.core.errors import ConfigError, MissingExtraError, pip_install

State = Literal[
    "pending", "running", "ended", "failed", "preempted", "cancelled", "lost", "unknown"
]
LIVE: frozenset[State] = frozenset(("pending", "running", "unknown"))
"""The states of a job that may still go on; "unknown" = the provider gave no answer just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJob:
    """One attempt of one replica: a command line, its environment, and where its result goes.

    `results` is the URL of a folder that the replica can write and the driver can read. `image` and
    `hardware` are the provider's words (an image name, "a10g-large", "H100:2"); local processes
    ignore them. `timeout_s` bounds the attempt.

    >>> job = ReplicaJob(argv=("true",), slot=1, results="file:///tmp/r", attempt="a1")
    >>> job.environment()["RECOMPOSE_SLOT"], job.next_attempt().attempt == "a1"
    ('1', False)
    """

    argv: tuple[str, ...]
    slot: int
    results: str
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    image: str = ""
    hardware: str = ""
    timeout_s: float = 86_400.0
    name: str = "recompose"
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def environment(self) -> dict[str, str]:
        """The job's variables, without its secrets."""
        return {
            **self.env,
            "RECOMPOSE_SLOT": str(self.slot),
            "RECOMPOSE_ATTEMPT": self.attempt,
            "RECOMPOSE_RESULTS": self.results,
        }

    def next_attempt(self) -> ReplicaJob:
        """The same job under a new attempt id."""
        return replace(self, attempt=uuid.uuid4().hex[:12])

    def public(self) -> dict[str, Any]:
        """The fields that may be written to a file: all but the secrets."""
        names = ("slot", "results", "image", "hardware", "timeout_s", "name", "attempt")
        fields = {name: getattr(self, name) for name in names}
        return {**fields, "argv": list(self.argv), "env": dict(self.env)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What a provider says about a job; `ended` = it stopped by itself with exit code 0.

    >>> JobStatus(state="failed", exit_code=3).over, JobStatus(state="unknown").over
    (True, False)
    """

    state: State
    exit_code: int | None = None
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether the job can no longer change."""
        return self.state not in LIVE


def status_of_exit(code: int) -> JobStatus:
    """The status of a job that stopped with this exit code; a negative code is a signal's number.

    >>> status_of_exit(0).state, status_of_exit(-9).reason
    ('ended', 'signal 9')
    """
    if code == 0:
        return JobStatus(state="ended", exit_code=0)
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    return JobStatus(state="failed", exit_code=code, reason=reason)


class Executor(Protocol):
    """Starts jobs at one provider; holds no state that a handle does not hold."""

    name: str
    poll_s: float
    """Seconds between two polls of a job."""

    def launch(self, job: ReplicaJob) -> str:
        """Start a job; returns its handle."""
        ...

    def poll(self, handle: str) -> JobStatus:
        """What the provider says about the job now."""
        ...

    def logs(self, handle: str) -> str:
        """What the job has printed so far, as far as the provider keeps it."""
        ...

    def cancel(self, handle: str) -> None:
        """Stop the job if it still runs."""
        ...


def sdk(module: str, *, package: str) -> Any:
    """Import a module of an optional package, or say how that is installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs the Python package {package!r}: {error}",
            fix=f"run: {pip_install(package)}\n(recompose doctor prints the tested versions)",
        ) from error


def require_shared(job: ReplicaJob, *, shared: str, provider: str) -> None:
    """Refuse a results folder that a machine of the provider would not see.

    `shared` is a folder that driver and jobs both mount at the same path, "" if there is none.
    """
    folder = local_folder(job.results)
    if folder is None or (shared and folder.is_relative_to(shared)):
        return
    raise ConfigError(
        f"{job.results!r} is a folder of this machine, which a job of {provider} cannot write",
        fix="use a bucket (s3://, gs://, az://), or name a folder that both mount as shared=",
    )


def local_folder(url: str) -> Path | None:
    """The folder of a file:// URL or a plain path; None for a URL of an object store.

    >>> local_folder("file:///tmp/a%20b"), local_folder("s3://bucket/run")
    (PosixPath('/tmp/a b'), None)
    """
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{url!r} names a host", fix="write file:///folder, with three slashes")
    return Path(unquote(parts.path) if parts.scheme else url)
