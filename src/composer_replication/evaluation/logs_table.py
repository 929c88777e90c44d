"""evaluation_logs.json: how often the mistakes of the user's own logs recur, and the verdict.

    rows = {"before": forks, "after": forks, "placebo": forks}
    table = logs_table(rows, held=held, settings=config.evaluate, seed=seed)
    table["rows"][0]["recurrence"], table["paired"][0]["difference"], table["verdict"]["sentence"]

Every site counts once: its value is the share of its samples with an outcome. Intervals are 95 %
bootstrap intervals over sessions, since the sites of one session are not independent; differences
are paired over sites. If all sites have the same share, its bound comes from the rule of three over
sessions. An undecided message is neither a recurrence nor "ok"; it has a column of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.evaluation.held_out_sites import HeldOut
from composer_replication.evaluation.power import HALF, detectable, smallest_difference
from composer_replication.evaluation.stats import Interval, bootstrap_mean
from composer_replication.evaluation.table import AFTER, BEFORE, ORDER, PLACEBO, compared_rows
from composer_replication.rollouts.fork import Fork
from composer_replication.rollouts.static_check import OUTCOMES, Outcome

RECURRENCE = "recurrence"
METRICS: dict[str, Outcome] = {
    RECURRENCE: "same",
    **{outcome: outcome for outcome in OUTCOMES if outcome != "same"},
}
"""Measure -> the outcome whose share it reports."""
# upper 95 % bound of a count of which none was seen (Hanley and Lippman-Hand 1983)
_RULE_OF_THREE = 3.0
HOW_MEASURED = (
    "At each held-out mistake the student wrote the message itself, without a hint; a static check"
    " compares it with the mistake of the log. Nothing was run: a message that only execution could"
    " judge is undecided, which counts neither as a recurrence nor as a success."
)
INTERVALS = (
    "95 % intervals: bootstrap over sessions, paired over sites. They cover other sessions, not"
    " other seeds."
)


def plan_of(held: HeldOut) -> dict[str, Any]:
    """The sites and the smallest change that they can show: both are known before training."""
    n, clusters = len(held.sites), held.clusters
    kinds = Counter(held_site.site.kind for held_site in held.sites)
    return {
        "sites": n,
        "sessions": clusters,
        "repositories": held.repositories,
        "shared_repository": held.num_shared,
        "sessions_with_sites": held.num_sessions,
        "held_out_sessions": held.num_held_out_sessions,
        "training_sessions": held.num_training_sessions,
        "kinds": dict(sorted(kinds.items())),
        "left_out": dict(held.left_out),
        "smallest_difference": smallest_difference(n, clusters=clusters),
        "smallest_one_way": smallest_difference(n, clusters=clusters, discordant=0.0),
        "smallest_by_session": smallest_difference(clusters, clusters=clusters),
        "assumes": (
            f"80 % power, two-sided 5 %, {HALF:.0%} of the paired sites differ (Connor 1987);"
            " Student's t of the sessions for 1.96"
        ),
    }


def logs_table(
    rows: Mapping[str, Sequence[Fork]],
    *,
    held: HeldOut,
    settings: EvaluateSettings,
    seed: int,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The contents of evaluation_logs.json.

    Raises DataError without the rows "before" and "after", or if rows are not of the same sites.
    """
    missing = [name for name in (BEFORE, AFTER) if name not in rows]
    if missing:
        raise DataError(
            f"no messages of {missing[0]!r}",
            fix="let the student write before and after the training",
        )
    cluster = {held_site.site.id: held_site.cluster for held_site in held.sites}
    for name, forks in rows.items():
        _check_sites(name, forks, rows[AFTER], cluster)
    names = [
        *(name for name in ORDER if name in rows),
        *(name for name in rows if name not in ORDER),
    ]
    draw = {"cluster": cluster, "seed": stage_seed(seed, "logs"), "samples": settings.samples}
    paired = [
        _paired(a=a, left=rows[a], b=b, right=rows[b], metric=metric, **draw)
        for a, b in compared_rows(names)
        for metric in METRICS
    ]
    return {
        "rows": [_row(name, rows[name], **draw) for name in names],
        "paired": paired,
        "verdict": logs_verdict(paired, num_shared=held.num_shared),
        "plan": plan_of(held),
        "notes": [HOW_MEASURED, INTERVALS, *notes],
        "seed": seed,
        "samples_per_site": settings.log_samples,
        "temperature": settings.temperature,
        "max_new_tokens": settings.log_max_new_tokens,
    }


