"""The writer of a run: metrics, events, log, token tables and samples.

Every rank may call it, only the main one writes. Nothing here prints: `on_step` and `on_event` get
the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.codec import write_sessions
from composer_replication.core.errors import first_line
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.rollouts.fork import Fork, fork_to_json
from composer_replication.training.run.trackers import Mirror, mirrored, numbers_of

FORKS = "forks"
"""The folder of the messages that the student wrote at imported sites (train.fork): one file per
step, one line per message."""
Listener = Callable[[dict[str, Any]], None]
Phase = Callable[[], str]
"""Describes what a step is doing at the moment of the call, e.g. "playing: 412 tokens written"."""


@dataclass(slots=True, kw_only=True)
class RunLogger:
    """Writer of one launch, e.g. RunLogger(run=run, main=True).event("checkpoint", step=10)."""

    run: RunDir
    main: bool
    on_step: Listener | None = None
    on_event: Listener | None = None
    on_progress: Callable[[Phase], None] | None = None
    trackers: Sequence[str] = ()
    """Names of the trackers that get the metrics as well."""
    number: int = 0
    mirrors: list[Mirror] = field(default_factory=list)
    noted: dict[str, Any] = field(default_factory=dict)
    redactor: Redactor = field(default_factory=Redactor)
    """Redacts episodes and messages before they are written."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One launch: the state of the run follows how the block ends."""
        if not self.main:
            yield
            return
        with (
            self.run.attempt() as self.number,
            mirrored(self.trackers, run=self.run) as self.mirrors,
        ):
            yield

    def event(self, kind: str, **facts: Any) -> None:
        """Write an event."""
        if self.main:
            event = self.run.add_event(kind, attempt=self.number, **facts)
            self.run.add_log(_text(kind, facts), attempt=self.number)
            if self.on_event is not None:
                self.on_event(event)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep metrics that were measured before a step; they go into that step's line."""
        self.noted.update(facts)

    def step(self, metrics: dict[str, Any], warnings: list[dict[str, Any]]) -> None:
        """Write the metrics of a step, with what was noted before it; warnings become events."""
        metrics |= self.noted
        self.noted = {}
        if self.main:
            self.run.add_metrics({**metrics, "attempt": self.number})
            self.run.add_log(_text("step", metrics), attempt=self.number)
            self._mirror(metrics)
            for warning in warnings:
                self.event(
                    warning["status"],
                    step=metrics["step"],
                    **{k: v for k, v in warning.items() if k != "status"},
                )
            if self.on_step is not None:
                self.on_step(metrics)

    def _mirror(self, metrics: Mapping[str, Any]) -> None:
        """Give a step's numbers to the trackers; one that cannot write is left out from now on,
        which is an event: the run goes on, and metrics.jsonl has everything."""
        for mirror in tuple(self.mirrors):
            try:
                mirror.add(metrics["step"], numbers_of(metrics))
            except mirror.failures as error:
                self.mirrors.remove(mirror)
                self.event("tracker_lost", tracker=mirror.name, reason=first_line(error))

    def progress(self, phase: Phase) -> None:
        """Report the phase that the run is in from now on; nothing is written."""
        if self.main and self.on_progress is not None:
            self.on_progress(phase)

    def tokens(self, step: int, table: list[dict[str, Any]]) -> None:
        """Write the per-token log-probs of the watched sites after `step` steps."""
        if self.main:
            write_json(self.run.tokens(step), {"step": step, "sites": table})

    def forks(self, step: int, forks: Iterable[Fork]) -> None:
        """Write what the student wrote at imported sites before one step, with the result of the
        static check."""
        if self.main:
            write_lines(
                self.run.path / FORKS / f"step_{step:06d}.jsonl",
                (self.redactor.value(fork_to_json(fork)) for fork in forks),
            )

    def samples(self, step: int, sessions: Iterable[Session]) -> None:
        """Write a few episodes of the policy after `step` steps, without secrets."""
        if self.main:
            write_sessions(
                self.run.sample_file(step),
                (redact_session(session, self.redactor) for session in sessions),
            )


def _text(kind: str, facts: Mapping[str, Any]) -> str:
    """One line for the log.

    >>> _text("checkpoint", {"step": 10})
    'checkpoint step=10'
    """
    return " ".join(
        [kind, *(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts.items())]
    )
