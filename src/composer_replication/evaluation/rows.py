"""From episodes to numbers: one row per student, and paired differences over the same tasks.

    evaluation_row("after", episodes, targeted=kinds, draws=draws, families=metadata.families)
    -> {"name": "after", "n": 192, "success": 0.61, "success_low": 0.54, "success_high": 0.68, ...}
    paired_differences("after", a, "before", b, targeted=kinds, seed=7, families=families)
    -> [{"a": "after", "b": "before", "difference": 0.27, "low": 0.19, "high": 0.35, "n": 192},
        {..., "metric": "A_made"}, ...]

Intervals are 95 %: Wilson for shares of episodes, bootstrap over tasks for everything else.
The environment names the families of mistakes (EnvMetadata); each is reported as a share of the
episodes in which that mistake was possible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import DataError
from composer_replication.evaluation.recurrence import mistakes_of
from composer_replication.evaluation.stats import (
    RESAMPLES,
    Interval,
    Resamples,
    mean_over_groups,
    wilson,
)
from composer_replication.evaluation.success import EpisodeResult, is_success
from composer_replication.rollouts.envs.env import MistakeFamily

SUCCESS, TARGETED, OTHER = "success", "targeted_mistakes_per_episode", "other_mistakes_per_episode"
# upper 95 % bound of a count of which none was seen (Hanley and Lippman-Hand 1983)
_RULE_OF_THREE = 3.0


def evaluation_row(
    name: str,
    episodes: Sequence[EpisodeResult],
    *,
    targeted: Collection[str],
    draws: Resamples,
    families: Sequence[MistakeFamily],
) -> dict[str, Any]:
    """Every number of one student; raises DataError for a task that was played twice.

    `draws` holds bootstrap samples over as many tasks as there are episodes.
    """
    _check_tasks(name, episodes)
    n = len(episodes)
    sessions = [episode.joined_session for episode in episodes]
    mistakes = [mistakes_of(session, targeted=targeted) for session in sessions]
    calls = [float(sum(len(turn.calls) for turn in session.turns)) for session in sessions]
    messages = [
        float(sum(turn.role == "assistant" for turn in session.turns)) for session in sessions
    ]
    entropies = [
        episode.entropy * episode.tokens if episode.entropy is not None else 0.0
        for episode in episodes
    ]
    kinds = sum((Counter(c.kinds) for c in mistakes), Counter[str]())
    return {
        "name": name,
        "n": n,
        **_share(SUCCESS, [is_success(episode) for episode in episodes]),
        **_per_episode(TARGETED, [float(c.targeted) for c in mistakes], draws),
        **_per_episode(OTHER, [float(c.other) for c in mistakes], draws),
        **_call_rate(
            "valid_call_rate", measure="valid_calls", episodes=episodes, calls=calls, draws=draws
        ),
        **_call_rate(
            "changing_call_rate",
            measure="changing_calls",
            episodes=episodes,
            calls=calls,
            draws=draws,
        ),
        **_ratio("entropy", entropies, [float(episode.tokens) for episode in episodes], draws),
        **_interval("length", draws.mean([float(episode.tokens) for episode in episodes])),
        **_interval("turns", draws.mean(messages)),
        "finished": sum(episode.ended == "done" for episode in episodes) / n,
        "families": {
            key: value for family in families for key, value in _family(family, episodes).items()
        },
        "cells": _groups(episodes, partial(cell, families=families)),
        "kinds": _groups(episodes, lambda episode: episode.kind),
        "mistakes": {kind: kinds[kind] / n for kind in sorted(kinds)},
        **_hacks(episodes),
    }


def paired_differences(
    a_name: str,
    a: Sequence[EpisodeResult],
    b_name: str,
    b: Sequence[EpisodeResult],
    *,
    targeted: Collection[str],
    seed: int,
    families: Sequence[MistakeFamily],
    samples: int = RESAMPLES,
    block: Callable[[EpisodeResult], str] = lambda played: "",
) -> list[dict[str, Any]]:
    """The differences a - b over shared tasks: success first, without "metric", then each measure.

    Tasks are resampled within their `block`, e.g. the training seed; by default all tasks form one
    block. With several blocks, "by_block" holds the difference of each block, "tasks" and "blocks"
    are the two intervals (resampled tasks; Student's t over blocks), and "low" and "high" are the
    wider bounds of the two, so that a value outside them is excluded by both.

    A family is compared on the tasks in which its mistake was possible for both students. Measures
    of mistakes also have the ratio a / b. Raises DataError unless both played the same tasks once.
    """
    _check_tasks(a_name, a)
    _check_tasks(b_name, b)
    ours, theirs = {p.task_id: p for p in a}, {p.task_id: p for p in b}
    if ours.keys() != theirs.keys():
        num_unshared = len(ours.keys() ^ theirs.keys())
        problem = (
            f"{a_name} and {b_name} did not play the same tasks: {num_unshared} were played by"
            " one of them only"
        )
        raise DataError(problem, fix="play both with the same seed, split and number of tasks")
    pairs = [
        (ours[task_id], theirs[task_id])
        # by block first: `Resamples.within` takes blocks of neighbours
        for task_id in sorted(ours, key=lambda task_id: (block(ours[task_id]), task_id))
    ]
    values: dict[str, Callable[[EpisodeResult], float]] = {
        SUCCESS: lambda p: float(is_success(p)),
        TARGETED: lambda p: float(mistakes_of(p.joined_session, targeted=targeted).targeted),
        OTHER: lambda p: float(mistakes_of(p.joined_session, targeted=targeted).other),
    }
    entries: list[dict[str, Any]] = []
    # One set of draws for all metrics, so that they move together; a family has its own, as it is
    # compared on fewer tasks.
    all_draws = _resample_pairs(pairs, block, seed=stage_seed(seed, "paired"), samples=samples)
    for metric, value in values.items():
        left, right = [value(x) for x, _ in pairs], [value(y) for _, y in pairs]
        blocks = [block(x) for x, _ in pairs]
        entry = _difference(
            a_name, b=b_name, metric=metric, left=left, right=right, draws=all_draws, blocks=blocks
        )
        entries.append(
            entry | (_ratio_entry(left, right, all_draws, blocks) if metric != SUCCESS else {})
        )
    for family in families:
        open_pairs = [
            (x, y) for x, y in pairs if x.measures[family.open] and y.measures[family.open]
        ]
        if len(open_pairs) > 1:
            draws = _resample_pairs(
                open_pairs, block, seed=stage_seed(seed, f"paired:{family.name}"), samples=samples
            )
            blocks = [block(x) for x, _ in open_pairs]
            left, right = _columns(open_pairs, family.made)
            entries.append(
                _difference(
                    a_name,
                    b=b_name,
                    metric=family.made,
                    left=left,
                    right=right,
                    draws=draws,
                    blocks=blocks,
                )
            )
    return [entry for entry in entries if entry["low"] is not None]


def cell(episode: EpisodeResult, *, families: Sequence[MistakeFamily]) -> str:
    """The families of mistakes that a task makes possible, e.g. "A", "A+B" or "none".

    Families that depend on the course of the episode are left out.
    """
    possible = [f.name for f in families if f.set_by_task and episode.measures[f.open]]
    return "+".join(possible) or "none"


def _check_tasks(name: str, episodes: Sequence[EpisodeResult]) -> None:
    if not episodes:
        raise DataError(f"{name} played no task", fix="set evaluate.tasks")
    counts = Counter(episode.task_id for episode in episodes)
    twice = [task_id for task_id, count in counts.items() if count > 1]
    if twice:
        raise DataError(
            f"{name} played {twice[0]} {counts[twice[0]]} times", fix="play each task once"
        )


def _resample_pairs(
    pairs: Sequence[tuple[EpisodeResult, EpisodeResult]],
    block: Callable[[EpisodeResult], str],
    *,
    seed: int,
    samples: int,
) -> Resamples:
    """Bootstrap samples of pairs; `pairs` must be sorted by block."""
    return Resamples.within(
        list(Counter(block(x) for x, _ in pairs).values()), seed=seed, samples=samples
    )


def _columns(
    pairs: Sequence[tuple[EpisodeResult, EpisodeResult]], measure: str
) -> tuple[list[float], list[float]]:
    return [x.measures[measure] for x, _ in pairs], [y.measures[measure] for _, y in pairs]


def _difference(
    a: str,
    *,
    b: str,
    metric: str,
    left: Sequence[float],
    right: Sequence[float],
    draws: Resamples,
    blocks: Sequence[str],
) -> dict[str, Any]:
    differences = [x - y for x, y in zip(left, right, strict=True)]
    interval, metric_entry = (
        draws.mean(differences),
        {} if metric == SUCCESS else {"metric": metric},
    )
    low, high = interval.low, interval.high
    by_block: dict[str, Any] = {}
    if low is not None and high is not None:
        largest = math.inf if metric in (TARGETED, OTHER) else 1.0
        # all differences are equal, so the bootstrap interval is a point: apply the rule of three
        unseen = _RULE_OF_THREE / len(differences) if len(set(differences)) == 1 else 0.0
        low, high = max(-largest, low - unseen), min(largest, high + unseen)
        means = {
            name: sum(part) / len(part) for name, part in _by_block(differences, blocks).items()
        }
        by_block = _wider_bounds(low, high, means, bounds=(-largest, largest))
    return {
        "a": a,
        "b": b,
        **metric_entry,
        "difference": interval.mean,
        "low": low,
        "high": high,
        "n": interval.n,
        **by_block,
    }


def _by_block(values: Sequence[float], blocks: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for value, name in zip(values, blocks, strict=True):
        found.setdefault(name, []).append(value)
    return found


def _wider_bounds(
    low: float, high: float, means: Mapping[str, float], *, bounds: tuple[float, float]
) -> dict[str, Any]:
    """The interval over tasks, the one over blocks, and the wider bounds; empty for one block.

    The interval over blocks is Student's t around their mean, clipped to `bounds`.
    """
    t_interval = mean_over_groups(list(means.values()))
    if t_interval.low is None or t_interval.high is None:
        return {}
    least, greatest = max(bounds[0], t_interval.low), min(bounds[1], t_interval.high)
    return {
        "low": min(low, least),
        "high": max(high, greatest),
        "by_block": dict(means),
        "tasks": [low, high],
        "blocks": [least, greatest],
    }


def _ratio_entry(
    left: Sequence[float], right: Sequence[float], draws: Resamples, blocks: Sequence[str]
) -> dict[str, float | None]:
    """left / right with its interval; empty if the sum of `right` is zero.

    The bounds are None if a resampled sum of `right` is zero. With several blocks they are the
    wider bounds of both intervals, as in a difference.
    """
    if not sum(right):
        return {}
    ratio = draws.ratio(left, right)
    high = ratio.high
    if high is not None and not sum(left):  # a count of zero does not mean a rate of zero
        high = _RULE_OF_THREE / sum(right)
    low = None if ratio.low is None else max(0.0, ratio.low)
    # A block in which the second row counts nothing has no ratio: the interval over tasks stands.
    left_blocks, right_blocks = _by_block(left, blocks), _by_block(right, blocks)
    if low is not None and high is not None and all(map(sum, right_blocks.values())):
        wider = _wider_bounds(
            low,
            high,
            {name: sum(left_blocks[name]) / sum(right_blocks[name]) for name in right_blocks},
            bounds=(0.0, math.inf),
        )
        low, high = wider.get("low", low), wider.get("high", high)
    return {"ratio": ratio.mean, "ratio_low": low, "ratio_high": high}


def _share(name: str, hits: Sequence[bool]) -> dict[str, float]:
    low, high = wilson(sum(hits), len(hits))
    return {name: sum(hits) / len(hits), f"{name}_low": low, f"{name}_high": high}


def _interval(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _per_episode(name: str, counts: Sequence[float], draws: Resamples) -> dict[str, float | None]:
    """A mean count with its bounds, clipped at zero; the rule of three bounds a count of zero."""
    bounds = _interval(name, draws.mean(counts))
    low, high = bounds[f"{name}_low"], bounds[f"{name}_high"]
    if low is not None and high is not None:
        bounds |= {
            f"{name}_low": max(0.0, low),
            f"{name}_high": high if sum(counts) else _RULE_OF_THREE / len(counts),
        }
    return bounds


def _ratio(
    name: str, above: Sequence[float], below: Sequence[float], draws: Resamples
) -> dict[str, float | None]:
    """A ratio of sums over all episodes; None if the denominator is zero."""
    return _interval(name, draws.ratio(above, below)) if sum(below) else {name: None}


def _within_one(share: Mapping[str, float | None]) -> dict[str, float | None]:
    """A share of calls and its bounds, clipped to 0 ... 1."""
    return {
        key: None if value is None else min(1.0, max(0.0, value)) for key, value in share.items()
    }


def _call_rate(
    name: str,
    *,
    measure: str,
    episodes: Sequence[EpisodeResult],
    calls: Sequence[float],
    draws: Resamples,
) -> dict[str, float | None]:
    """A share of all calls; None if the environment does not count the measure."""
    if not all(measure in episode.measures for episode in episodes):
        return {name: None}
    return _within_one(
        _ratio(name, [episode.measures[measure] for episode in episodes], calls, draws)
    )


def _family(family: MistakeFamily, episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    is_made = [
        episode.measures[family.made] > 0 for episode in episodes if episode.measures[family.open]
    ]
    return {f"{family.name}_n": len(is_made), **(_share(family.made, is_made) if is_made else {})}


def _hacks(episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    """The number of episodes in which a judge saw an attempt to cheat, and by kind; {} if no judge
    looked for any."""
    if not any("hack_attempts" in episode.measures for episode in episodes):
        return {}
    tried = [{text.partition(":")[0] for text in episode.attempts} for episode in episodes]
    counts = Counter(kind for kinds in tried for kind in kinds)
    return {
        "hacked": sum(map(bool, tried)),
        **({"hacks": {kind: counts[kind] for kind in sorted(counts)}} if counts else {}),
    }


def _groups(
    episodes: Sequence[EpisodeResult], key: Callable[[EpisodeResult], Hashable]
) -> dict[str, float]:
    """Success and number of episodes by group: {"set": 0.4, "set_n": 70, ...}."""
    groups: dict[str, list[bool]] = {}
    for episode in episodes:
        groups.setdefault(str(key(episode)), []).append(is_success(episode))
    shares: dict[str, float] = {}
    for name in sorted(groups):
        shares |= {**_share(name, groups[name]), f"{name}_n": len(groups[name])}
    return shares
