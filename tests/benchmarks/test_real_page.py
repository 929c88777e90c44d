"""docs/evidence_real.md says what its JSON files hold; the contrasts behind its tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import real_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def real_hints(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which imports its neighbours by their own names."""
    pytest.importorskip("torch", reason="the script runs models")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import real_hints  # pyright: ignore[reportMissingImports]

    return real_hints


def test_the_page_that_ships_is_what_its_files_say() -> None:
    assert real_page.main(["--check"]) == 0


def test_a_number_that_changed_makes_the_page_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("docs", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy2(ROOT / "docs" / "evidence_real.md", tmp_path / "docs")
    for path in (ROOT / "benchmarks" / "results").glob("real_*.json"):
        shutil.copy2(path, tmp_path / "benchmarks" / "results")
    assert real_page.main(["--check"], root=tmp_path) == 0
    path = tmp_path / "benchmarks" / "results" / "real_hints.json"
    value = json.loads(path.read_text("utf-8"))
    row = next(
        row
        for row in value["models"]["smollm2"]["rows"]
        if (row["kind"], row["contrast"]) == ("all", "now/system - neutral")
    )
    row["mean"] += 0.1
    path.write_text(json.dumps(value), "utf-8")
    assert real_page.main(["--check"], root=tmp_path) == 1
    assert "stale" in capsys.readouterr().out
    path.unlink()
    assert real_page.main([], root=tmp_path) == 0
    text = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    assert "`benchmarks/real_hints.py` has not been run to its end" in text


def test_a_lift_is_over_the_same_place_and_over_the_mean_of_the_donors(
    real_hints: ModuleType,
) -> None:
    values = {
        "none": -1.0, "now/system": 2.0, "now/system/donor0": 0.0, "now/system/donor1": 1.0,
        "neutral/system": -0.5, "now/user": 3.0,
    }  # fmt: skip
    assert real_hints.contrasts(values) == {
        "now/system - none": 3.0,
        "now/system - neutral": 2.5,
        "now/system - other sites' hints": 1.5,
        "neutral/system - none": 0.5,
        "now/user - none": 4.0,  # no neutral text was measured there
    }


def test_the_groups_in_the_file_are_those_of_the_sites() -> None:
    """Once they were computed a second time, over the repositories that are left, and differed."""
    value = json.loads((ROOT / "benchmarks/results/real_hints.json").read_text("utf-8"))
    groups = value["about"]["repositories"]
    for model in value["models"].values():
        assert {site["repository"]: site["group"] for site in model["sites"]}.items() <= (
            groups.items()
        )
    assert set(groups.values()) == {"train", "held_out"}
