"""What a run writes down: metrics, events, log, token tables and samples; only the main rank
writes, every rank may call.

Nothing here prints: `on_step` and `on_event` hand the same facts to whoever shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.codec import write_sessions
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.rollouts.fork import Fork, fork_to_json

FORKS = "forks"
"""Folder of the run that holds what the student wrote at imported sites (train.fork), one file a
step, one line a message."""
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
    number: int = 0
    noted: dict[str, Any] = field(default_factory=dict)
    redactor: Redactor = field(default_factory=Redactor)
    """What episodes and messages pass before they are written."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One launch: the run's state follows how the block ends."""
        if not self.main:
            yield
            return
        with self.run.attempt() as self.number:
            yield

    def event(self, kind: str, **facts: Any) -> None:
        """Something happened."""
        if self.main:
            event = self.run.add_event(kind, attempt=self.number, **facts)
            self.run.add_log(_text(kind, facts), attempt=self.number)
            if self.on_event is not None:
                self.on_event(event)

    def note(self, facts: Mapping[str, Any]) -> None:
        """What was measured before a step; it goes into that step's line."""
        self.noted.update(facts)

    def step(self, metrics: dict[str, Any], warnings: list[dict[str, Any]]) -> None:
        """One step was taken; what was noted is added to its line, warnings become events at
        once."""
        metrics |= self.noted
        self.noted = {}
        if self.main:
            self.run.add_metrics({**metrics, "attempt": self.number})
            self.run.add_log(_text("step", metrics), attempt=self.number)
            for warning in warnings:
                self.event(
                    warning["status"],
                    step=metrics["step"],
                    **{k: v for k, v in warning.items() if k != "status"},
                )
            if self.on_step is not None:
                self.on_step(metrics)

    def progress(self, phase: Phase) -> None:
        """What the run is at from now on, for somebody who waits for the next line; nothing of it
        is written down."""
        if self.main and self.on_progress is not None:
            self.on_progress(phase)

    def tokens(self, step: int, table: list[dict[str, Any]]) -> None:
        """Per-token log-probs of the watched sites after `step` steps."""
        if self.main:
            write_json(self.run.tokens(step), {"step": step, "sites": table})

    def forks(self, step: int, forks: Iterable[Fork]) -> None:
        """What the student wrote at imported sites before one step, and what the static check says
        of it."""
        if self.main:
            write_lines(
                self.run.path / FORKS / f"step_{step:06d}.jsonl",
                (self.redactor.value(fork_to_json(fork)) for fork in forks),
            )

    def samples(self, step: int, sessions: Iterable[Session]) -> None:
        """A few episodes of the policy after `step` steps, without secrets."""
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
