"""Means with 95 % confidence intervals, for everything that an evaluation reports.

The sites of one session, or the episodes of one task, are not independent. So whole clusters are
resampled (cluster bootstrap), and a mean over training seeds gets Student's t over the seeds:

    bootstrap_mean(lifts, sessions, seed=7)      # values in clusters
    Resamples.of(num_tasks, seed=7).mean(wins)   # several measures on the same bootstrap samples
    mean_over_groups(means)                      # one value per training seed
    wilson(9, 10)                                # a share of independent trials
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
_Z_975 = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""
_T_975 = (
    *(
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.201,
        2.179,
        2.160,
        2.145,
        2.131,
    ),
    *(
        2.120,
        2.110,
        2.101,
        2.093,
        2.086,
        2.080,
        2.074,
        2.069,
        2.064,
        2.060,
        2.056,
        2.052,
        2.048,
        2.045,
        2.042,
    ),
)
"""The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The mean of `n` values in `clusters` clusters, with its 95 % bounds.

    The bounds are None if they cannot be estimated, e.g. from a single cluster. Nothing is
    corrected for multiple comparisons: of twenty kinds without an effect, one interval is expected
    to exclude zero.

    >>> Interval(n=40, clusters=12, mean=0.31, low=0.12, high=0.52).excludes_up_to(0.1)
    True
    """

    n: int
    clusters: int
    mean: float
    low: float | None
    high: float | None

    def excludes_up_to(self, threshold: float) -> bool:
        """Whether the whole interval lies above `threshold`; False if the bounds are unknown."""
        return self.low is not None and self.low > threshold


def bootstrap_mean(
    values: Sequence[float], clusters: Sequence[Hashable], *, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """The mean of all values, with a 95 % interval by bootstrap over clusters; `clusters[i]` is the
    cluster of `values[i]`.

    >>> bootstrap_mean([1.0, 1.0, 1.0], ["a", "b", "c"], seed=0)
    Interval(n=3, clusters=3, mean=1.0, low=1.0, high=1.0)
    >>> bootstrap_mean([1.0, 3.0], ["a", "a"], seed=0).low is None
    True

    A bootstrap sample draws as many whole clusters as there are, with replacement; the same seed
    gives the same bounds. Percentile intervals of few clusters are far too narrow (with two, they
    exclude the truth half of the time). So each bound is the wider of the percentile and of
    Student's t with the bootstrap's standard error, times sqrt(k / (k - 1)) for k clusters
    (Hesterberg, arXiv 1411.5279). Raises ValueError without values, or if values and clusters
    differ in number.
    """
    if len(values) != len(clusters) or not values:
        raise ValueError(f"{len(values)} values in {len(clusters)} clusters")
    values_of: dict[Hashable, list[float]] = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        values_of[cluster].append(value)
    # a resampled mean needs only the sum and the size of each cluster
    cluster_sums = [(sum(members), len(members)) for members in values_of.values()]
    mean, k = sum(values) / len(values), len(cluster_sums)
    if k < 2:
        return Interval(n=len(values), clusters=k, mean=mean, low=None, high=None)
    rng = random.Random(seed)
    means: list[float] = []
    for _ in range(resamples):
        drawn = rng.choices(cluster_sums, k=k)
        means.append(sum(total for total, _ in drawn) / sum(size for _, size in drawn))
    low, high = _bounds(means, mean, clusters=k)
    return Interval(n=len(values), clusters=k, mean=mean, low=low, high=high)


def mean_over_groups(means: Sequence[float]) -> Interval:
    """The mean of one value per group (e.g. a training seed) with its 95 % Student's t interval.

    >>> interval = mean_over_groups([0.2, 0.3, 0.4])
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.052, 0.548)
    >>> mean_over_groups([0.2]).low is None
    True

    mean +- t(k - 1) * s / sqrt(k), with s the standard deviation of the k values. It covers both
    sources of variance, the training seed and the sampled tasks, because each seed's value varies
    with its tasks too. With few groups it is wide.
    """
    k, mean = len(means), statistics.fmean(means)
    if k < 2:
        return Interval(n=k, clusters=k, mean=mean, low=None, high=None)
    reach = student_t(k - 1) * statistics.stdev(means) / math.sqrt(k)
    return Interval(n=k, clusters=k, mean=mean, low=mean - reach, high=mean + reach)


@dataclass(frozen=True, slots=True)
class Resamples:
    """Bootstrap samples of tasks, drawn once, so that all measures of a table, and differences
    between its rows, use the same samples. Each of `draws` is one sample, as indices of tasks.

    >>> draws = Resamples.of(3, seed=0, samples=200)
    >>> draws.mean([1.0, 1.0, 1.0])
    Interval(n=3, clusters=3, mean=1.0, low=1.0, high=1.0)
    >>> draws.ratio([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).mean
    0.5

    Values are given in the order of the tasks, one per task. The bounds are those of
    `bootstrap_mean` with each task as a cluster.
    """

    num_tasks: int
    draws: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, num_tasks: int, *, seed: int, samples: int = RESAMPLES) -> Resamples:
        """Draw `samples` times `num_tasks` tasks with replacement."""
        return cls.within((num_tasks,), seed=seed, samples=samples)

    @classmethod
    def within(cls, sizes: Sequence[int], *, seed: int, samples: int = RESAMPLES) -> Resamples:
        """Resample within blocks (a stratified bootstrap): the tasks are consecutive blocks of
        these sizes, and every sample draws as many tasks from a block as it has.

        >>> sorted(Resamples.within((1, 1), seed=0, samples=200).draws)[0]
        (0, 1)
        """
        total = sum(sizes)
        ends = itertools.accumulate(sizes)
        blocks = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        rng = random.Random(f"resamples:{seed}:{total}")
        drawn = (
            tuple(task for block in blocks for task in rng.choices(block, k=len(block)))
            for _ in range(samples)
        )
        # with a single task every sample is the same: no draws, so the bounds are None
        return cls(total, tuple(drawn) if total > 1 else ())

    def mean(self, values: Sequence[float]) -> Interval:
        """The mean of one value per task."""
        return self.ratio(values, [1.0] * self.num_tasks)

    def ratio(self, above: Sequence[float], below: Sequence[float]) -> Interval:
        """The sum of `above` over the sum of `below`, e.g. valid calls over calls, one value of
        each per task.

        The bounds are None if the denominator of some sample is zero. Raises ValueError if the
        whole denominator is zero, or if there is not one value per task.
        """
        n, total = self.num_tasks, sum(below)
        if len(above) != n or len(below) != n or total == 0:
            raise ValueError(
                f"{len(above)} values over {len(below)} that sum to {total}, for {n} tasks"
            )
        mean = sum(above) / total
        # map rather than a generator: samples x tasks additions run in a C loop
        numerators = [sum(map(above.__getitem__, drawn)) for drawn in self.draws]
        denominators = [sum(map(below.__getitem__, drawn)) for drawn in self.draws]
        if not self.draws or 0 in denominators:
            return Interval(n=n, clusters=n, mean=mean, low=None, high=None)
        ratios = [over / under for over, under in zip(numerators, denominators, strict=True)]
        low, high = _bounds(ratios, mean, clusters=n)
        return Interval(n=n, clusters=n, mean=mean, low=low, high=high)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share of independent trials (Wilson 1927).

    Unlike the normal approximation it stays within [0, 1] and has a width at a share of 0 or 1.

    >>> [round(bound, 3) for bound in wilson(10, 10)]
    [0.722, 1.0]

    Raises ValueError unless 0 <= successes <= n and n > 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n}")
    share, square = successes / n, _Z_975 * _Z_975
    middle = (share + square / (2 * n)) / (1 + square / n)
    reach = _Z_975 / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    # at 0 and n the formula gives 0 and 1 up to rounding: return them exactly
    return middle - reach if successes else 0.0, middle + reach if successes < n else 1.0


def _bounds(means: Sequence[float], mean: float, *, clusters: int) -> tuple[float, float]:
    """The 95 % bounds from the means of the bootstrap samples: on each side the wider of percentile
    and Student's t, as in `bootstrap_mean`."""
    ordered, k = sorted(means), clusters
    reach = student_t(k - 1) * math.sqrt(k / (k - 1)) * statistics.pstdev(ordered)
    low, high = (
        ordered[int(0.025 * len(ordered))],
        ordered[min(len(ordered) - 1, int(0.975 * len(ordered)))],
    )
    return min(low, mean - reach), max(high, mean + reach)


def student_t(degrees: int) -> float:
    """The 97.5 % quantile of Student's t.

    From a table up to 30 degrees of freedom; above, z + (z^3 + z) / (4 * degrees), the first terms
    of its expansion, with 2.46 in place of 2.37 so that it meets the table at 30.

    >>> student_t(1), student_t(30), round(student_t(100), 3)
    (12.706, 2.042, 1.985)
    """
    return _T_975[degrees - 1] if degrees <= len(_T_975) else 1.96 + 2.46 / degrees
