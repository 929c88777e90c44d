"""`report`: a run or the audit as one file; --json prints the numbers of the page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tests.cli.test_verbs import without_torch
from tests.cli.workspace import files, recompose
from tests.report.pages import Page, a_run, a_session, evaluation, fill, write
from tests.report.test_logs import judged


@pytest.fixture
def work(tmp_path: Path) -> Path:
    fill(tmp_path / "recompose", [a_session()])
    return tmp_path


def test_an_evaluation_on_logs_is_told(tmp_path: Path) -> None:
    judged(tmp_path / "recompose")
    result = recompose("report", cwd=tmp_path)
    assert (
        result.code == 0
        and "On your own logs (held-out mistakes): share of messages that repeat the mistake: 50 % "
        in result.out
        and "Null result: nothing." in result.out
        and "no evaluation" not in result.out
    )
    assert recompose("report", "--json", cwd=tmp_path).value["pages"][0]["logs"] == {
        "claim": "nothing",
        "sentence": "Null result: nothing.",
    }


def page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def test_without_a_run_the_audit_is_written(work: Path) -> None:
    result = recompose("report", cwd=work)
    assert result.code == 0 and result.err == ""
    assert (
        "1 mistaken message in 1 of 1 session, 3 tool calls" in result.out
        and "next   recompose init" in result.out
    )
    assert "What your agent does wrong" in page(work / "recompose" / "report.html").text


def test_with_a_run_its_page_is_written_into_its_folder(work: Path) -> None:
    run = a_run(work / "recompose")
    result = recompose("report", cwd=work)
    assert result.code == 0 and "No evaluation was run, so nothing is claimed" in result.out
    assert f"Run {run.path.name}" in page(run.report_html).text
    assert not (work / "recompose" / "report.html").exists()
    assert (
        recompose("report", "--audit", cwd=work).code == 0
        and (work / "recompose" / "report.html").exists()
    )


@pytest.mark.parametrize("run_name", ["name", "path", "latest"])
def test_a_run_is_named_by_name_folder_or_latest(work: Path, run_name: str) -> None:
    first, _ = a_run(work / "recompose"), a_run(work / "recompose")
    wanted = {"name": first.path.name, "path": str(first.path), "latest": "latest"}[run_name]
    value = recompose("report", wanted, "--json", cwd=work).value
    assert (value["pages"][0]["run"] == first.path.name) == (run_name != "latest")


def test_several_runs_each_get_a_page(work: Path) -> None:
    runs = [a_run(work / "recompose") for _ in range(2)]
    value = recompose("report", *(r.path.name for r in runs), "--json", cwd=work).value
    assert len(value["wrote"]) == 3 and all(r.report_html.exists() for r in runs)
    assert value["pages"][-1]["compared"] == [r.path.name for r in runs]
    assert "2 runs side by side" in page(work / "recompose" / "comparison.html").text


def test_json_says_what_the_page_says(work: Path) -> None:
    run = a_run(work / "recompose")
    write(run.evaluation_json, evaluation(before=(0.1, 0.2), placebo=(0.1, 0.2)))
    about = recompose("report", "--json", cwd=work).value["pages"][0]
    assert about["claim"] == "better" and about["verdict"] in page(run.report_html).text
    assert about["bytes"] == run.report_html.stat().st_size
    audit = recompose("report", "--audit", "--json", cwd=work).value["pages"][0]
    assert (audit["mistakes"], audit["counts"]["calls"], audit["kinds"][0]["name"]) == (
        1,
        3,
        "edit_no_match",
    )


def test_a_dry_run_writes_nothing(work: Path) -> None:
    a_run(work / "recompose")
    before = files(work)
    for argv in (("report",), ("report", "--audit")):
        value = recompose(*argv, "--dry-run", "--json", cwd=work).value
        assert len(value["would_write"]) == 1
    assert files(work) == before


def test_the_page_is_opened_only_when_asked(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    recompose("report", cwd=work)
    recompose("report", "--open", "--dry-run", cwd=work)
    assert opened == []
    recompose("report", "--open", cwd=work)
    assert opened == [(work / "recompose" / "report.html").as_uri()]


def test_before_anything_was_ingested_the_verb_is_named(tmp_path: Path) -> None:
    result = recompose("report", cwd=tmp_path)
    assert result.code == 1 and "recompose ingest" in result.err
    assert recompose("report", "none", cwd=tmp_path).code == 1


def test_both_pages_are_written_without_torch(work: Path) -> None:
    assert without_torch("report", cwd=work).returncode == 0
    a_run(work / "recompose")
    completed = without_torch("report", cwd=work)
    assert completed.returncode == 0, completed.stderr
