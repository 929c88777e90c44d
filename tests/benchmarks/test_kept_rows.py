"""Rows whose students are gone stand beside a new arm only if they are of the same students, and
compare by their outcomes as they did when they were played."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="outcomes are compared by the code that plays students")

from benchmarks.workshop_evidence.kept import check_kept, joined, success_difference
from composer_replication.core.errors import DataError

pytestmark = pytest.mark.train
FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "real_workshop.json"
SEED = 27182


@pytest.fixture
def value() -> dict[str, Any]:
    """The rows of before, after and placebo, as they were played."""
    found = json.loads(FILE.read_text("utf-8"))
    found["rows"] = [row for row in found["rows"] if row["name"] in ("before", "after", "placebo")]
    found["paired"] = [e for e in found["paired"] if "more_sft" not in (e["a"], e["b"])]
    return found


def outcomes_of(value: dict[str, Any], name: str) -> dict[str, str]:
    return next(row["outcomes"] for row in value["rows"] if row["name"] == name)


def test_outcomes_alone_give_the_difference_that_the_episodes_gave(value: dict[str, Any]) -> None:
    played = [entry for entry in value["paired"] if "metric" not in entry]
    assert {(e["a"], e["b"]) for e in played} >= {("after", "before"), ("after", "placebo")}
    for entry in played:
        a, b = entry["a"], entry["b"]
        ours, theirs = outcomes_of(value, a), outcomes_of(value, b)
        assert success_difference(a, ours, b, theirs, seed=SEED) == entry


def test_a_new_arm_joins_on_the_seeds_that_it_has(value: dict[str, Any]) -> None:
    before = outcomes_of(value, "before")
    worse = {"11": "0" * len(before["11"])}
    row = {"name": "more_sft", "outcomes": worse}
    together = joined(value, [row], seed=SEED)
    assert [r["name"] for r in together["rows"]] == ["before", "after", "placebo", "more_sft"]
    new = {(e["a"], e["b"]): e for e in together["paired"] if "more_sft" in (e["a"], e["b"])}
    assert new.keys() == {("more_sft", "before"), ("after", "more_sft")}
    assert new["more_sft", "before"]["n"] == 64
    assert new["more_sft", "before"]["difference"] == -before["11"].count("1") / 64
    kept = [e for e in together["paired"] if "more_sft" not in (e["a"], e["b"])]
    assert kept == value["paired"]
    again = joined(together, [row], seed=SEED)
    assert again == together  # a row takes the place of its earlier self


def test_rows_of_other_students_are_refused(value: dict[str, Any]) -> None:
    about = copy.deepcopy(value["about"])
    starts = dict(value["weights_sha256"]["before"])
    played = {"11": outcomes_of(value, "before")["11"]}

    def check(**changed: Any) -> None:
        fields = {"about": about, "starts": starts, "played": played, **changed}
        check_kept(value, file=FILE, **fields)

    check()
    with pytest.raises(DataError, match="of this run: tasks"):
        check(about={**about, "tasks": 32})
    with pytest.raises(DataError, match="of this run: settings"):
        check(about={**about, "settings": about["settings"].replace("2e-4", "1e-4")})
    with pytest.raises(DataError, match="of this run: the warmed-up student"):
        check(about={**about, "warmup": {**about["warmup"], "weights_sha256": "0"}})
    with pytest.raises(DataError, match="of this run: the start of seed 12"):
        check(starts={**starts, "12": "0"})
    with pytest.raises(DataError, match="of this run: the outcomes of the start of seed 11"):
        check(played={"11": "1" + played["11"][1:]})
