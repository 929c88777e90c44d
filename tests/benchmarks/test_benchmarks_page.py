"""docs/benchmarks.md says what benchmarks/results/benchmarks.json holds, losing rows and what was
not measured included."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import (
    GOALS,
    JSON_PAGE,
    PAGE,
    about,
    gather,
    growth_of,
    main,
    problems,
    ratio_and_goal,
    render,
)

ABOUT = about(["benchmarks/step.py", "--json", "build/step.json"])


def line(variant: str, pairs: int, cpu_s: float) -> dict[str, Any]:
    return {
        "variant": variant,
        "pairs": pairs,
        "losses": [1.5, 0.25, 0.5],
        "gradient_norm": 3.0,
        "cpu_s": cpu_s,
        "peak_mib": 100.0,
    }


def measured() -> dict[str, Any]:
    shape = {
        "length": 1024,
        "sites": 4,
        "layers": 6,
        "hidden": 256,
        "vocab": 8192,
        "repeats": 3,
        "hint": 32,
        "message": 48,
    }
    lines = [
        line("tree", 2, 2.0),
        line("trl", 2, 5.0),
        line("tree", 8, 4.0),
        line("trl", 8, 10.0),
        line("rows", 8, 3.2),
    ]
    lines.append({"variant": "naive", "pairs": 8, "problem": "not installed: trl"})
    dense = {
        "ours": {"cpu_s": 6.0, "mib": 300.0},
        "naive": {"cpu_s": 20.0, "mib": 9000.0},
        "trl_chunked": {"cpu_s": 8.0, "mib": 2000.0},
        "liger": {"missing": "liger_kernel"},
    }
    losses = {
        "about": ABOUT,
        "vocab": 151936,
        "share": 0.05,
        "positions": {"dense 256": 512},
        "tables": {"dense 256": dense},
        "numerics": {
            "1.2e-04": {"ours": [2e-6, 6e-5], "TRL": [38.0, 0.98]},
            "0.0e+00": {"ours": [0.0, 0.0]},
        },
    }
    return {
        "goals": copy.deepcopy(dict(GOALS)),
        "losses": losses,
        "step": {"about": ABOUT, "shape": shape, "lines": lines},
    }


def row_of(page: str, start: str) -> str:
    rows = [x for x in page.splitlines() if x.startswith(start)]
    assert rows, start
    return rows[0]


def test_a_page_has_ratios_goals_and_the_rows_that_lose() -> None:
    page = render(measured())
    assert row_of(page, "| 2 | trl |").startswith("| 2 | trl | 5.00 | 0.400 | 0.5: met |")
    assert row_of(page, "| 8 | trl |").startswith("| 8 | trl | 10.00 | 0.400 | 0.28: **missed** |")
    assert "**1.250**" in row_of(page, "| 8 | rows |")
    assert "not installed: trl" in row_of(page, "| 8 | naive |")
    assert (
        row_of(page, "| naive |")
        == "| naive | 20.00 | 0.300 | 0.4: met | 9000 | 0.033 | 0.04: met |"
    )
    assert "0.35: **missed**" in row_of(page, "| trl_chunked |")
    assert "The goals were set for 1024, not 512" in page
    assert "1e-04: 0.001" in page or "0.0001: 0.001 (met)" in page


def test_what_has_no_number_is_listed() -> None:
    page = render(measured())
    listed = page.partition("## Not measured")[2].partition("\n## ")[0]
    for part in (
        "everything on a GPU",
        "a session of 32,768 tokens",
        "4 pairs: tree, rows",
        "8 pairs: separate, naive",
        "liger",
    ):
        assert part in listed
    assert "2 pairs: tree" not in listed


def test_a_variant_that_computes_something_else_is_marked() -> None:
    value = measured()
    assert "differs" not in render(value)
    value["step"]["lines"][1]["losses"] = [1.5, 0.2501, 0.5]
    page = render(value)
    assert "**differs**" in row_of(page, "| 2 | trl |")
    assert page.count("**differs**") == 1


def test_growth_is_from_the_fewest_to_the_most_pairs() -> None:
    assert growth_of(measured()["step"]["lines"]) == pytest.approx({"tree": 2 / 6, "trl": 5 / 6})


@pytest.mark.parametrize(("ours", "theirs", "goal", "cells"), [
    (1.0, 2.0, 0.5, ("0.500", "0.5: met")),
    (3.0, 2.0, None, ("**1.500**", "")),
    (None, 2.0, 0.5, ("", "0.5")),
])  # fmt: skip
def test_ratio(
    ours: float | None, theirs: float, goal: float | None, cells: tuple[str, str]
) -> None:
    assert ratio_and_goal(ours, theirs, goal) == cells


def test_the_sweep_is_judged_by_its_ends() -> None:
    def at(positions: int, variant: str, cpu_s: float, mib: float) -> dict[str, Any]:
        return {"positions": positions, "variant": variant, "cpu_s": cpu_s, "mib": mib}

    lines = [
        at(4096, "ours", 0.6, 210.0),
        at(512, "ours", 0.5, 209.0),
        at(512, "naive", 10.0, 4450.0),
    ]
    lines.append({"positions": 1024, "variant": "naive", "missing": "trl"})
    part = {
        "about": ABOUT,
        "vocab": 151936,
        "loss_positions": 51,
        "hidden": 256,
        "repeats": 3,
        "lines": lines,
    }
    page = render(measured() | {"sweep": part})
    assert row_of(page, "| 512 |") == "| 512 | 0.50 | 209 |  |  | 10.00 | 4450 | 0.050 | 0.047 |"
    assert "not installed" in row_of(page, "| 1024 |") and row_of(page, "| 4096 |").startswith(
        "| 4096 | 0.60 | 210 |"
    )
    assert row_of(page, "| time |") == "| time | 1.200 | 1.1: **missed** |"
    assert row_of(page, "| memory |") == "| memory | 1.005 | 1.1: met |"
    assert (
        "few loss positions among ever more" in render(measured())
        and "few loss positions among" not in page
    )


def test_a_stale_page_is_found_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in (PAGE, JSON_PAGE):
        (tmp_path / page).parent.mkdir(parents=True)
    assert "does not exist" in problems(tmp_path)[0]
    for name in ("step", "losses"):
        (tmp_path / f"{name}.json").write_text(json.dumps(measured()[name]), "utf-8")
    root = ["--root", str(tmp_path)]
    assert main([str(tmp_path / "step.json"), *root]) == 0
    assert main([str(tmp_path / "losses.json"), *root]) == 0  # the step stays
    assert json.loads((tmp_path / JSON_PAGE).read_text("utf-8")) == measured()
    assert main(["--check", *root]) == 0
    page = (tmp_path / PAGE).read_text("utf-8")
    (tmp_path / PAGE).write_text(page.replace("0.400", "0.200"), "utf-8")
    assert main(["--check", *root]) == 1
    assert "not what" in capsys.readouterr().out
    (tmp_path / PAGE).write_text(page, "utf-8")
    changed = measured() | {"goals": {**GOALS, "long": {"mib": 1}}}
    (tmp_path / JSON_PAGE).write_text(json.dumps(changed), "utf-8")
    assert "other goals" in problems(tmp_path)[0]


def test_a_command_names_no_folder_of_the_machine() -> None:
    stamp = about(
        [
            "/home/somebody/checkout/benchmarks/step.py",
            "--pairs",
            "2",
            "--json",
            "/home/somebody/step.json",
        ]
    )
    assert stamp["command"] == "python benchmarks/step.py --pairs 2 --json build/step.json"


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the name must be one of"):
        gather([tmp_path / "other.json"], tmp_path)


def test_curation_names_what_loses_and_pairs_that_differ() -> None:
    recipes = {
        "default": {
            "kept": 9000,
            "judge_pairs_per_s": 12000,
            "data_juicer_pairs_per_s": 300,
            "same_kept_set": True,
        },
        "with_disagreement_filter": {
            "kept": 8900,
            "judge_pairs_per_s": 9000,
            "data_juicer_pairs_per_s": 100,
            "same_kept_set": False,
        },
    }
    part = {
        "about": ABOUT,
        "pairs": 10000,
        "chars_a_side": 700,
        "rows_pairs_per_s": 5000,
        "answers_per_s": 30000,
        "recipes": recipes,
    }
    page = render({**measured(), "curate": part})
    assert "| default | 9000 | 12000 | at least 10000: met | 300 | 40 | the same |" in page
    assert "| with_disagreement_filter | 8900 | 9000 |  | 100 | 90 | **others** |" in page
    recipes["default"] = {"kept": 9000, "judge_pairs_per_s": 9999}
    assert "| default | 9000 | 9999 | at least 10000: **missed** | not installed |" in render(
        {**measured(), "curate": part}
    )


def test_redaction_is_held_against_its_three_goals() -> None:
    part = {
        "about": ABOUT,
        "num_texts": 900,
        "mb": 3.0,
        "mb_per_s": 19.9,
        "plain_loop_mb_per_s": 2.0,
        "ratio": 10.0,
    }
    part |= {
        "altered": 0.0,
        "altered_with_email": 0.02,
        "planted": 440,
        "kinds": 22,
        "recall": 0.9977,
    }
    page = render({**measured(), "redact": part})
    assert row_of(page, "| MB per CPU-s |") == "| MB per CPU-s | 19.9 | at least 20: **missed** |"
    shares = "| development data: recall on 440"
    assert (
        row_of(page, shares)
        == f"{shares} secrets of our own, of 22 kinds | 0.9977 | at least 0.99: met |"
    )
    assert (
        row_of(page, "| share of clean")
        == "| share of clean strings altered | 0.02000 | at most 0.01: **missed** |"
    )


def test_what_a_replay_bills_is_added_up_and_priced() -> None:
    bills = {
        "full": {"calls": 9, "sent": 3_000_000, "in_order": 400_000.0},
        "chosen": {"calls": 2, "sent": 300_000, "in_order": 100_000.0},
    }
    rows = [
        {"session": name, "steps": 9, "sites": 1, "reported": 4_000_000, **bills}
        for name in ("a", "b")
    ]
    part = {
        "about": ABOUT,
        "cached": 0.1,
        "usd": 2.0,
        "bytes_a_token": 3.4,
        "estimate": 3.5,
        "rows": rows,
    }
    page = render({**measured(), "replay_cost": part})
    assert (
        row_of(page, "| all |")
        == "| all | 18 | 2 | 8.000 | 6.000 | 0.800 | 4 | 0.600 | 0.200 | 30.0 |"
    )
    assert "naive full $6.000, full in order $0.800, chosen $0.600, chosen in order $0.200" in page


def test_a_reader_that_names_nothing_has_no_precision() -> None:
    numbers = {"precision": None, "recall": 0.0, "found": 0, "unlabelled": 3}
    page = render({**measured(), "hint_reader": {"about": ABOUT, "rows": {"stand-in": numbers}}})
    assert row_of(page, "| stand-in |") == "| stand-in | none | 0.00 | 0 | 3 |"


def test_rollouts_beside_trl_say_more_is_better() -> None:
    side = {"tokens": 80.0, "messages": 7.0, "success": 0.25}
    ours, trl = (
        {**side, "episodes_per_cpu_s": 20.0, "trained_per_cpu_s": 900.0},
        {**side, "episodes_per_cpu_s": 10.0, "trained_per_cpu_s": 1000.0},
    )
    shape = {"groups": 8, "size": 6, "steps": 2, "room": 700}
    rows = [{"batch": 48, "episodes_per_cpu_s": 30.0, "trained_per_cpu_s": 2000.0}]
    part = {"about": ABOUT, "rows": rows, "beside": {"shape": shape, "ours": ours, "trl": trl}}
    page = render({**measured(), "rollouts": part})
    assert "| episodes per CPU-s of play | 20.0 | 10.0 | 2.00 | 1.5: met |" in page
    assert "| trained tokens per CPU-s | 900.0 | 1000.0 | 0.90 | 1: **missed** |" in page
    part["beside"] = {"shape": shape, "ours": ours, "trl": {"problem": "not installed"}}
    assert "Not measured: not installed." in render({**measured(), "rollouts": part})


def test_a_page_that_is_too_large_or_slow_misses_its_goal() -> None:
    row = {"page": "run", "answers": True, "sites": 1000, "kb": 900, "in_full": 2000}
    times = {"first paint": 90, "usable": 1000, "first search": 50, "next search": 9, "filter": 8}
    rows = [
        {**row, "drawn_s": 2.0, "ms": times},
        {**row, "page": "slow", "drawn_s": 2.0, "ms": {**times, "usable": 1001}},
        {**row, "page": "large", "kb": 2001, "drawn_s": 2.0, "ms": times},
        {**row, "page": "closed", "drawn_s": 2.0, "ms": {}},
    ]
    page = render({**measured(), "page_size": {"about": ABOUT, "rows": rows}})
    line = "| run, with answers | 1,000 | 900 | 2,000 | 2.0 | 90 | 1000 | 50 | 9 | 8 | met |"
    assert row_of(page, "| run, with") == line
    assert row_of(page, "| slow,").endswith("| **missed** |")
    assert row_of(page, "| large,").endswith("| **missed** |")
    assert row_of(page, "| closed,").endswith("| not measured | not measured |  |")