def logs_verdict(paired: Sequence[Mapping[str, Any]], *, num_shared: int = 0) -> dict[str, Any]:
    """The claim ("fewer", "more" or "nothing") with its sentence and reasons.

    "fewer": after - before and after - placebo both lie below zero, and the share of "ok" rose
    (after - before above zero). The last condition is there because a student that falls silent or
    writes unreadable calls makes no mistakes either. "more": both differences lie above zero.
    Nothing is claimed if any site (`num_shared` of them) is in a repository that was trained on.
    """
    pair_of = {(p["a"], p["b"], p["metric"]): p for p in paired}
    sides: list[int] = []
    reasons: list[str] = []
    # `sides` is compared by position below: the order is that of the conditions.
    for b, metric in ((BEFORE, RECURRENCE), (PLACEBO, RECURRENCE), (BEFORE, "ok")):
        pair = pair_of.get((AFTER, b, metric))
        label = f"{metric}: {AFTER} - {b}"
        if pair is None or pair["low"] is None:
            sides.append(0)
            why = "no interval, the sites are in fewer than two sessions"
            reasons.append(f"{label}: {'there is no such row' if pair is None else why}")
            continue
        side = 1 if pair["low"] > 0 else -1 if pair["high"] < 0 else 0
        sides.append(side)
        interval = f"{pair['difference']:+.3f} [{pair['low']:+.3f}, {pair['high']:+.3f}]"
        reasons.append(f"{label} = {interval} {'excludes' if side else 'includes'} zero")
    claim = "fewer" if sides == [-1, -1, 1] else "more" if sides[:2] == [1, 1] else "nothing"
    if num_shared:
        claim = "nothing"
        reasons.append(
            f"{num_shared} sites are held out by session alone: their repositories are trained on"
        )
    sentences = {
        "fewer": (
            "The mistakes of the held-out logs recur less often, by more than with the signals"
            " nulled; calls that pass the check replaced them."
        ),
        "more": (
            "The mistakes of the held-out logs recur more often, by more than with the signals"
            " nulled."
        ),
        "nothing": (
            "Null result: nothing is claimed. A claim needs after - before and after - placebo to"
            " exclude zero on the same side, for fewer recurrences also a rise in calls that pass"
            " the check, and sites held out by session and repository."
        ),
    }
    return {"claim": claim, "sentence": sentences[claim], "reasons": reasons}


def _check_sites(
    name: str, forks: Sequence[Fork], others: Sequence[Fork], cluster: Mapping[str, str]
) -> None:
    """Check that every row has the same held-out sites, each sampled equally often."""
    ours, theirs = (Counter(fork.site.id for fork in row) for row in (forks, others))
    if stray := sorted(ours.keys() - cluster.keys()):
        raise DataError(
            f"{name} was played at {stray[0]}, which is not held out",
            fix="judge a student at held-out sites alone",
        )
    if not ours or ours != theirs:
        raise DataError(
            f"{name} and {AFTER} did not write at the same sites, each as often",
            fix="evaluate both in one call",
        )


def _shares(forks: Sequence[Fork], outcome: Outcome) -> dict[str, float]:
    """The share of samples with an outcome, by site."""
    num_samples: Counter[str] = Counter(fork.site.id for fork in forks)
    num_with_outcome = Counter(fork.site.id for fork in forks if fork.checked.outcome == outcome)
    return {site: num_with_outcome[site] / count for site, count in num_samples.items()}


def _row(
    name: str, forks: Sequence[Fork], *, cluster: Mapping[str, str], seed: int, samples: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    for metric, outcome in METRICS.items():
        # The unit is the site, not the sample: samples at one site share their context.
        shares = _shares(forks, outcome)
        interval = bootstrap_mean(
            list(shares.values()), [cluster[site] for site in shares], seed=seed, resamples=samples
        )
        low, high = _widened(interval, list(shares.values()), least=0.0)
        row |= {
            "n": interval.n,
            "sessions": interval.clusters,
            metric: interval.mean,
            f"{metric}_low": low,
            f"{metric}_high": high,
        }
    row["samples"] = len(forks)
    row["reasons"] = dict(
        sorted(Counter(f"{fork.checked.outcome}: {fork.checked.reason}" for fork in forks).items())
    )
    kinds = sorted({fork.site.kind for fork in forks})
    row["kinds"] = {
        kind: _kind_shares([fork for fork in forks if fork.site.kind == kind]) for kind in kinds
    }
    return row


def _kind_shares(forks: Sequence[Fork]) -> dict[str, float]:
    shares = {metric: _shares(forks, outcome) for metric, outcome in METRICS.items()}
    return {
        "n": len(shares[RECURRENCE]),
        **{metric: sum(s.values()) / len(s) for metric, s in shares.items()},
    }


def _paired(
    *,
    a: str,
    left: Sequence[Fork],
    b: str,
    right: Sequence[Fork],
    metric: str,
    cluster: Mapping[str, str],
    seed: int,
    samples: int,
) -> dict[str, Any]:
    ours, theirs = _shares(left, METRICS[metric]), _shares(right, METRICS[metric])
    differences = [ours[site] - theirs[site] for site in ours]
    interval = bootstrap_mean(
        differences, [cluster[site] for site in ours], seed=seed, resamples=samples
    )
    low, high = _widened(interval, differences, least=-1.0)
    smallest = (
        None if low is None or high is None else detectable(low, high, clusters=interval.clusters)
    )
    entry = {
        "a": a,
        "b": b,
        "metric": metric,
        "difference": interval.mean,
        "low": low,
        "high": high,
    }
    return {**entry, "n": interval.n, "sessions": interval.clusters, "detectable": smallest}


def _widened(
    interval: Interval, values: Sequence[float], *, least: float
) -> tuple[float | None, float | None]:
    """The bounds, clipped to the possible range.

    If every site has the same value, the bootstrap interval is a point; the rule of three widens
    it, since sites with other values may exist.
    """
    if interval.low is None or interval.high is None:
        return None, None
    unseen = _RULE_OF_THREE / interval.clusters if len(set(values)) == 1 else 0.0
    return max(least, interval.low - unseen), min(1.0, interval.high + unseen)
