"""From trained arms to one JSON: play every student on fresh tasks and pool its episodes over the
seeds.

    seed = evaluation_seed_of(31415, level=1, seed=7)
    students = play(players, settings=EvaluateSettings(tasks=192), seed=seed, workers=2)
    level_numbers(episodes, settings=settings, seed=31415)    -> {"rows": [...], "paired": [...]}

There are two uncertainties: other tasks, and other seeds of the training. Each has an interval:
tasks resampled within seeds, and Student's t over the values of the seeds. "low" and "high" of an
entry are the wider bounds of both, so a claim needs both. The JSON also holds the value of each
seed and, as one bit per episode, every outcome, so that anyone can compute another interval. No
episode that was played before the evaluation is used.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from composer_replication.cli.demo_settings import AFTER
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.evaluation.players import Player, PlayerEpisodes, play_one
from composer_replication.evaluation.rows import SUCCESS, evaluation_row, paired_differences
from composer_replication.evaluation.stats import Resamples, mean_over_groups
from composer_replication.evaluation.success import EpisodeResult, is_success
from composer_replication.workshop.workshop_tasks import METADATA

from .arms import ARMS, BEFORE, seeds_of
from .sections import QUESTIONS

Episodes = Mapping[str, Mapping[int, Sequence[EpisodeResult]]]
"""Row -> seed of the training -> the episodes of that student."""
PLACEBO, SINGLE = "placebo", ("policy", "hint", "preference")


def evaluation_seed_of(evaluation_seed: int, *, level: int, seed: int) -> int:
    """The seed of the tasks; each level and seed of the training gets other tasks."""
    return stage_seed(evaluation_seed, f"evidence:{level}:{seed}")


def play(
    players: Sequence[Player], *, settings: EvaluateSettings, seed: int, workers: int
) -> list[PlayerEpisodes]:
    """Play the same tasks with every player.

    Two rows may have the same weights here, because a health rule may have restored the start.
    """
    play_player = partial(play_one, settings=settings, limits=players[0].config.rollouts, seed=seed)
    # Spawn, because a fork of a process that has used PyTorch's threads may hang.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(play_player, players))


def check_arms(players: Mapping[str, Player], stopped: Mapping[str, str]) -> None:
    """Raise DataError if the arms began from different weights, or if a control has another number
    of steps than its arm (unless a rule stopped one of them)."""
    start_hashes = {player.start_sha256 for player in players.values()}
    if len(start_hashes) > 1:
        raise DataError(
            f"the arms began from {len(start_hashes)} different students",
            fix="start over with --fresh",
        )
    for name, player in players.items():
        reference = ARMS[name].like
        if (
            reference in players
            and not stopped[name]
            and not stopped[reference]
            and player.steps != players[reference].steps
        ):
            problem = f"{name} has {player.steps} steps, {reference} has {players[reference].steps}"
            raise DataError(problem, fix="start over with --fresh")


def block_of(played: EpisodeResult) -> str:
    """The seed of the training whose tasks these are."""
    return played.task_id.split("/", 1)[0]


def pooled(by_seed: Mapping[int, Sequence[EpisodeResult]]) -> list[EpisodeResult]:
    """The episodes of all seeds, in blocks; a task of one block counts as different from every task
    of another, even if their texts are equal."""
    return [
        replace(p, task_id=f"{seed:09d}/{p.task_id}")
        for seed in sorted(by_seed)
        for p in by_seed[seed]
    ]


def pooled_row(
    name: str,
    by_seed: Mapping[int, Sequence[EpisodeResult]],
    *,
    settings: EvaluateSettings,
    seed: int,
) -> dict[str, Any]:
    """Every number of an arm over all seeds, and the success of each seed."""
    episodes = pooled(by_seed)
    draws = Resamples.within(
        [len(by_seed[s]) for s in sorted(by_seed)],
        seed=stage_seed(seed, "pooled"),
        samples=settings.samples,
    )
    numbers = evaluation_row(
        name, episodes, targeted=settings.targeted_kinds, draws=draws, families=METADATA.families
    )
    successes = sum(map(is_success, episodes))
    interval = draws.mean([float(is_success(p)) for p in episodes])
    # If all episodes agree, nothing varies and Wilson's bounds stay.
    if 0 < successes < len(episodes) and interval.low is not None and interval.high is not None:
        numbers |= {"success_low": max(0.0, interval.low), "success_high": min(1.0, interval.high)}
    shares = {str(s): sum(map(is_success, by_seed[s])) / len(by_seed[s]) for s in sorted(by_seed)}
    over_seeds = mean_over_groups(list(shares.values()))
    if over_seeds.low is not None and over_seeds.high is not None:
        numbers["success_low"] = min(numbers["success_low"], max(0.0, over_seeds.low))
        numbers["success_high"] = max(numbers["success_high"], min(1.0, over_seeds.high))
    return {
        **numbers,
        "by_seed": shares,
        "outcomes": {str(s): outcomes(by_seed[s]) for s in sorted(by_seed)},
    }


def outcomes(played: Sequence[EpisodeResult]) -> str:
    """One character per task, in the order of the task ids: "1" if the episode was a success.

    All rows of a level and seed have the same tasks, so two rows compare position by position.
    """
    return "".join("1" if is_success(p) else "0" for p in sorted(played, key=lambda p: p.task_id))


def questions(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of rows that are compared: each once, and only rows that exist.

    >>> questions(["before", "placebo", "hint", "after"])[:3]
    [('after', 'before'), ('after', 'placebo'), ('placebo', 'before')]
    """
    two_channels = [
        "_".join(pair)
        for pair in (("hint", "policy"), ("hint", "preference"), ("policy", "preference"))
    ]
    comparisons = [
        (AFTER, control)
        for control in (BEFORE, PLACEBO, "more_sft", *SINGLE, *two_channels, "clone")
    ]
    comparisons += [(name, BEFORE) for name in names if name not in (BEFORE, AFTER)]
    comparisons += [
        (arm.like, name) for name, arm in ARMS.items() if arm.like and arm.like != AFTER
    ]
    comparisons += [("preference", "clone"), *((a, "more_sft") for a in SINGLE)]
    comparisons += list(combinations(SINGLE, 2))
    comparisons += [pair for _, two_channels in QUESTIONS for pair in two_channels]
    return [pair for pair in dict.fromkeys(comparisons) if pair[0] in names and pair[1] in names]


