"""How often the student solved each task so far, by step: what a curriculum draws from.

    history = TaskHistory(run.path / "curriculum.jsonl")
    history.before(step)["shop-1a2b"]      # TaskSuccess(passed=3, played=8)
    history.record(step, groups)

A step sees what was recorded for earlier steps only, so a resumed run draws the same tasks again;
recording a step drops what is there of that step and later ones. Only the last plays of a task
count (`RECENT`): the student changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.rollouts.groups import Groups

RECENT = 24
"""Plays of a task that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSuccess:
    """Plays of a task, and how many of them earned a reward."""

    passed: int
    played: int

    @property
    def rate(self) -> float:
        """The chance of success, with one success and one failure added (Laplace's rule).

        >>> TaskSuccess(passed=0, played=0).rate
        0.5
        """
        return (self.passed + 1) / (self.played + 2)


TaskSuccesses = Mapping[str, TaskSuccess]
"""By task id; a task that was not played yet is not there."""


@dataclass(slots=True)
class TaskHistory:
    """The groups of each step, by task; kept in `file` if there is one."""

    file: Path | None = None
    _steps: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            for _, row in read_lines(self.file):
                tasks = {name: (passed, played) for name, (passed, played) in row["tasks"].items()}
                self._steps[row["step"]] = tasks

    def before(self, step: int) -> TaskSuccesses:
        """What the steps before this one showed, the latest plays first."""
        passed: dict[str, int] = {}
        played: dict[str, int] = {}
        for number in sorted((n for n in self._steps if n < step), reverse=True):
            for name, (good, plays) in self._steps[number].items():
                if played.get(name, 0) < RECENT:
                    passed[name] = passed.get(name, 0) + good
                    played[name] = played.get(name, 0) + plays
        return {name: TaskSuccess(passed=passed[name], played=played[name]) for name in played}

    @property
    def task_ids(self) -> frozenset[str]:
        """The tasks of every step."""
        return frozenset(name for row in self._steps.values() for name in row)

    def record(self, step: int, groups: Groups) -> None:
        """Note the rewards of a step's groups, flat ones included."""
        tasks: dict[str, tuple[int, int]] = {}
        for group in (*groups.groups, *groups.flat):
            good, plays = tasks.get(group.task_id, (0, 0))
            good += sum(reward > 0 for reward in group.rewards)
            tasks[group.task_id] = (good, plays + len(group.rewards))
        self._steps = {n: row for n, row in self._steps.items() if n < step} | {step: tasks}
        if self.file is not None:
            rows = [{"step": n, "tasks": self._steps[n]} for n in sorted(self._steps)]
            write_lines(self.file, rows)

    def measures(self, step: int) -> dict[str, float]:
        """How many tasks were played up to a step, and how many of them always or never solved."""
        known = self.before(step + 1).values()
        return {
            "tasks/played": float(len(known)),
            "tasks/always_solved": float(sum(row.passed == row.played for row in known)),
            "tasks/never_solved": float(sum(row.passed == 0 for row in known)),
        }
