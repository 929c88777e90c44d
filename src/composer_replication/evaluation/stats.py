"""Means with intervals. Values that share a cluster (the sites of one session) are resampled together: they are not independent."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its bounds; `low` and `high` are None where fewer than two clusters leave no way to know.

    With fewer than about ten clusters a bootstrap interval is too narrow; `clusters` is there to be read.
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


def bootstrap_mean(
    values: Sequence[float], clusters: Sequence[Hashable], *, seed: int, level: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Mean of the values with a percentile-bootstrap interval over clusters; the same seed gives the same bounds.

    >>> bootstrap_mean([1.0, 1.0, 1.0], ["a", "b", "c"], seed=0)
    Interval(n=3, clusters=3, mean=1.0, low=1.0, high=1.0)
    >>> bootstrap_mean([1.0, 3.0], ["a", "a"], seed=0).low is None
    True

    Whole clusters are drawn with replacement and the mean is taken over the values they hold. Raises ValueError without values
    or where values and clusters differ in number.
    """
    if len(values) != len(clusters) or not values:
        raise ValueError(f"{len(values)} values in {len(clusters)} clusters")
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value)
    sums = [(sum(group), len(group)) for group in groups.values()]
    mean = sum(values) / len(values)
    if len(sums) < 2:
        return Interval(n=len(values), clusters=len(sums), mean=mean, low=None, high=None)
    rng = random.Random(seed)
    means = []
    for _ in range(resamples):
        drawn = rng.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    cut = (1.0 - level) / 2.0
    low, high = means[int(cut * resamples)], means[min(resamples - 1, int((1.0 - cut) * resamples))]
    return Interval(n=len(values), clusters=len(sums), mean=mean, low=low, high=high)