def level_numbers(episodes: Episodes, *, settings: EvaluateSettings, seed: int) -> dict[str, Any]:
    """Rows and paired differences of one level; a difference is taken over the seeds that both arms
    have.

    The headline arms have more seeds than the others. An arm that lacks one of its seeds is an
    error; it is never left out.
    """
    all_seeds = sorted(episodes[BEFORE])
    for name, by_seed in episodes.items():
        if sorted(by_seed) != seeds_of(name, all_seeds):
            problem = (
                f"{name} was trained with the seeds {sorted(by_seed)}, planned are"
                f" {seeds_of(name, all_seeds)}"
            )
            raise DataError(problem, fix="train every arm with every planned seed")
    options = {
        "targeted": settings.targeted_kinds,
        "seed": seed,
        "samples": settings.samples,
        "block": block_of,
        "families": METADATA.families,
    }

    def compare(a: str, b: str) -> list[dict[str, Any]]:
        common = sorted(episodes[a].keys() & episodes[b].keys())
        ours, theirs = (pooled({s: episodes[name][s] for s in common}) for name in (a, b))
        return paired_differences(a, ours, b, theirs, **options)

    entries = [entry for a, b in questions(list(episodes)) for entry in compare(a, b)]
    return {
        "rows": [
            pooled_row(name, by_seed, settings=settings, seed=seed)
            for name, by_seed in episodes.items()
        ],
        "paired": sorted(entries, key=lambda entry: entry.get("metric", SUCCESS) != SUCCESS),
    }
