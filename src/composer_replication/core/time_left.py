"""The time that something still takes, and how a duration is written."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field


def duration(seconds: float) -> str:
    """Format seconds.

    >>> duration(75), duration(9.4)
    ('1m15s', '9s')
    """
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes}m{seconds_left:02d}s" if minutes else f"{seconds_left}s"


@dataclass(slots=True)
class TimeLeft:
    """The time that a run still takes: its steps left times the median of its latest steps.

    The first step of a launch takes 4 - 8 times as long as a later one, so it is only a bound:
    `text` gives it until the second has ended.

    >>> time_left = TimeLeft()
    >>> for now in (40.0, 45.0, 51.0, 56.0):
    ...     time_left.step_ended(now)
    >>> time_left.seconds(steps=10)
    50.0
    >>> time_left.text(steps=10)
    '50s'
    """

    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    _last: float | None = None
    _first_s: float | None = None

    def step_ended(self, now: float, *, took_s: float | None = None) -> None:
        """Record the end of a step, on any clock, and how long it took at most, if known."""
        if self._last is None:
            self._first_s = took_s
        else:
            self._durations.append(now - self._last)
        self._last = now

    def seconds(self, *, steps: int) -> float | None:
        """The time that `steps` more take; None before the second step has ended."""
        if not steps:
            return 0.0
        return statistics.median(self._durations) * steps if self._durations else None

    def text(self, *, steps: int) -> str:
        """The time that `steps` more take in words, e.g. "50s"; after the first step, "at most
        1m15s"."""
        seconds = self.seconds(steps=steps)
        if seconds is None and self._first_s is not None:
            return f"at most {duration(self._first_s * steps)}"
        return eta(seconds)


@dataclass(slots=True)
class WorkLeft:
    """The time that work of a known size still takes, by what its parts took so far.

    >>> work = WorkLeft(total=10, began=0.0)
    >>> work.add(4, now=8.0)
    >>> work.seconds(now=9.0)
    11.0
    """

    total: float
    began: float
    done: float = 0.0
    _last: float = 0.0

    def add(self, size: float, *, now: float) -> None:
        """Record that a part of the work has ended."""
        self.done += size
        self._last = now

    def seconds(self, *, now: float) -> float | None:
        """The time that the rest takes; None before the first part has ended."""
        if not self.done:
            return None
        each = (self._last - self.began) / self.done
        return max(0.0, each * (self.total - self.done) - (now - self._last))


def eta(seconds: float | None) -> str:
    """Format the time left.

    >>> eta(75.0), eta(None)
    ('1m15s', 'measuring')
    """
    return "measuring" if seconds is None else duration(seconds)
