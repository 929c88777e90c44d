"""Pooling over seeds: tasks are resampled within a seed, so a difference between seeds does not widen an interval, and is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.workshop_evidence.numbers import block_of, level_numbers, pooled, pooled_row, questions
from composer_replication.core.config.rollouts import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.evaluation.rows import paired
from composer_replication.evaluation.success import Played
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
from tests.evaluation.small_judge import played_by, solver

SETTINGS = EvaluateSettings(samples=300)


@pytest.fixture(scope="module")
def good() -> Iterator[list[Played]]:
    with Sandbox() as sandbox:
        yield played_by(solver, sandbox)


def failed(played: list[Played]) -> list[Played]:
    return [replace(p, reward=0.0) for p in played]


def test_tasks_are_resampled_within_their_seed(good: list[Played]) -> None:
    """One seed always succeeds and the other never: within the seeds nothing varies, over both half of the episodes do."""
    found = pooled_row("x", {7: good, 8: failed(good)}, settings=SETTINGS, seed=1)
    assert (found["success"], found["success_low"], found["success_high"]) == (0.5, 0.5, 0.5)
    assert found["by_seed"] == {"7": 1.0, "8": 0.0} and found["n"] == 2 * len(good)


def test_differences_are_resampled_within_their_seed(good: list[Played]) -> None:
    a, b = pooled({7: good, 8: good}), pooled({7: good, 8: failed(good)})
    blocks = paired("a", a, "b", b, targeted=("unknown_tool",), seed=1, samples=300, block=block_of)[0]
    assert (blocks["difference"], blocks["low"], blocks["high"]) == (0.5, 0.5, 0.5)
    mixed = paired("a", a, "b", b, targeted=("unknown_tool",), seed=1, samples=300)[0]
    assert mixed["difference"] == 0.5 and mixed["low"] < 0.45 and mixed["high"] > 0.55


def test_bounds_of_an_arm_that_never_fails_are_not_empty(good: list[Played]) -> None:
    found = pooled_row("x", {7: good, 8: good}, settings=SETTINGS, seed=1)
    assert found["success"] == found["success_high"] == 1.0 and found["success_low"] < 1.0


def test_every_arm_needs_every_seed(good: list[Played]) -> None:
    with pytest.raises(DataError, match="different seeds"):
        level_numbers({"before": {7: good, 8: good}, "after": {7: good}}, settings=SETTINGS, seed=1)


def test_what_is_compared() -> None:
    asked = questions(
        ["before", "more_sft", "placebo", "hint", "hint_placebo", "hint_live", "wrong_site", "policy", "hint_policy", "after"]
    )
    assert {("after", "before"), ("after", "placebo"), ("after", "hint_policy"), ("hint", "hint_placebo")} <= set(asked)
    assert {("hint", "wrong_site"), ("hint", "hint_live"), ("policy", "before")} <= set(asked)
    assert len(asked) == len(set(asked)) and not any("preference" in pair for pair in asked)


def test_the_numbers_of_a_level_are_pooled_within_seeds(good: list[Played]) -> None:
    """Every seed has its own answer and nothing varies within it: no interval of success is wider than its value."""
    found = level_numbers({"before": {7: good, 8: failed(good)}, "after": {7: good, 8: good}}, settings=SETTINGS, seed=1)
    assert [(row["name"], row["success"]) for row in found["rows"]] == [("before", 0.5), ("after", 1.0)]
    assert found["paired"][0] == {"a": "after", "b": "before", "difference": 0.5, "low": 0.5, "high": 0.5, "n": 2 * len(good)}
