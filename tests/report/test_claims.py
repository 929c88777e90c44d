"""No sentence beside the table claims more than its interval supports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.report.claims import (
    MARGIN,
    OTHER,
    SINGLE,
    TARGETED,
    Claim,
    claims,
)
from composer_replication.report.evaluation_section import read_evaluation
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.workshop.workshop_tasks import METADATA
from tests.report.pages import Page, a_run, a_session, evaluation, fill, write

FAMILY_TITLES = {family.made: family.title for family in METADATA.families}


def pair(
    low: float, high: float, *, a: str = "after", b: str = "before", **more: Any
) -> dict[str, Any]:
    return {"a": a, "b": b, "difference": (low + high) / 2, "low": low, "high": high, **more}


def claims_of(
    *paired: dict[str, Any], rows: tuple[str, ...] = ("before", "placebo", "after")
) -> list[Claim]:
    return claims(
        {
            "rows": [{"name": name} for name in rows],
            "paired": list(paired),
            "family_titles": FAMILY_TITLES,
        }
    )


@pytest.mark.parametrize(
    ("low", "high", "word", "holds"),
    [
        (0.2, 0.6, "fell to 0.40 x [0.20, 0.60]", True),
        (0.2, 1.0, "not decided", False),
        (1.1, 1.5, "rose", False),
        (0.9, 1.2, "not decided", False),
    ],
)
def test_the_hinted_mistake_fell_where_the_whole_interval_says_so(
    low: float, high: float, word: str, holds: bool
) -> None:
    ratio = {"ratio": 0.4 if low == 0.2 else (low + high) / 2, "ratio_low": low, "ratio_high": high}
    (claim,) = claims_of(pair(-0.5, -0.1, metric=TARGETED, **ratio))
    assert word in claim.text and claim.holds is holds
    (blind,) = claims_of(pair(-0.5, -0.1, metric=TARGETED, **{**ratio, "ratio_high": None}))
    assert "without an interval" in blind.text and not blind.holds
    assert claims_of(pair(-0.5, -0.1, metric=TARGETED)) == []
    (alone,) = claims_of(pair(-0.5, -0.1, a="hint", metric=TARGETED, **ratio), rows=("hint",))
    assert "hint / before" in alone.text


@pytest.mark.parametrize(
    ("low", "high", "word", "holds"),
    [
        (-0.3, -0.1, "Other mistakes fell", True),
        (-0.1, MARGIN, f"did not rise by more than {MARGIN}", True),
        (-0.1, MARGIN + 0.01, "not decided", False),
        (0.01, 0.05, "Other mistakes rose", False),
    ],
)
def test_other_mistakes(low: float, high: float, word: str, holds: bool) -> None:
    (claim,) = claims_of(pair(low, high, metric=OTHER))
    assert word in claim.text and claim.holds is holds


def test_what_went_wrong_is_said_loudly_and_what_is_open_quietly(tmp_path: Path) -> None:
    worse = {"ratio": 1.3, "ratio_low": 1.1, "ratio_high": 1.5}
    better = {"ratio": 0.4, "ratio_low": 0.2, "ratio_high": 0.6}
    bad = [
        pair(0.1, 0.3, metric=TARGETED, **worse),
        pair(0.01, 0.05, metric=OTHER),
        pair(0.1, 0.2, metric="A_made"),
        pair(-0.2, -0.1, b="policy"),
    ]
    assert [
        (c.holds, c.against)
        for comparison in bad
        for c in claims_of(comparison, rows=("before", "after", "policy"))
    ] == [(False, True)] * 4
    open_or_good = [
        pair(-0.1, 0.5, metric=OTHER),
        pair(-0.3, 0.3, metric="A_made"),
        pair(-0.1, 0.1, b="policy"),
    ]
    claims = [
        c
        for comparison in open_or_good
        for c in claims_of(comparison, rows=("before", "after", "policy"))
    ]
    assert len(claims) == 3 and not any(c.against or c.holds for c in claims)
    assert [
        (c.holds, c.against) for c in claims_of(pair(-0.5, -0.1, metric=TARGETED, **better))
    ] == [(True, False)]
    fill(tmp_path, [a_session()])
    run = a_run(tmp_path)
    value = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3))
    value["paired"] += [bad[1], open_or_good[1]]
    value["family_titles"] = FAMILY_TITLES
    write(run.evaluation_json, value)
    html = run_page(run_report(run.path))
    assert (
        '<li class="bad">Other mistakes rose' in html
        and '<li class="quiet">A: a wrong name' in html
    )


@pytest.mark.parametrize("metric", FAMILY_TITLES)
def test_a_family_became_rarer_against_both(metric: str) -> None:
    fell, unclear = (-0.4, -0.2), (-0.4, 0.1)
    comparisons = [
        [pair(*x, metric=metric), pair(*y, b="placebo", metric=metric)]
        for x, y in ((fell, fell), (fell, unclear), (unclear, fell))
    ]
    assert [claim.holds for comparison in comparisons for claim in claims_of(*comparison)] == [
        True,
        False,
        False,
    ]
    assert (
        "became rarer" in claims_of(*comparisons[0])[0].text
        and "no change is claimed" in claims_of(*comparisons[1])[0].text
    )
    assert not claims_of(comparisons[0][0])[0].holds  # without a placebo nothing is claimed
    rose = [pair(0.1, 0.2, metric=metric), pair(0.1, 0.2, b="placebo", metric=metric)]
    assert "more frequent" in claims_of(*rose)[0].text and not claims_of(*rose)[0].holds


def test_channels_add_up_only_where_all_together_beat_each_alone() -> None:
    better = [pair(0.05, 0.2, b=name) for name in SINGLE]
    rows = ("before", "after", *SINGLE)
    assert [c.holds for c in claims_of(*better, rows=rows)] == [True]
    (missing,) = claims_of(*better[:2], rows=rows[:4])
    assert "not trained alone: preference" in missing.text and not missing.holds
    (tied,) = claims_of(pair(-0.02, 0.2, b="policy"), *better[1:], rows=rows)
    assert (
        tied.text.startswith("The channels do not add up")
        and "policy alone" in tied.text
        and not tied.holds
    )
    assert claims_of(rows=rows) == [] and claims_of(*better, rows=("before", "after")) == []


def test_the_page_shows_claims_families_and_what_was_planted(tmp_path: Path) -> None:
    value = evaluation(
        before=(0.1, 0.4),
        placebo=(0.05, 0.3),
        notes=["By construction: planted."],
        seed=11,
        n=200,
        steps={"after": 5},
        family_titles=FAMILY_TITLES,
    )
    value["paired"] += [
        pair(-0.3, -0.1, metric=OTHER),
        pair(-0.5, 0.2, metric="A_made"),
        pair(-0.1, 0.1, b="policy"),
    ]
    value["rows"].append(
        {"name": "policy", "n": 200, "success": 0.5, "success_low": 0.4, "success_high": 0.6}
    )
    for row in value["rows"]:
        row["families"] = {"A_made": 0.25, "A_made_low": 0.2, "A_made_high": 0.3, "A_n": 100}
    fill(tmp_path, [a_session()])
    run = a_run(tmp_path)
    write(run.evaluation_json, value)
    page = Page(run_page(run_report(run.path)))
    shown = page.text_of["result"]
    for wanted in (
        "Other mistakes fell",
        "do not add up",
        "no change is claimed",
        "By construction: planted.",
        "seed 11",
        "n 200",
    ):
        assert wanted in shown, wanted
    assert "0.250 [0.200, 0.300]" in shown and FAMILY_TITLES["A_made"] in page.text
    assert (
        "Other mistakes rose" not in page.text
        and "A: a wrong name (hint channel) became rarer" not in page.text
    )


def test_an_evaluation_of_an_earlier_checkpoint_says_so(tmp_path: Path) -> None:
    fill(tmp_path, [a_session()])
    run = a_run(tmp_path)
    write(
        run.evaluation_json, evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3), steps={"after": 5})
    )
    run.checkpoint(5).mkdir(parents=True)
    assert "evaluate again" not in Page(run_page(run_report(run.path))).text_of["result"]
    run.checkpoint(8).mkdir(parents=True)
    assert (
        "newest checkpoint is of 8: evaluate again"
        in Page(run_page(run_report(run.path))).text_of["result"]
    )


def test_a_file_of_an_older_version_names_its_families_by_their_measures(tmp_path: Path) -> None:
    value = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3))
    value["paired"] += [pair(-0.5, 0.2, metric="A_made"), pair(-0.3, -0.1, metric=OTHER)]
    for row in value["rows"]:
        row["families"] = {"B_made": 0.2, "B_made_low": 0.1, "B_made_high": 0.3, "B_n": 100}
    write(tmp_path / "evaluation.json", value)
    read_back = read_evaluation(tmp_path / "evaluation.json") or {}
    assert read_back["family_titles"] == {"A_made": "A_made", "B_made": "B_made"}
    assert "A_made: no change is claimed" in " ".join(claim.text for claim in claims(read_back))
