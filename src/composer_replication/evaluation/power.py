"""The smallest change that a number of sites can show, computed before training.

    smallest_difference(80, clusters=20)                    half of the sites change, either way
    smallest_difference(80, clusters=20, discordant=0.0)    all changes are in the same direction

Paired shares (Connor 1987, Biometrics 43:207-211): with n pairs, a share psi of them discordant and
a difference delta,

    n * delta^2 = (q * sqrt(psi) + z_80 * sqrt(psi - delta^2))^2

is 80 % power of a two-sided 5 % test. q is Student's t of the clusters less one, which the
intervals here use, in place of 1.96; psi is never below delta. Sites of one session that rise and
fall together count as one: the same formula with n = clusters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from composer_replication.evaluation.stats import student_t

Z_80 = 0.841621
"""The 80 % quantile of the normal distribution: the power."""
HALF = 0.5
"""Share of discordant sites to assume if none is known: two students that disagree at random."""
_STEPS = 60


def smallest_difference(num_sites: int, *, clusters: int, discordant: float = HALF) -> float | None:
    """The difference of two shares that is found with 80 % power.

    None if there are fewer than two clusters or sites, or if no difference could be found.

    >>> smallest_difference(80, clusters=1) is None, smallest_difference(2, clusters=2) is None
    (True, True)
    >>> round(smallest_difference(1000, clusters=1000, discordant=0.5), 4)
    0.0626
    """
    if clusters < 2 or num_sites < 2:
        return None
    q = student_t(clusters - 1)

    def enough(delta: float) -> bool:
        psi = max(discordant, delta)
        return (
            num_sites * delta * delta
            >= (q * math.sqrt(psi) + Z_80 * math.sqrt(max(0.0, psi - delta * delta))) ** 2
        )

    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detectable(low: float, high: float, *, clusters: int) -> float:
    """The difference that an interval of this width finds with 80 % power.

    It is the half width of the interval plus z_80 standard errors.

    >>> round(detectable(-0.1, 0.1, clusters=1000), 3)
    0.143
    """
    half = (high - low) / 2
    return half * (1 + Z_80 / student_t(clusters - 1))


def values_needed(values: Sequence[float], *, above: float = 0.0) -> int | None:
    """The number of independent values with this mean and spread that show, with 80 % power, that
    the mean lies above a threshold; None if it does not, or if there are fewer than two values.

    The smallest n with n >= ((q + z_80) s / (mean - above))^2, where q is Student's t with n - 1
    degrees of freedom. Values of one session that rise and fall together count as fewer.

    >>> values_needed([1.0, 2.0, 3.0]), values_needed([-1.0, 0.5, 0.8]), values_needed([1.0, -1.0])
    (5, 732, None)
    """
    if len(values) < 2 or (distance := statistics.fmean(values) - above) <= 0:
        return None
    ratio = statistics.stdev(values) / distance
    n = max(2, math.ceil(((student_t(10**9) + Z_80) * ratio) ** 2))
    while n < ((student_t(n - 1) + Z_80) * ratio) ** 2:
        n += 1
    return n
