"""Runs on one page: the numbers of both evaluations, a curve each, the settings that differ."""

from __future__ import annotations

import json
from pathlib import Path

from composer_replication.report.compare_page import APART_NOTE, compare_page, success_of
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from tests.report.pages import EVIL, Page, a_run, evaluation, write
from tests.report.test_logs import judged as run_of_logs


def two_runs(tmp_path: Path, *, text: str = "tok") -> Page:
    first, second = a_run(tmp_path, steps=4, text=text), a_run(tmp_path, steps=9, text=text)
    write(first.evaluation_json, evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3)))
    settings = json.loads(second.resolved_json.read_text("utf-8"))
    settings["train"]["hint"]["weight"] = 0.125
    write(second.resolved_json, settings)
    return Page(compare_page([run_report(first.path), run_report(second.path)]))


def test_both_runs_stand_in_the_sentence_the_table_and_the_curves(tmp_path: Path) -> None:
    page = two_runs(tmp_path)
    assert "-a: 31 % to 59 %; " in page.text and "-b: not evaluated." in page.text
    runs = page.text_of["runs"]
    assert "0.588 [0.528, 0.648]" in runs and "better" in runs and "not evaluated" in runs
    assert APART_NOTE.replace("`", "") in page.text
    names = [a["data-name"] for a in page.of_class("line") if "data-name" in a]
    assert {name[-1] for name in names} == {"a", "b"} and names.count(names[0]) == names.count(
        names[1]
    )


def test_a_stopped_run_and_a_command_are_written_for_people(tmp_path: Path) -> None:
    """It said "stopped:interrupted", and showed the backticks of the terminal's text."""
    run, other = a_run(tmp_path), a_run(tmp_path)
    run.update(state="stopped:interrupted")
    for view in (run_report(run.path), run_report(other.path)):
        text = run_page(view)
        assert "`" not in Page(text).text and "<code>recompose evaluate</code>" in text
    text = compare_page([run_report(run.path), run_report(other.path)])
    page = Page(text)
    assert "`" not in page.text and "stopped:" not in page.text
    assert "interrupted" in page.text_of["runs"]
    assert "<code>recompose evaluate A --against b=B</code>" in text


def test_an_evaluation_on_logs_is_an_evaluation(tmp_path: Path) -> None:
    runs = run_of_logs(tmp_path / "own"), a_run(tmp_path / "other")
    page = Page(compare_page([run_report(run.path) for run in runs]))
    assert "evaluated on logs: Null result: nothing; " in page.text
    assert page.text.count("not evaluated.") == 1


def test_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    text = two_runs(tmp_path).text_of["settings"]
    assert "train.steps49" in text and "0.125" in text
    assert "student" not in text and text.count("train.") == 2


def test_a_run_without_an_evaluation_has_no_success(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert success_of(run_report(run.path)) == {}


def test_hostile_names_add_no_element(tmp_path: Path) -> None:
    plain, evil = two_runs(tmp_path / "a"), two_runs(tmp_path / "b", text="".join(EVIL))
    assert plain.shape == evil.shape and evil.open == []


def test_curves_that_never_change_are_left_out_and_success_comes_first(tmp_path: Path) -> None:
    views = [run_report(a_run(tmp_path / name, steps=3).path) for name in ("a", "b")]
    for view, low in zip(views, (0.1, 0.2), strict=True):
        view["measures"] |= {
            "rollouts/lost": {"points": [(1, 0.0), (2, 0.0)]},
            "rollouts/apart": {"points": [(1, low), (2, low)]},  # the same in no two runs
            "rollouts/success": {"points": [(1, low), (2, 0.4)]},
        }
    curves = Page(compare_page(views)).text_of["curves"]
    assert "rollouts/lost" not in curves and "rollouts/apart" in curves
    assert curves.removeprefix("Curves").startswith("rollouts/success")


def test_the_page_of_a_run_lists_measures_that_never_change_in_one_line(tmp_path: Path) -> None:
    view = run_report(a_run(tmp_path, steps=3).path)
    view["measures"]["rollouts/episodes"] = {"points": [(1, 48.0), (2, 48.0)]}
    page = run_page(view)
    assert "rollouts/episodes 48" in Page(page).text_of["channels"]
    assert "<b>rollouts/episodes</b>" not in page
