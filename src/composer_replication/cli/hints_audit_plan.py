"""The lines of `recompose hints --audit` around the measuring: the plan, what is left out, the
progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from composer_replication.cli.build_text import remedies
from composer_replication.cli.job import Job
from composer_replication.core.time_left import TimeLeft, eta
from composer_replication.report.html import plural


def listed(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, e.g. "too_long 5"."""
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


class Progress:
    """Prints how many of the messages are measured and the time left, at most every `every_s`
    seconds."""

    def __init__(self, job: Job, what: str, *, every_s: float = 10.0) -> None:
        self.job, self.what, self.every_s = job, what, every_s
        self.time_left, self._said = TimeLeft(), time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Record that one more is done."""
        now = time.monotonic()
        self.time_left.step_ended(now)
        if now - self._said >= self.every_s:
            self._said = now
            left = eta(self.time_left.seconds(steps=total - done))
            self.job.screen.line(
                f" ...      {self.what} {done} of {total} | eta={left}", style="dim"
            )


def show_audit_plan(job: Job, plan: dict[str, Any]) -> dict[str, Any]:
    """Print what an audit would measure; returns it as the value of --json."""
    screen = job.screen
    screen.line(
        f"\n dry run  the audit on {job.config.student.model} would measure"
        f" {plural(plan['messages'], 'message')}; nothing was measured"
    )
    screen.table(
        [(kind, count, plan["measurable"][kind]) for kind, count in plan["sites"].items()],
        head=("kind", "sites", "with a known decision"),
    )
    screen.line(f" messages in each position: {listed(plan['positions'])}")
    for position, count in plan["not_placed"].items():
        screen.line(f" position {position!r}: {plural(count, 'hint')} cannot be placed there")
    show_not_built(job, plan["not_built"])
    return {"planned": plan}


def show_not_built(job: Job, not_built: Mapping[str, int]) -> None:
    """Print the hints that could not be built into a view, by reason, and the remedies."""
    if not_built:
        job.screen.line(
            f" left out {plural(sum(not_built.values()), 'hint')} that `build` would leave out too,"
            f" with build.max_tokens = {job.config.build.max_tokens}:"
            f" {listed(not_built)}",
            style="yellow",
        )
        for remedy in remedies(not_built):
            job.screen.line(f" fix      {remedy}", style="yellow")
