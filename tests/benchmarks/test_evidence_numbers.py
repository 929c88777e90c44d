"""Pooling over seeds: an interval over tasks within the seeds, one over the seeds, and the wider
bounds of both decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.workshop_evidence.numbers import (
    block_of,
    evaluation_seed_of,
    level_numbers,
    pooled,
    pooled_row,
    questions,
)
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.evaluation.rows import paired_differences
from composer_replication.evaluation.success import EpisodeResult, evaluation_tasks
from composer_replication.rollouts.task_source import open_world
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.workshop_tasks import METADATA
from tests.evaluation.small_judge import played_by, solver

SETTINGS = EvaluateSettings(samples=300)


@pytest.fixture(scope="module")
def good() -> Iterator[list[EpisodeResult]]:
    with Sandbox() as sandbox:
        yield played_by(solver, sandbox)


def failed(played: list[EpisodeResult]) -> list[EpisodeResult]:
    return [replace(p, reward=0.0) for p in played]


def test_a_row_has_the_wider_of_both_intervals_and_every_outcome(good: list[EpisodeResult]) -> None:
    """One seed always succeeds and the other never: over tasks nothing varies, over two seeds
    nothing is known."""
    numbers = pooled_row("x", {7: good, 8: failed(good)}, settings=SETTINGS, seed=1)
    assert (numbers["success"], numbers["success_low"], numbers["success_high"]) == (0.5, 0.0, 1.0)
    assert numbers["by_seed"] == {"7": 1.0, "8": 0.0} and numbers["n"] == 2 * len(good)
    assert numbers["outcomes"] == {"7": "1" * len(good), "8": "0" * len(good)}


def test_a_difference_that_some_seeds_do_not_show_is_not_one(good: list[EpisodeResult]) -> None:
    """Resampling tasks within seeds would say +.33 [.33, .33]; over the three seeds, of which two
    show nothing, it includes zero."""
    a, b = pooled({7: good, 8: good, 9: good}), pooled({7: good, 8: good, 9: failed(good)})
    entry = paired_differences(
        "a",
        a,
        "b",
        b,
        targeted=("unknown_tool",),
        seed=1,
        families=METADATA.families,
        samples=300,
        block=block_of,
    )[0]
    assert entry["difference"] == pytest.approx(1 / 3) and entry["tasks"] == pytest.approx(
        [1 / 3, 1 / 3]
    )
    assert entry["by_block"] == {"000000007": 0.0, "000000008": 0.0, "000000009": 1.0}
    reach = 4.303 * statistics.stdev([0, 0, 1]) / math.sqrt(3)
    assert entry["blocks"] == pytest.approx([max(-1.0, 1 / 3 - reach), 1.0]) and (
        entry["low"],
        entry["high"],
    ) == tuple(entry["blocks"])
    mixed = paired_differences(
        "a", a, "b", b, targeted=("unknown_tool",), seed=1, families=METADATA.families, samples=300
    )[0]
    assert mixed["low"] > 0 and "blocks" not in mixed


def test_the_wider_interval_is_the_one_over_tasks_where_the_seeds_agree(
    good: list[EpisodeResult],
) -> None:
    half = [replace(p, reward=float(i % 2)) for i, p in enumerate(good)]
    a, b = pooled({7: good, 8: good, 9: good}), pooled({7: half, 8: half, 9: half})
    entry = paired_differences(
        "a",
        a,
        "b",
        b,
        targeted=("unknown_tool",),
        seed=1,
        families=METADATA.families,
        samples=300,
        block=block_of,
    )[0]
    assert [entry["low"], entry["high"]] == entry["tasks"] and entry["blocks"][0] == entry[
        "blocks"
    ][1]


def test_bounds_of_an_arm_that_never_fails_are_not_empty(good: list[EpisodeResult]) -> None:
    numbers = pooled_row("x", {7: good, 8: good}, settings=SETTINGS, seed=1)
    assert numbers["success"] == numbers["success_high"] == 1.0 and numbers["success_low"] < 1.0


def test_every_arm_needs_every_seed(good: list[EpisodeResult]) -> None:
    with pytest.raises(DataError, match="planned are"):
        level_numbers({"before": {7: good, 8: good}, "after": {7: good}}, settings=SETTINGS, seed=1)


def test_what_is_compared() -> None:
    comparisons = questions(
        [
            "before",
            "more_sft",
            "placebo",
            "hint",
            "hint_placebo",
            "hint_live",
            "wrong_site",
            "policy",
            "hint_policy",
            "after",
        ]
    )
    assert {
        ("after", "before"),
        ("after", "placebo"),
        ("after", "hint_policy"),
        ("hint", "hint_placebo"),
    } <= set(comparisons)
    assert {("hint", "wrong_site"), ("hint", "hint_live"), ("policy", "before")} <= set(comparisons)
    assert len(comparisons) == len(set(comparisons)) and not any(
        "preference" in pair for pair in comparisons
    )


def test_the_headline_has_more_seeds_than_the_rest(good: list[EpisodeResult]) -> None:
    five = {seed: good for seed in (1, 2, 3, 4, 5)}
    three = {seed: failed(good) for seed in (1, 2, 3)}
    arms = {
        "before": {s: failed(good) for s in five},
        "hint": five,
        "wrong_site": three,
        "after": five,
    }
    numbers = level_numbers(arms, settings=SETTINGS, seed=1)
    sizes = {(p["a"], p["b"]): p["n"] // len(good) for p in numbers["paired"] if "metric" not in p}
    assert sizes["after", "before"] == 5 and sizes["hint", "wrong_site"] == 3
    with pytest.raises(DataError, match="wrong_site was trained with the seeds"):
        level_numbers({**arms, "wrong_site": {**three, 4: good}}, settings=SETTINGS, seed=1)


def test_every_seed_and_level_has_tasks_of_its_own() -> None:
    places = [(level, seed) for level in (1, 2) for seed in (11, 12, 13)]
    drawn = [evaluation_seed_of(31415, level=level, seed=seed) for level, seed in places]
    assert len(set(drawn)) == len(places)
    with open_world("workshop") as source:
        drawn_tasks = [
            evaluation_tasks(EvaluateSettings(tasks=24), seed=seed, source=source) for seed in drawn
        ]
    ids = [{task.id for task in tasks} for tasks in drawn_tasks]
    assert all(len(a & b) < 6 for i, a in enumerate(ids) for b in ids[:i])
