"""From trained arms to one JSON: every student is played anew on fresh tasks, and its episodes are
pooled over the seeds.

    shown = play(players, settings=EvaluateSettings(tasks=192), seed=evaluation_seed_of(31415, level=1, seed=7), workers=2)
    level_numbers(episodes, settings=settings, seed=31415)        -> {"rows": [...], "paired": [...]}

There are two uncertainties, other tasks and other seeds of the training. Each has an interval:
tasks resampled within seeds, and Student's t over the seeds' own values. An entry's "low" and
"high" are the wider bounds of both, so a claim needs both. Beside them stand each seed's value and,
as one bit an episode, every outcome: anyone can compute another interval. Nothing that was played
before is used.
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
"""Row -> seed of the training -> what that student played."""
PLACEBO, SINGLE = "placebo", ("policy", "hint", "preference")


def evaluation_seed_of(evaluation_seed: int, *, level: int, seed: int) -> int:
    """Other tasks for each level and seed of the training."""
    return stage_seed(evaluation_seed, f"evidence:{level}:{seed}")


def play(
    players: Sequence[Player], *, settings: EvaluateSettings, seed: int, workers: int
) -> list[PlayerEpisodes]:
    """Every player on the same tasks. Two rows may be of the same weights here: a health rule may
    have put the start back."""
    one = partial(play_one, settings=settings, limits=players[0].config.rollouts, seed=seed)
    # Fresh processes: a fork of a process that has used PyTorch's threads may hang.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(one, players))


def check_arms(players: Mapping[str, Player], stopped: Mapping[str, str]) -> None:
    """Raise DataError where an arm began elsewhere, or a control has other steps than what it
    controls (unless a rule stopped one)."""
    starts = {player.start_sha256 for player in players.values()}
    if len(starts) > 1:
        raise DataError(
            f"the arms began from {len(starts)} different students", fix="start over with --fresh"
        )
    for name, player in players.items():
        like = ARMS[name].like
        if (
            like in players
            and not stopped[name]
            and not stopped[like]
            and player.steps != players[like].steps
        ):
            what = f"{name} has {player.steps} steps, {like} has {players[like].steps}"
            raise DataError(what, fix="start over with --fresh")


def block_of(played: EpisodeResult) -> str:
    """The seed of the training whose tasks these are."""
    return played.task_id.split("/", 1)[0]


def pooled(by_seed: Mapping[int, Sequence[EpisodeResult]]) -> list[EpisodeResult]:
    """The episodes of all seeds, in blocks; a task is another one in each block, also where its
    text is the same."""
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
    """Every number of an arm over all seeds, and success and families of each seed."""
    whole = pooled(by_seed)
    draws = Resamples.within(
        [len(by_seed[s]) for s in sorted(by_seed)],
        seed=stage_seed(seed, "pooled"),
        samples=settings.samples,
    )
    found = evaluation_row(
        name, whole, targeted=settings.targeted_kinds, draws=draws, families=METADATA.families
    )
    hits = sum(map(is_success, whole))
    interval = draws.mean([float(is_success(p)) for p in whole])
    # else Wilson's bounds stay: nothing varies
    if 0 < hits < len(whole) and interval.low is not None and interval.high is not None:
        found |= {"success_low": max(0.0, interval.low), "success_high": min(1.0, interval.high)}
    shares = {str(s): sum(map(is_success, by_seed[s])) / len(by_seed[s]) for s in sorted(by_seed)}
    over = mean_over_groups(list(shares.values()))
    if over.low is not None and over.high is not None:
        found["success_low"] = min(found["success_low"], max(0.0, over.low))
        found["success_high"] = max(found["success_high"], min(1.0, over.high))
    return {
        **found,
        "by_seed": shares,
        "outcomes": {str(s): outcomes(by_seed[s]) for s in sorted(by_seed)},
    }


def outcomes(played: Sequence[EpisodeResult]) -> str:
    """One character per task, in the order of the tasks' ids: 1 where the episode was a success.

    All rows of a level and seed have the same tasks, so two rows are compared place by place.
    """
    return "".join("1" if is_success(p) else "0" for p in sorted(played, key=lambda p: p.task_id))


def questions(names: Sequence[str]) -> list[tuple[str, str]]:
    """Which rows are compared, without doubles and only those that are there.

    >>> questions(["before", "placebo", "hint", "after"])[:3]
    [('after', 'before'), ('after', 'placebo'), ('placebo', 'before')]
    """
    pairs = [
        "_".join(pair)
        for pair in (("hint", "policy"), ("hint", "preference"), ("policy", "preference"))
    ]
    asked = [(AFTER, other) for other in (BEFORE, PLACEBO, "more_sft", *SINGLE, *pairs, "clone")]
    asked += [(name, BEFORE) for name in names if name not in (BEFORE, AFTER)]
    asked += [(arm.like, name) for name, arm in ARMS.items() if arm.like and arm.like != AFTER]
    asked += [("preference", "clone"), *((a, "more_sft") for a in SINGLE)]
    asked += list(combinations(SINGLE, 2))
    asked += [pair for _, pairs in QUESTIONS for pair in pairs]
    return [pair for pair in dict.fromkeys(asked) if pair[0] in names and pair[1] in names]


def level_numbers(episodes: Episodes, *, settings: EvaluateSettings, seed: int) -> dict[str, Any]:
    """Rows and paired differences of one level, each over the seeds that both arms have.

    The headline arms have more seeds than the others; an arm that lacks one of its own is an error,
    never left out.
    """
    most = sorted(episodes[BEFORE])
    for name, by_seed in episodes.items():
        if sorted(by_seed) != seeds_of(name, most):
            what = (
                f"{name} was trained with the seeds {sorted(by_seed)}, planned are"
                f" {seeds_of(name, most)}"
            )
            raise DataError(what, fix="train every arm with every seed of its own")
    how = {
        "targeted": settings.targeted_kinds,
        "seed": seed,
        "samples": settings.samples,
        "block": block_of,
        "families": METADATA.families,
    }

    def both(a: str, b: str) -> list[dict[str, Any]]:
        common = sorted(episodes[a].keys() & episodes[b].keys())
        ours, theirs = (pooled({s: episodes[name][s] for s in common}) for name in (a, b))
        return paired_differences(a, ours, b, theirs, **how)

    found = [entry for a, b in questions(list(episodes)) for entry in both(a, b)]
    return {
        "rows": [
            pooled_row(name, by_seed, settings=settings, seed=seed)
            for name, by_seed in episodes.items()
        ],
        "paired": sorted(found, key=lambda entry: entry.get("metric", SUCCESS) != SUCCESS),
    }
