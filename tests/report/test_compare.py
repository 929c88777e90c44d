"""Runs on one page: the numbers of both evaluations, a curve each, the settings that differ."""

from __future__ import annotations

import json
from pathlib import Path

from composer_replication.report.compare_page import APART_NOTE, compare_page, success_of
from composer_replication.report.run_report import run_report
from tests.report.pages import EVIL, Page, a_run, evaluation, write


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
    assert APART_NOTE in page.text
    names = [a["data-name"] for a in page.of_class("line") if "data-name" in a]
    assert {name[-1] for name in names} == {"a", "b"} and names.count(names[0]) == names.count(
        names[1]
    )


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
