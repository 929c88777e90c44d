"""Means with intervals. Values that share a cluster (the sites of one session) are resampled together: they are not independent."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its bounds; `low` and `high` are None where fewer than two clusters leave no way to know.

    It is a 95 % interval for one mean: of twenty kinds without any effect, one is expected to exclude zero.
    Example: Interval(n=40, clusters=12, mean=0.31, low=0.12, high=0.52)
    """

    n: int
    clusters: int
    mean: float
    low: float | None
    high: float | None

    def excludes_up_to(self, threshold: float) -> bool:
        """Whether the whole interval lies above `threshold`; unknown bounds exclude nothing."""
        return self.low is not None and self.low > threshold


def bootstrap_mean(values: Sequence[float], clusters: Sequence[Hashable], *, seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean of the values with a 95 % interval by bootstrap over clusters; the same seed gives the same bounds.

    >>> bootstrap_mean([1.0, 1.0, 1.0], ["a", "b", "c"], seed=0)
    Interval(n=3, clusters=3, mean=1.0, low=1.0, high=1.0)
    >>> bootstrap_mean([1.0, 3.0], ["a", "a"], seed=0).low is None
    True

    Whole clusters are drawn with replacement and the mean is taken over the values they hold. Percentiles of few clusters are far too
    narrow (with two, they exclude the truth half of the time), so each bound is the wider of the percentile and of Student's t with
    the bootstrap's standard error, corrected by sqrt(k / (k - 1)) for k clusters (Hesterberg, arXiv 1411.5279).
    Raises ValueError without values, or where values and clusters differ in number.
    """
    if len(values) != len(clusters) or not values:
        raise ValueError(f"{len(values)} values in {len(clusters)} clusters")
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    sums = [(sum(group), len(group)) for group in groups.values()]
    mean, k = sum(values) / len(values), len(sums)
    if k < 2:
        return Interval(n=len(values), clusters=k, mean=mean, low=None, high=None)
    rng = random.Random(seed)
    means = []
    for _ in range(resamples):
        drawn = rng.choices(sums, k=k)
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    reach = student_t(k - 1) * math.sqrt(k / (k - 1)) * statistics.pstdev(means)
    low, high = means[int(0.025 * resamples)], means[min(resamples - 1, int(0.975 * resamples))]
    return Interval(n=len(values), clusters=k, mean=mean, low=min(low, mean - reach), high=max(high, mean + reach))


def student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, from a table up to 30 degrees of freedom and 1.96 + 2.46 / degrees beyond.

    >>> student_t(1), student_t(30), round(student_t(100), 3)
    (12.706, 2.042, 1.985)
    """
    return _T_975[degrees - 1] if degrees <= len(_T_975) else 1.96 + 2.46 / degrees
