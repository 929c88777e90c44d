"""Training with a codec: as good as without, for fewer bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")
pytest.importorskip("zstandard")

from benchmarks.diloco_codecs import Case, cases, measure, short  # noqa: E402
from benchmarks.diloco_convergence import sequences, trained  # noqa: E402

pytestmark = pytest.mark.train


def test_int8_trains_as_well_for_a_quarter_of_the_bytes() -> None:
    case = replace(cases()["usual"], codecs=("none", "int8"), every=10, steps=30)
    row = measure(case, name="short", seeds=1)["seeds"]["0"]["int8"]
    assert row["times_fewer_bytes"] >= 3.5
    assert row["loss_to_none"] == pytest.approx(1.0, abs=2e-3)
    assert row["share_of_gain"] == pytest.approx(1.0, abs=0.01)


def test_what_is_not_visible_yet_is_not_lost() -> None:
    """At a learning rate of RL, with a model that computes in bfloat16: what `visible` keeps back
    counts as soon as it can be seen."""
    task = trained(sequences(), steps=20)
    task = replace(task, learning_rate=3e-6, seen_as=torch.bfloat16)
    case = Case(task=task, outer="average", codecs=("none", "visible"), every=4, steps=40)
    row = measure(case, name="short", seeds=1)["seeds"]["0"]["visible"]
    assert row["times_fewer_bytes"] > 8
    assert row["share_of_gain"] > 0.75


def test_a_short_curve_keeps_both_ends() -> None:
    curve = [(step, 0.5) for step in range(32)]
    assert [step for step, _ in short(curve)] == [*range(0, 31, 4), 31]
