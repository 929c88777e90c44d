"""Run several replicas to their end: the one place that retries, and that decides about success.

    group = ReplicaGroup(LocalProcesses(), max_attempts=2)
    group.launch([ReplicaJob(argv=argv, slot=slot, results=url) for slot in range(4)])
    results = group.collect(timeout_s=3600)        # what each replica passed to write_done, by slot

A slot has succeeded if one of its attempts wrote a done marker, whatever the provider says. An
attempt that is over without one is launched again under a new id, until `max_attempts` were made,
or until one says that the next would end the same way (`write_failure(error, final=True)`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.errors import DataError, ReplicaError
from composer_replication.training.diloco.executors.done_marker import read_marker
from composer_replication.training.diloco.executors.jobs import Executor, JobStatus, ReplicaJob

CANCELLED = "cancelled"
LOG_TAIL = 2_000
"""Characters of a failed replica's log that its error shows."""


@dataclass(slots=True)
class _Slot:
    """The attempts of one slot, oldest first, and how it ended."""

    attempts: list[tuple[ReplicaJob, str]] = field(default_factory=list)
    began: float = 0.0
    result: Mapping[str, Any] | None = None
    failure: str = ""

    @property
    def open(self) -> bool:
        return self.result is None and not self.failure


class ReplicaGroup:
    """The replicas of one run at one executor, by slot."""

    def __init__(
        self,
        executor: Executor,
        *,
        max_attempts: int = 1,
        on_restart: Callable[[int, str], None] | None = None,
    ) -> None:
        """`on_restart` hears the slot that is started again, and how its last attempt ended."""
        self.executor, self.max_attempts, self.on_restart = executor, max_attempts, on_restart
        self._slots: dict[int, _Slot] = {}

    def launch(self, jobs: Iterable[ReplicaJob]) -> None:
        """Start one replica per job; if one cannot be started, those before it are cancelled."""
        for job in jobs:
            if job.slot in self._slots:
                raise ReplicaError(
                    f"slot {job.slot} is launched already", fix="give each replica its own slot"
                )
            try:
                self._start(job)
            except BaseException:
                self.cancel()
                raise

    def adopt(self, job: ReplicaJob, handle: str) -> None:
        """Count a job that was launched before as the newest attempt of its slot."""
        entry = self._slots.setdefault(job.slot, _Slot())
        entry.attempts.append((job, handle))
        entry.began = time.monotonic()

    def poll(self) -> dict[int, JobStatus]:
        """What the provider says about the newest attempt of each slot."""
        return {
            slot: self.executor.poll(entry.attempts[-1][1]) for slot, entry in self._slots.items()
        }

    def handles(self) -> dict[int, str]:
        """The handle of the newest attempt of each slot."""
        return {slot: entry.attempts[-1][1] for slot, entry in self._slots.items()}

    def logs(self, slot: int) -> str:
        """What the newest attempt of a slot has printed so far."""
        return self.executor.logs(self._slots[slot].attempts[-1][1])

    def cancel(self) -> None:
        """Stop every attempt that still runs, and start none again."""
        for entry in self._slots.values():
            if entry.open:
                entry.failure = CANCELLED
            for _, handle in entry.attempts:
                self.executor.cancel(handle)

    def collect(self, *, timeout_s: float, fail_fast: bool = False) -> dict[int, Mapping[str, Any]]:
        """Wait for every slot; returns the results, or raises ReplicaError with every failure.

        With `fail_fast` the first slot that fails for good ends the wait and cancels the others:
        right where replicas wait for each other. Without, the survivors go on to their end.
        """
        deadline = time.monotonic() + timeout_s
        while open_slots := [slot for slot, entry in self._slots.items() if entry.open]:
            for slot in open_slots:
                self._advance(slot)
            failed = any(entry.failure for entry in self._slots.values())
            if fail_fast and failed:
                self.cancel()
                break
            if time.monotonic() > deadline:
                states = {slot: status.state for slot, status in self.poll().items()}
                raise ReplicaError(
                    f"after {timeout_s:g} s the replicas {open_slots} are not done: {states}",
                    fix="collect again with a longer time-out, or cancel()",
                )
            time.sleep(self.executor.poll_s)
        return self._results()

    def to_json(self) -> str:
        """Everything a later driver needs to go on; the jobs' secrets are left out."""
        slots = {
            slot: [{"job": job.public(), "handle": handle} for job, handle in entry.attempts]
            for slot, entry in self._slots.items()
        }
        return json.dumps({"executor": self.executor.name, "slots": slots})

    @classmethod
    def attach(
        cls,
        executor: Executor,
        text: str,
        *,
        secrets: Mapping[str, str] | None = None,
        max_attempts: int = 1,
    ) -> ReplicaGroup:
        """The group that another driver launched and wrote down with `to_json`."""
        record = json.loads(text)
        if record["executor"] != executor.name:
            raise DataError(
                f"these replicas run at {record['executor']}, not at {executor.name}",
                fix="attach with the executor that launched them",
            )
        group = cls(executor, max_attempts=max_attempts)
        for attempts in record["slots"].values():
            for attempt in attempts:
                fields = {**attempt["job"], "argv": tuple(attempt["job"]["argv"])}
                group.adopt(ReplicaJob(**fields, secrets=secrets or {}), attempt["handle"])
        return group

    def _start(self, job: ReplicaJob) -> None:
        self.adopt(job, self.executor.launch(job))

    def _advance(self, slot: int) -> None:
        """Look at one open slot once: done, still running, to be started again, or failed."""
        entry = self._slots[slot]
        job, handle = entry.attempts[-1]
        status = self.executor.poll(handle)  # before the markers: one may be written in between
        if not status.over and time.monotonic() - entry.began > job.timeout_s:
            self.executor.cancel(handle)
            status = JobStatus(state="failed", reason=f"ran for more than {job.timeout_s:g} s")
        error, is_final = "", False
        for earlier, _ in entry.attempts:
            marker = read_marker(earlier)
            if marker is not None and marker.result is not None:
                entry.result = marker.result
                return
            if marker is not None and earlier is job:
                error, is_final = marker.error, marker.final
        if not status.over:
            return
        may_retry = not is_final and len(entry.attempts) < self.max_attempts
        if may_retry and status.state != "cancelled":
            if self.on_restart is not None:
                self.on_restart(slot, error or status.reason or status.state)
            self._start(job.next_attempt())
            return
        entry.failure = self._failure(status, error=error, handle="" if is_final else handle)

    def _failure(self, status: JobStatus, *, error: str, handle: str) -> str:
        """One text for a slot that failed for good: the replica's own error first, then, of an
        attempt with a handle, the end of its log."""
        ended = status.reason or status.state
        if status.state == "ended" and not error:
            ended = "exit code 0, but no done marker: the replica did not finish"
        tail = self.executor.logs(handle)[-LOG_TAIL:].strip() if handle else ""
        return f"{error or ended}" + (f"\n{tail}" if tail else "")

    def _results(self) -> dict[int, Mapping[str, Any]]:
        ended = {slot: entry.failure for slot, entry in self._slots.items() if entry.failure}
        failures = {slot: text for slot, text in ended.items() if text != CANCELLED} or ended
        results = {
            slot: entry.result for slot, entry in self._slots.items() if entry.result is not None
        }
        if failures:
            listed = "\n".join(_listed(failures))
            raise ReplicaError(
                f"{len(failures)} of {len(self._slots)} replicas failed\n{listed}",
                results=results,
                failures=failures,
            )
        return results


def _listed(failures: Mapping[int, str]) -> list[str]:
    """The failures, each text once, with the slots that it stopped."""
    slots: dict[str, list[int]] = {}
    for slot, text in failures.items():
        slots.setdefault(text, []).append(slot)
    return [
        f"replica{'s' * (len(of) > 1)} {', '.join(map(str, of))}: {text}"
        for text, of in slots.items()
    ]
