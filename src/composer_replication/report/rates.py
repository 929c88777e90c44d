"""Mistakes per 100 calls over sessions, with an interval, and whether a later half differs.

    rate_of([(2, 40), (0, 31), (5, 60)])     # (mistakes, calls) of each session

Sessions are the units: the calls of one session are alike, so counting them as independent would
make every interval too short. The variance is that of a ratio of two totals over clusters (W. G.
Cochran, *Sampling Techniques*, third edition, section 6.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SessionCounts = tuple[int, int]
"""The mistakes and the calls of one session."""
Change = Literal["better", "worse", "unclear", "too short"]
MIN_SESSIONS = 5
"""Fewer sessions with a call give no interval, and no comparison."""
Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Mistakes per 100 calls; `low` and `high` are None below MIN_SESSIONS sessions with calls."""

    mistakes: int
    calls: int
    sessions: int
    low: float | None = None
    high: float | None = None

    @property
    def value(self) -> float:
        """Mistakes per 100 calls; 0.0 without any call."""
        return 100 * self.mistakes / self.calls if self.calls else 0.0


def rate_of(counts: Sequence[SessionCounts]) -> Rate:
    """The rate over sessions with its 95 % interval.

    >>> rate = rate_of([(1, 10)] * 8)
    >>> rate.value, round(rate.low, 1), round(rate.high, 1)
    (10.0, 3.1, 16.9)
    """
    used = [(mistakes, calls) for mistakes, calls in counts if calls]
    mistakes, calls, n = sum(m for m, _ in used), sum(c for _, c in used), len(used)
    rate = Rate(mistakes=mistakes, calls=calls, sessions=n)
    if n < MIN_SESSIONS:
        return rate
    half = Z95 * 100 * _standard_error(used)
    return Rate(
        mistakes=mistakes,
        calls=calls,
        sessions=n,
        low=max(0.0, rate.value - half),
        high=rate.value + half,
    )


def _standard_error(used: Sequence[SessionCounts]) -> float:
    """The error over sessions, but at least that of so many independent mistakes, of which there
    is one more than was seen: a half without any is not known to be free of them."""
    n, calls, mistakes = len(used), sum(c for _, c in used), sum(m for m, _ in used)
    squares = sum((m - mistakes / calls * c) ** 2 for m, c in used)
    return math.sqrt(max(squares * n / (n - 1), mistakes or 1)) / calls


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """The rate of the earlier and of the later half of the sessions, and what their difference
    says."""

    earlier: Rate
    later: Rate
    verdict: Change


def rate_change(dated: Sequence[tuple[float, SessionCounts]]) -> RateChange:
    """Compare the earlier half of the sessions with the later half; a single old session would
    leave halves of the time without any.

    `dated` are (time, counts) of each session. "better" and "worse" need an interval of the
    difference that excludes zero. "too short": less than a week in all, or fewer than MIN_SESSIONS
    sessions with calls in a half.
    """
    times = sorted(time for time, (_, calls) in dated if calls)
    middle = times[(len(times) - 1) // 2] if times else 0.0
    halves = (
        [counts for time, counts in dated if time <= middle],
        [counts for time, counts in dated if time > middle],
    )
    earlier, later = (rate_of(half) for half in halves)
    is_short = not times or times[-1] - times[0] < 7 * 86400
    if is_short or earlier.low is None or later.low is None:
        return RateChange(earlier=earlier, later=later, verdict="too short")
    error = math.hypot(*(_standard_error([c for c in half if c[1]]) for half in halves))
    difference = later.value - earlier.value
    verdict: Change = "unclear"
    if abs(difference) > Z95 * 100 * error:
        verdict = "better" if difference < 0 else "worse"
    return RateChange(earlier=earlier, later=later, verdict=verdict)
