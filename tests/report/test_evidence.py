"""A claim is made only where the paired intervals of after - before and of after - placebo exclude
zero on the same side."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.rundir import create_run
from composer_replication.report.evaluation_section import (
    NOTHING,
    difference,
    read_evaluation,
    signed,
    verdict,
)
from composer_replication.report.headline import NO_EVALUATION
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from tests.report.pages import Page, a_run, a_session, evaluation, fill, write

ROSE, FELL = "Success on held-out tasks rose", "Success on held-out tasks fell"


def page_with(tmp_path: Path, value: object) -> Page:
    fill(tmp_path, [a_session()])
    run = a_run(tmp_path)
    if value is not None:
        write(run.evaluation_json, value)
    return Page(run_page(run_report(run.path)))


def test_the_page_tells_how_the_other_runs_were_made_and_how_all_were_compared(
    tmp_path: Path,
) -> None:
    fill(tmp_path, [a_session()])
    run = a_run(tmp_path)
    for name, steps in (("placebo", 5), ("more_sft", 4)):
        command = f"recompose train -o work --train.steps {steps}"
        other_run = create_run(
            tmp_path / "runs", resolved={}, command=command, seed=7, inputs=[], name=name
        )
        other_run.checkpoint(steps).mkdir(parents=True)
    value = evaluation(
        before=(0.1, 0.4),
        placebo=(0.05, 0.3),
        steps={"after": 5, "placebo": 5, "more_sft": 5, "gone": 5},
    )
    value["rows"] += [{"name": name} for name in ("more_sft", "gone", "../placebo")]
    assert run_report(run.path)["again"] == []
    write(run.evaluation_json, value)
    view = run_report(run.path)
    evaluate_command = f"recompose evaluate {view['id']} -o work --against placebo=placebo"
    assert view["again"] == [  # more_sft has other steps than were evaluated, so it is another run
        {"name": "placebo", "command": "recompose train -o work --train.steps 5"},
        {"name": "evaluation", "command": evaluate_command},
    ]
    shown = Page(run_page(view)).text_of["settings"]
    assert evaluate_command in shown and "--train.steps 5" in shown


@pytest.mark.parametrize(
    ("before", "placebo", "claim"),
    [
        ((0.1, 0.4), (0.05, 0.3), ROSE),
        ((0.1, 0.4), (-0.01, 0.3), NOTHING),
        ((-0.05, 0.4), (0.05, 0.3), NOTHING),
        ((0.0, 0.4), (0.05, 0.3), NOTHING),
        ((-0.4, -0.1), (-0.3, -0.1), FELL),
        ((0.1, 0.4), (-0.3, -0.1), NOTHING),
    ],
)
def test_the_sentence_follows_from_both_intervals(
    tmp_path: Path, before: tuple[float, float], placebo: tuple[float, float], claim: str
) -> None:
    page = page_with(tmp_path, evaluation(before=before, placebo=placebo))
    text = page.text_of["result"]
    assert [sentence for sentence in (ROSE, FELL, NOTHING) if sentence in page.text] == [claim]
    assert claim in text and NO_EVALUATION not in text


def test_without_an_evaluation_the_page_says_so_and_claims_nothing(tmp_path: Path) -> None:
    page = page_with(tmp_path, None)
    assert page.text.count(NO_EVALUATION) == 1 and "not evaluated" in page.text_of["result"]
    assert ROSE not in page.text and FELL not in page.text


@pytest.mark.parametrize("missing", ["before", "placebo"])
def test_a_difference_that_was_not_measured_supports_nothing(missing: str) -> None:
    paired = [
        p for p in evaluation(before=(0.1, 0.2), placebo=(0.1, 0.2))["paired"] if p["b"] != missing
    ]
    sentence = verdict(paired)
    assert sentence["claim"] == "nothing" and f"no paired difference after - {missing}" in " ".join(
        sentence["reasons"]
    )


def test_a_difference_of_another_measure_is_not_taken_for_success() -> None:
    paired = [
        {**p, "metric": "mistakes"}
        for p in evaluation(before=(0.1, 0.2), placebo=(0.1, 0.2))["paired"]
    ]
    assert verdict(paired)["claim"] == "nothing"


def test_a_pair_the_other_way_round_is_turned() -> None:
    paired = [{"a": "before", "b": "after", "difference": -0.2, "low": -0.3, "high": -0.1}]
    assert difference(paired, "after", "before") == {"difference": 0.2, "low": 0.1, "high": 0.3}


def test_the_numbers_on_the_page_are_those_of_the_file(tmp_path: Path) -> None:
    value = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3), notes=["by construction"], seed=11)
    value["rows"][0]["families"] = {"wrong_name": 0.125}
    sentence = page_with(tmp_path, value).text_of["result"]
    for wanted in (
        "0.588 [0.528, 0.648]",
        "0.312 [0.252, 0.372]",
        "+0.100 to +0.400",
        "+0.250",
        "0.610",
        "by construction",
        "seed 11",
    ):
        assert wanted in sentence, wanted
    assert "wrong name" in sentence and "0.125" in sentence
    assert "families wrong name" not in sentence, "the caption says of what group a column is"


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"rows": []},
        {"rows": [{}], "paired": []},
        {"rows": [], "paired": [{"a": "after", "b": "before"}]},
        {
            "rows": [],
            "paired": [{"a": "after", "b": "before", "difference": 0.9, "low": 0.1, "high": 0.2}],
        },
        {
            "rows": [],
            "paired": [
                {"a": "after", "b": "before", "difference": float("nan"), "low": 0.1, "high": 0.2}
            ],
        },
        {
            "rows": [],
            "paired": [{"a": "after", "b": "before", "difference": True, "low": 0.1, "high": 0.2}],
        },
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, value: object) -> None:
    path = tmp_path / "evaluation.json"
    write(path, value)
    with pytest.raises(DataError) as caught:
        read_evaluation(path)
    assert caught.value.where == str(path)


def test_a_small_difference_keeps_its_sign() -> None:
    assert (signed(0.27), signed(-0.0001), signed(0)) == ("+0.270", "-1.0e-04", "+0.000")
