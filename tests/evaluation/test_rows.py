"""Rows and differences for players with known numbers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import ENVIRONMENT, Segment, Text, ToolCall, ToolResult, Turn
from composer_replication.evaluation.recurrence import mistakes_of
from composer_replication.evaluation.rows import (
    OTHER,
    SUCCESS,
    TARGETED,
    evaluation_row,
    paired_differences,
)
from composer_replication.evaluation.stats import Resamples, wilson
from composer_replication.evaluation.success import EpisodeResult
from composer_replication.evaluation.table import WATCHED, compared_rows, evaluation_table
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.workshop_tasks import METADATA
from tests.evaluation.small_judge import clumsy, played_by, silent, solver

KINDS = ("unknown_tool", "bad_arguments")
N = 40


@pytest.fixture(scope="module")
def oracle(sandbox: Sandbox) -> list[EpisodeResult]:
    return played_by(solver, sandbox)


def row_of(played: list[EpisodeResult], name: str = "x") -> dict[str, Any]:
    draws = Resamples.of(len(played), seed=1, samples=200)
    return evaluation_row(name, played, targeted=KINDS, draws=draws, families=METADATA.families)


def pair_of(
    a: list[EpisodeResult], b: list[EpisodeResult], *, seed: int = 1
) -> dict[str, dict[str, Any]]:
    comparison = paired_differences(
        "a", a, "b", b, targeted=KINDS, seed=seed, families=METADATA.families, samples=300
    )
    assert "metric" not in comparison[0]
    return {pair.get("metric", SUCCESS): pair for pair in comparison}


def test_an_oracle_makes_no_mistake(oracle: list[EpisodeResult]) -> None:
    row = row_of(oracle)
    assert (row["n"], row["success"], row["success_high"], row["finished"]) == (
        N,
        1.0,
        1.0,
        1.0,
    )
    assert row["success_low"] == pytest.approx(wilson(N, N)[0]) and 0.9 < row["success_low"] < 1
    assert row[TARGETED] == row[OTHER] == 0.0 and row["mistakes"] == {}
    assert row[f"{TARGETED}_high"] == pytest.approx(3 / N)  # none seen is not none there is
    assert row["valid_call_rate"] == 1.0 and row["entropy"] is None
    edits = sum(p.measures["changing_calls"] for p in oracle)
    calls = sum(len(turn.calls) for p in oracle for turn in p.session.turns)
    assert row["changing_call_rate"] == pytest.approx(edits / calls)
    assert row["turns"] == pytest.approx(sum(p.measures["messages"] for p in oracle) / N)
    families = row["families"]
    assert [families[f"{f}_made"] for f in "ABC"] == [0, 0, 0] and families["C_n"] == N
    assert families["A_n"] == sum(p.measures["A_open"] for p in oracle) and 0 < families["A_n"] < N
    assert sum(value for key, value in row["cells"].items() if key.endswith("_n")) == N
    assert {key for key in row["cells"] if not key.endswith(("_n", "_low", "_high"))} == {
        "none",
        "A",
        "B",
        "A+B",
    }


def test_each_family_of_mistakes_has_its_column(
    sandbox: Sandbox, oracle: list[EpisodeResult]
) -> None:
    wrong_name = row_of(played_by(clumsy(reader=1.0, style=1.0), sandbox))
    assert [wrong_name["families"][f"{f}_made"] for f in "AB"] == [1, 0]
    a_episodes = sum(p.measures["A_open"] for p in oracle)
    assert wrong_name[TARGETED] * N >= a_episodes and wrong_name[OTHER] == 0
    assert wrong_name["success"] == (N - a_episodes) / N and wrong_name["valid_call_rate"] < 1
    assert (
        wrong_name["valid_call_rate_high"] <= 1
        and wrong_name["cells"]["A"] == 0
        and wrong_name["cells"]["B"] == 1
    )
    detour = row_of(played_by(clumsy(detour=1.0), sandbox))
    assert [detour["families"][f"{f}_made"] for f in "AB"] == [0, 1]
    assert (
        detour[TARGETED] == 0
        and detour["valid_call_rate"] == 1
        and detour["cells"]["B"] == 0
        and detour["cells"]["A"] == 1
    )
    untested = row_of(played_by(clumsy(skip_test=1.0), sandbox))
    assert (
        untested["families"]["C_made"] == 1
        and untested["families"]["C_n"] == N
        and untested["success"] == 0
    )
    nothing = row_of(played_by(silent, sandbox))
    assert nothing["families"]["C_n"] == 0 and "C_made" not in nothing["families"]
    assert nothing["valid_call_rate"] is None and nothing["success"] == nothing["success_low"] == 0


def test_an_unfinished_episode_counts_and_never_as_a_success(oracle: list[EpisodeResult]) -> None:
    cut = [replace(p, ended="max_context") if i < 10 else p for i, p in enumerate(oracle)]
    row = row_of(cut)
    assert (row["n"], row["success"], row["finished"]) == (N, 0.75, 0.75)
    assert pair_of(cut, oracle)[SUCCESS]["difference"] == -0.25


def test_tasks_are_resampled_within_their_block_wherever_they_stand(
    oracle: list[EpisodeResult],
) -> None:
    """Every second task by name is in the block in which b fails: within a block nothing varies, so
    neither do the resampled values."""
    number = {task_id: i % 2 for i, task_id in enumerate(sorted(p.task_id for p in oracle))}
    half = [replace(p, reward=0.0) if number[p.task_id] else p for p in oracle]
    comparison = paired_differences(
        "a",
        oracle,
        "b",
        half,
        targeted=KINDS,
        seed=1,
        families=METADATA.families,
        samples=300,
        block=lambda p: str(number[p.task_id]),
    )[0]
    assert (comparison["difference"], comparison["by_block"]) == (0.5, {"0": 0.0, "1": 1.0})
    assert comparison["tasks"] == pytest.approx([0.5, 0.5])


def test_the_difference_is_over_the_same_tasks_whatever_their_order(
    sandbox: Sandbox, oracle: list[EpisodeResult]
) -> None:
    other_episodes = played_by(clumsy(reader=1.0, skip_test=1.0), sandbox)
    comparison = pair_of(oracle, other_episodes)
    assert comparison[SUCCESS]["difference"] == pytest.approx(
        row_of(oracle)["success"] - row_of(other_episodes)["success"]
    )
    assert comparison[TARGETED]["difference"] == pytest.approx(-row_of(other_episodes)[TARGETED])
    assert comparison["A_made"]["n"] == sum(p.measures["A_open"] for p in oracle) < N
    assert (comparison["C_made"]["difference"], comparison["C_made"]["low"]) == (
        -1,
        -1,
    ) and comparison["C_made"]["high"] == pytest.approx(-1 + 3 / N)
    assert comparison[TARGETED]["ratio"] == 0
    shuffled = random.Random(0).sample(other_episodes, N)
    assert pair_of(oracle, shuffled) == comparison
    turned = pair_of(other_episodes, oracle)
    assert turned[SUCCESS]["difference"] == -comparison[SUCCESS]["difference"]


def test_a_player_compared_with_itself_shows_nothing(sandbox: Sandbox) -> None:
    player = played_by(clumsy(reader=0.5, detour=0.5, skip_test=0.5), sandbox)
    comparison = pair_of(player, player)
    assert all(
        pair["difference"] == 0 and pair["low"] == -pair["high"] == pytest.approx(-3 / pair["n"])
        for pair in comparison.values()
    )
    assert (
        comparison[TARGETED]["ratio"],
        comparison[TARGETED]["ratio_low"],
        comparison[TARGETED]["ratio_high"],
    ) == (1, 1, 1)


def test_pairing_uses_each_tasks_own_difference(oracle: list[EpisodeResult]) -> None:
    """Half of the tasks succeed for both: unpaired that would be noise, paired the difference is
    exactly zero."""
    half = [replace(p, reward=float(i % 2)) for i, p in enumerate(oracle)]
    same = pair_of(half, [replace(p) for p in half])[SUCCESS]
    other_half = [replace(p, reward=float(i % 2 == 0)) for i, p in enumerate(oracle)]
    opposite = pair_of(half, other_half)[SUCCESS]
    # no other difference was seen in N tasks
    assert same["high"] == -same["low"] == pytest.approx(3 / N)
    assert opposite["difference"] == 0 and opposite["low"] < -0.2 and opposite["high"] > 0.2


def test_other_tasks_and_a_task_twice_are_refused(
    sandbox: Sandbox, oracle: list[EpisodeResult]
) -> None:
    with pytest.raises(DataError, match="did not play the same tasks"):
        pair_of(oracle, played_by(solver, sandbox, seed=2))
    with pytest.raises(DataError, match="did not play the same tasks: 1 were"):
        pair_of(oracle, oracle[1:])
    with pytest.raises(DataError, match="2 times"):
        row_of([*oracle, oracle[0]])
    with pytest.raises(DataError, match="2 times"):
        pair_of(oracle, [*oracle[1:], oracle[1]])
    with pytest.raises(DataError, match="no task"):
        row_of([])


def test_the_ratio_has_an_interval_and_none_seen_is_not_none(
    sandbox: Sandbox, oracle: list[EpisodeResult]
) -> None:
    often, seldom = (
        played_by(clumsy(reader=1.0, style=1.0), sandbox),
        played_by(clumsy(style=0.5), sandbox),
    )
    comparison = pair_of(seldom, often)[TARGETED]
    assert comparison["ratio"] == pytest.approx(row_of(seldom)[TARGETED] / row_of(often)[TARGETED])
    assert 0 <= comparison["ratio_low"] < comparison["ratio"] < comparison["ratio_high"] < 1
    none = pair_of(oracle, often)[TARGETED]
    assert none["ratio"] == 0 and none["ratio_high"] == pytest.approx(
        3 / (row_of(often)[TARGETED] * N)
    )
    assert "ratio" not in pair_of(often, oracle)[TARGETED]


def test_mistakes_are_split_by_the_kinds_that_hints_target(sandbox: Sandbox) -> None:
    played = next(p for p in played_by(clumsy(reader=1.0), sandbox) if p.measures["A_made"])
    assert mistakes_of(played.session, targeted=KINDS).kinds == {"unknown_tool": 1}
    assert mistakes_of(played.session, targeted=("file_missing",)).other == 1
    turns = list(played.session.turns)
    broken = Turn(
        role="assistant",
        author="m",
        blocks=(Text("x"), ToolCall("z", "malformed_call", {"text": "{"})),
    )
    error_text = "InputValidationError: malformed tool call: not valid JSON"
    answer = Turn(
        role="tool", author=ENVIRONMENT, blocks=(ToolResult("z", error_text, is_error=True),)
    )
    longer = replace(
        played.session,
        turns=(*turns, broken, answer),
        segments=(Segment(start=0, end=len(turns) + 2),),
    )
    mistakes = mistakes_of(longer, targeted=KINDS)
    assert (mistakes.targeted, mistakes.other) == (1, 1) and mistakes.kinds["malformed_call"] == 1


def test_the_table_is_the_same_for_the_same_seed_and_needs_both_ends(
    sandbox: Sandbox, oracle: list[EpisodeResult]
) -> None:
    settings = EvaluateSettings(tasks=N, samples=200)
    rows = {
        "after": oracle,
        "before": played_by(clumsy(reader=0.7, detour=0.5), sandbox),
        "hint": played_by(silent, sandbox),
    }

    def table_of(*, settings: EvaluateSettings = settings, seed: int = 1) -> dict[str, Any]:
        return evaluation_table(rows, settings=settings, seed=seed, metadata=METADATA)

    table = table_of()
    assert json.dumps(table) == json.dumps(
        evaluation_table(dict(reversed(rows.items())), settings=settings, seed=1, metadata=METADATA)
    )
    assert [r["name"] for r in table["rows"]] == ["before", "after", "hint"]
    lows = [[pair["low"] for pair in table_of(seed=seed)["paired"]] for seed in (1, 2)]
    assert lows[0] != lows[1]
    with pytest.raises(DataError, match="before"):
        evaluation_table({"after": oracle}, settings=settings, seed=1, metadata=METADATA)
    level = [
        table_of(settings=settings.model_copy(update={"level": n}))["notes"][0] for n in (1, 2)
    ]
    assert (
        level[0].startswith("By construction")
        and "exploration" not in level[0]
        and "reward alone can find" in level[1]
    )
    assert WATCHED in table_of(settings=settings.model_copy(update={"split": "monitor"}))["notes"]
    assert WATCHED not in table["notes"]


def test_a_channel_is_compared_with_its_own_placebo() -> None:
    pairs = compared_rows(["before", "more_sft", "placebo", "after", "hint", "hint_placebo"])
    assert ("hint", "hint_neutral") in compared_rows(["before", "after", "hint", "hint_neutral"])
    assert (
        ("hint", "hint_placebo") in pairs
        and ("placebo", "before") in pairs
        and ("after", "hint") in pairs
    )
    assert len(pairs) == len(set(pairs)) == 1 + 4 + 4 + 1


def test_a_family_is_compared_where_both_could_make_its_mistake(
    oracle: list[EpisodeResult],
) -> None:
    """Family C is open only in an episode that ended with the right files: tasks in which a player
    had no opportunity are not compared."""
    half = [
        replace(p, measures={**p.measures, "C_open": float(i % 2)}) for i, p in enumerate(oracle)
    ]
    changed = [replace(p, measures={**p.measures, "C_made": 1.0}) for p in oracle]
    comparison = pair_of(half, changed)["C_made"]
    assert comparison["n"] == N // 2 and comparison["difference"] == -1.0
