"""docs/evidence_real.md says what its JSON files hold; the contrasts behind its tables."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import real_page

ROOT = Path(__file__).resolve().parents[2]


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
    assert "`benchmarks/real_hints.py` has not been completed" in text


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


def _workshop_with(row: dict[str, object]) -> dict[str, Any]:
    """The shipped JSON of the workshop with one more row."""
    value = json.loads((ROOT / "benchmarks/results/real_workshop.json").read_text("utf-8"))
    value["rows"] = [r for r in value["rows"] if r["name"] != row["name"]] + [row]
    return value


def test_the_summary_says_what_was_not_run(tmp_path: Path) -> None:
    results, page = tmp_path / "benchmarks" / "results", tmp_path / "docs" / "evidence_real.md"
    results.mkdir(parents=True)
    page.parent.mkdir()

    def words() -> str:
        assert real_page.main([], root=tmp_path) == 0
        return page.read_text("utf-8").partition("**Summary:**")[2].partition("\n## ")[0]

    for name in ("real_logs", "real_workshop"):
        shutil.copy2(ROOT / "benchmarks/results" / f"{name}.json", results)
    workshop = json.loads((results / "real_workshop.json").read_text("utf-8"))
    workshop["rows"] = [row for row in workshop["rows"] if row["name"] != "more_sft"]
    workshop["paired"] = [d for d in workshop["paired"] if "more_sft" not in (d["a"], d["b"])]
    (results / "real_workshop.json").write_text(json.dumps(workshop), "utf-8")
    without = words()
    assert "`before`, `placebo` and `after`, with the seeds 11, 12, 13" in without
    run, _, not_run = without.partition("**Not run:**")
    assert "`more_sft`" in not_run and "more_sft" not in run
    assert "Gemma 3 in the workshop." in not_run
    row = {"name": "more_sft", "n": 64, "success": 0.1, "success_low": 0.0, "success_high": 0.2}
    added = _workshop_with({**row, "by_seed": {"11": 0.1}, "outcomes": {"11": "1"}})
    (results / "real_workshop.json").write_text(json.dumps(added), "utf-8")
    gemma = {"step_cpu_s": [300.0, 60.0, 120.0]}  # the first step is left out
    (results / "real_gemma.json").write_text(json.dumps(gemma), "utf-8")
    run, _, not_run = words().partition("**Not run:**")
    assert "`more_sft`, with seed 11" in run and "`more_sft`, with the seeds 12, 13" in not_run
    assert "1.5 CPU-minutes" in not_run and "2.0 CPU-hours" in not_run
    assert "| `more_sft` | 64 | 0.100 [0.000, 0.200] | 11: 0.10 |" in page.read_text("utf-8")


def test_the_other_model_has_rows_of_its_own(tmp_path: Path) -> None:
    (results := tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    value = json.loads((ROOT / "benchmarks/results/real_workshop.json").read_text("utf-8"))
    (results / "real_workshop.json").write_text(json.dumps(value), "utf-8")
    (of_gemma := copy.deepcopy(value))["about"]["seeds_done"] = [11]
    of_gemma["rows"] = [r for r in value["rows"] if r["name"] in ("before", "after", "placebo")]
    for row in of_gemma["rows"]:
        row["by_seed"] = {"11": 0.125}
    (results / "real_workshop_gemma.json").write_text(json.dumps(of_gemma), "utf-8")
    assert real_page.main([], root=tmp_path) == 0
    text = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    run, _, not_run = text.partition("**Not run:**")
    assert "- Gemma 3 in the workshop, `before`, `placebo` and `after`, with seed 11." in run
    assert "- Gemma 3 in the workshop, `before`, `placebo` and `after`, with the seeds 12, 13." in (
        not_run
    )
    smollm2, _, gemma = text.partition("### SmolLM2\n")[2].partition("### Gemma 3\n")
    assert "first look, not a result" in gemma and "first look, not a result" not in smollm2
    assert "| `after` | 192 |" in gemma and gemma.count("| 0.12 |") == 3


def test_the_newcomer_s_paragraph_claims_what_the_intervals_show(tmp_path: Path) -> None:
    (results := tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for path in (ROOT / "benchmarks" / "results").glob("real_*.json"):
        shutil.copy2(path, results)

    def words(**of_focus: float) -> str:
        value = json.loads((ROOT / "benchmarks/results/real_logs.json").read_text("utf-8"))
        for d in value["differences"]:
            if d["a"].startswith("focus") and "placebo" in d["b"]:
                d |= of_focus
        (results / "real_logs.json").write_text(json.dumps(value), "utf-8")
        assert real_page.main([], root=tmp_path) == 0
        text = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
        return text.partition("**For a newcomer:**")[2].partition("**Summary:**")[0]

    assert "something of it stays: a factor of 1.22" in words(mean=0.2, low=0.1, high=0.3)
    assert "nothing of it is shown to stay" in words(mean=0.2, low=-0.9, high=1.3)
    assert "it gets worse" in words(mean=-0.2, low=-0.3, high=-0.1)
    assert "not shown anywhere here" in words(mean=0.2, low=0.1, high=0.3)


def test_the_mean_over_seeds_has_the_wider_interval(real_hints: ModuleType) -> None:
    import real_logs_section  # pyright: ignore[reportMissingImports]

    def row(a: str, b: str, mean: float) -> dict[str, object]:
        return {"a": a, "b": b, "mean": mean, "low": mean - 0.1, "high": mean + 0.1}

    def widened(*means: float) -> tuple[float, float]:
        rows = [row(f"focus-{i}", f"focus_placebo-{i}", mean) for i, mean in enumerate(means)]
        middle = row("focus", "focus_placebo", sum(means) / len(means))
        *same, wide = real_logs_section.over_seeds({"differences": [*rows, middle]})["differences"]
        assert same == rows
        return round(wide["low"], 2), round(wide["high"], 2)

    assert widened(0.2, 0.2, 0.2) == (0.1, 0.3)  # the sessions differ more
    low, high = widened(0.0, 0.2, 0.4)  # t of two degrees of freedom is 4.3
    assert (low, high) == (-0.3, 0.7)


def test_the_trial_is_told_with_the_counts_of_the_tokenizers_page(tmp_path: Path) -> None:
    (results := tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    merge = {"mean_kl": 0.0007, "rounding_kl": 0.0005}
    trial = {
        "about": {"commit": "abc", "trained_tokens": 2500, "hints": 31},
        "own_template": {"exit_code": 1, "names_a_template": False},
        "views": {"1024": 5, "4096": 30},
        "audit": {"measured": 3, "not_built": {"too_long": 20, "x": 6}, "names_the_setting": True},
        "train": {"code": 0, "peak_gb": 4.25},
        "export": {"exit_code": 0, "merge": merge},
        "head_ms": {"once": 14.0, "every call": 80.0},
    }
    (results / "real_trial.json").write_text(json.dumps(trial), "utf-8")
    assert real_page.main([], root=tmp_path) == 0
    text = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    tokenizers = (ROOT / "docs" / "real_models.md").read_text("utf-8")
    row = next(line for line in tokenizers.splitlines() if line.startswith("| gemma |"))
    after = text.partition("| hints that Gemma 3's tokenizer takes | 0 of 18 | ")[2][:8]
    assert after == "31 of 31" and after in row
    assert "| exit code 0, 667 messages lost | exit code 1 |" in text  # no template was named
    assert "| 13, unsaid | 26, counted by reason, with the setting that helps |" in text
    assert "| 18.3 GB | 4.2 GB |" in text and "5 of 31" in text


def test_a_wording_is_chosen_on_train_and_told_with_what_it_does_on_held_out(
    tmp_path: Path,
) -> None:
    """On held out another wording is better: it stands in the table, but is not the one told."""
    lifts = {"now": (1.0, 0.5), "right": (2.0, 0.3), "do not": (-3.0, 9.0)}

    def row(group: str, wording: str, mean: float) -> dict[str, object]:
        numbers = {"mean": mean, "low": mean - 0.2, "high": mean + 0.2}
        counts = {"n": 7, "sessions": 5, "positive": 6}
        contrast = f"{wording}/system - neutral"
        return {"group": group, "kind": "all", "contrast": contrast, **numbers, **counts}

    rows = [
        row(group, wording, mean)
        for wording, means in lifts.items()
        for group, mean in zip(("train", "held_out"), means, strict=True)
    ]
    model = {"family": "chatml-tools", "sites_planned": 90, "rows": rows, "sites": [{}] * 14}
    wordings = {"right": "Use {right}.", "do not": "Do not use {wrong}."}
    about = {"wordings": wordings, "max_tokens": 2048, "dtype": "bfloat16"}
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    value = {"about": about, "models": {"smollm2": model}}
    (results / "real_wordings.json").write_text(json.dumps(value), "utf-8")
    assert real_page.main([], root=tmp_path) == 0
    text = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    assert "### smollm2 (as `chatml-tools`), 14 of 90 sites" in text
    assert "Chosen on *train*: *right*. On held out it moves the log-odds by +0.30" in text
    assert "away from what is right" not in text
    rows[-1] |= {"mean": -3.0, "low": -4.0, "high": -2.0}  # "do not", held out
    (results / "real_wordings.json").write_text(json.dumps(value), "utf-8")
    assert real_page.main([], root=tmp_path) == 0
    page = (tmp_path / "docs" / "evidence_real.md").read_text("utf-8")
    assert "`Do not use {wrong}.` moves smollm2 away from what is right: -3.00 [-4.00" in page
    assert "| held out | do not | 7 | 5 | +9.00 [+8.80, +9.20] | - | 6 of 7 |" in text


def test_a_wording_is_made_of_the_decision(real_hints: ModuleType) -> None:
    import real_wordings  # pyright: ignore[reportMissingImports]

    from composer_replication.core.site import Decision, Hint

    decision = Decision(part="tool", wrong="Edit", right=("Read", "Grep"))
    hint = Hint(site_id="s", text="long", writer="w", kind="edit_not_read", decision=decision)
    texts = [real_wordings.worded([hint], t)[0].text for t in real_wordings.WORDINGS.values()]
    assert texts[:3] == ["Use Read.", "Use Read, not Edit.", "Do not use Edit."]
    order = real_wordings.in_hash_order(["b", "a", "c"])
    assert sorted(order) == ["a", "b", "c"] and order == real_wordings.in_hash_order(order)
