"""Bootstrap over clusters: it is seeded, and it covers the truth in cases in which an interval over
single values does not."""

from __future__ import annotations

import random

import pytest

from composer_replication.evaluation.stats import (
    Resamples,
    bootstrap_mean,
    mean_over_groups,
    student_t,
    wilson,
)


def test_the_same_seed_gives_the_same_bounds_around_the_mean() -> None:
    values, clusters = [0.1, 0.5, -0.2, 0.9, 0.4, 0.3], ["a", "a", "b", "c", "d", "d"]
    estimate = bootstrap_mean(values, clusters, seed=3)
    assert (
        estimate
        == bootstrap_mean(values, clusters, seed=3)
        != bootstrap_mean(values, clusters, seed=4)
    )
    assert (
        estimate.low is not None
        and estimate.high is not None
        and estimate.low < estimate.mean < estimate.high
    )
    assert (estimate.n, estimate.clusters, estimate.mean) == (6, 4, pytest.approx(2.0 / 6))


def test_one_cluster_says_nothing() -> None:
    estimate = bootstrap_mean([1.0, 2.0], ["a", "a"], seed=0)
    assert (estimate.low, estimate.high) == (None, None) and not estimate.excludes_up_to(-100.0)


def test_a_threshold_is_passed_by_the_whole_interval() -> None:
    interval = bootstrap_mean([1.0, 1.2, 1.4], ["a", "b", "c"], seed=0)
    assert interval.excludes_up_to(0.5) and not interval.excludes_up_to(1.2)
    assert not bootstrap_mean([0.0, 0.0], ["a", "b"], seed=0).excludes_up_to(0.0)


def test_clusters_are_needed_for_the_interval_to_cover() -> None:
    """20 sessions of 8 sites that move together: by session about 95 % of intervals hold the truth,
    by site far fewer."""
    rng = random.Random(1)
    covered = {"session": 0, "site": 0}
    for trial in range(120):
        values, sessions = [], []
        for session in range(20):
            shift = rng.gauss(0, 1)
            values += [shift + rng.gauss(0, 0.3) for _ in range(8)]
            sessions += [session] * 8
        for name, clusters in (("session", sessions), ("site", range(len(values)))):
            interval = bootstrap_mean(values, list(clusters), seed=trial, resamples=200)
            assert interval.low is not None and interval.high is not None
            covered[name] += interval.low <= 0.0 <= interval.high
    assert covered["session"] >= 0.86 * 120 and covered["site"] <= 0.7 * 120


@pytest.mark.parametrize("k", [2, 3, 5, 9])
def test_few_clusters_still_cover(k: int) -> None:
    """Percentiles alone would exclude the truth half of the time with two clusters, a quarter of it
    with three."""
    rng, covered = random.Random(k), 0
    for trial in range(150):
        interval = bootstrap_mean(
            [rng.gauss(0, 1) for _ in range(k)], list(range(k)), seed=trial, resamples=200
        )
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 0.0 <= interval.high
    assert covered >= 0.88 * 150


def test_percentiles_of_rare_values_are_those_of_95_percent() -> None:
    """Five of a thousand: the number of them that is drawn is Poisson's, whose 97.5 % quantile is
    10. Student's t alone would say 9.4."""
    estimate = bootstrap_mean([1.0] * 5 + [0.0] * 995, range(1000), seed=1)
    assert estimate.high is not None and estimate.high >= 0.0099


def test_the_interval_over_groups_has_one_degree_of_freedom_less_than_groups() -> None:
    """t of 4 degrees is 2.776 (any table): five values with a deviation of 1 have a reach of 2.776
    / sqrt(5)."""
    estimate = mean_over_groups([-1.0, -1.0, 0.0, 1.0, 1.0])
    assert (estimate.mean, estimate.low, estimate.high) == (
        0.0,
        pytest.approx(-2.776 / 5**0.5),
        pytest.approx(2.776 / 5**0.5),
    )
    assert [student_t(n) for n in (1, 2, 4, 30)] == [12.706, 4.303, 2.776, 2.042]
    assert mean_over_groups([0.2]).low is None


def test_nothing_to_average_is_an_error() -> None:
    for values, clusters in (([], []), ([1.0], [])):
        with pytest.raises(ValueError, match="clusters"):
            bootstrap_mean(values, clusters, seed=0)


def test_shared_draws_give_the_bounds_of_the_bootstrap() -> None:
    rng = random.Random(2)
    values = [rng.gauss(0.3, 1) for _ in range(60)]
    shared, direct = (
        Resamples.of(60, seed=5).mean(values),
        bootstrap_mean(values, range(60), seed=5),
    )
    assert shared.mean == pytest.approx(direct.mean)
    assert shared.low == pytest.approx(direct.low, abs=0.05) and shared.high == pytest.approx(
        direct.high, abs=0.05
    )
    assert Resamples.of(60, seed=5).mean(values) == shared != Resamples.of(60, seed=6).mean(values)


def test_a_ratio_is_of_sums_and_unknown_where_a_sample_may_hold_nothing() -> None:
    draws = Resamples.of(40, seed=1, samples=400)
    above, below = [float(i % 2) for i in range(40)], [2.0] * 40
    estimate = draws.ratio(above, below)
    assert (
        estimate.mean == 0.25
        and estimate.low is not None
        and estimate.low < 0.25 < (estimate.high or 0)
    )
    rare = draws.ratio(above, [1.0] + [0.0] * 39)
    assert (rare.mean, rare.low, rare.high) == (20.0, None, None)
    assert Resamples.of(1, seed=1).mean([3.0]).low is None
    for wrong in ((above, [0.0] * 40), (above[1:], below), (above, below[1:])):
        with pytest.raises(ValueError):
            draws.ratio(*wrong)


def test_the_wilson_interval_is_the_published_one() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for successes, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(20, 20)[1] == 1.0
    with pytest.raises(ValueError):
        wilson(1, 0)
