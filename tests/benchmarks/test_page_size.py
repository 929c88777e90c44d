"""The made-up work folders on which the pages are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_size import drawn_page, made_up, repeated_sessions, write_answers, write_work
from composer_replication.report.answers_view import turns_by_outcome
from composer_replication.report.work import work_view
from tests.report.pages import Page


@pytest.mark.parametrize("page", ["audit", "run"])
def test_a_page_has_as_many_sites_and_answered_turns_as_were_asked_for(
    page: str, tmp_path: Path
) -> None:
    write_work(tmp_path / "few", made_up(), 9)
    write_work(tmp_path / "many", repeated_sessions(tmp_path / "few"), 30)
    write_answers(tmp_path / "many")
    lists = Page(drawn_page(tmp_path / "many", page)).lists
    assert {name: len(value["articles"]) for name, value in lists.items()} == {
        "sites": 30,
        "answers": 30,
    }
    outcomes = dict(turns_by_outcome(work_view(tmp_path / "many")["answered"]))
    assert outcomes["pair"] > 9 and sum(outcomes.values()) == 30 and len(outcomes) > 1
