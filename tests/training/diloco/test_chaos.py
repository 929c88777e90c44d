"""A fault of every kind, one in each round, on replicas in processes of their own: no round
diverges and none is committed twice (scripts/diloco_chaos.py plays 200 of them)."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from tests.training.diloco.chaos import FAULTS, Chaos, draw_faults  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.timeout(900)]


def play(folder: Path, faults: list[str], *, seed: int) -> tuple[list[str], list[str]]:
    """What diverged, and the faults that had no effect."""
    with Chaos(f"file://{folder}/run", folder=folder, seed=seed, grace_s=1.0) as chaos:
        records = [chaos.play_round(fault) for fault in faults]
        summary = chaos.summary(records)
    assert summary["commits_per_round"] == {"least": 1, "most": 1}
    assert (summary["rounds"], summary["commits_that_changed"]) == (len(faults), 0)
    missed = [record["fault"] for record in records if not record["injected"]]
    return [f"{r['fault']}: {problem}" for r in records for problem in r["diverged"]], missed


def test_no_fault_makes_a_round_diverge(tmp_path: Path) -> None:
    """Every kind once; the seed is that of a run whose faults all take effect."""
    faults = draw_faults(len(FAULTS), seed=3)
    assert sorted(faults) == sorted(FAULTS)
    assert play(tmp_path, faults, seed=3) == ([], [])


def test_the_auditor_sees_what_must_not_count(tmp_path: Path) -> None:
    """The auditor itself: with another outer step in mind it finds that every round diverges."""
    with Chaos(f"file://{tmp_path}/run", folder=tmp_path, seed=0) as chaos:
        chaos.auditor.optimiser.param_groups[0]["lr"] = 1.0
        record = chaos.play_round("lost_reply")
    assert record["injected"]
    assert record["diverged"] == [
        "the commit leads to other weights",
        "3 of 3 replicas have other weights",
    ]
