"""What judges saw, on the page: an evaluation's attempts to cheat, and the reasons of a 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from composer_replication.core.codec import write_sessions
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import HACK_ATTEMPT, JUDGED, Event, Session
from composer_replication.report.judged_section import refused_table
from composer_replication.report.limits import PageLimits
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from tests.report.pages import EVIL, Page, a_run, a_session, evaluation, write


def judged(name: str, *attempts: str, reason: str, text: str = "x") -> Session:
    """An episode as a judge leaves it."""
    told = [(HACK_ATTEMPT, attempt) for attempt in attempts] + [(JUDGED, reason)]
    events = tuple(Event(kind=kind, turn=3, text=words) for kind, words in told)
    return replace(a_session(name, text=text), events=events, outcome=0.0)


def evaluated_run(work: Path, *, text: str = "git reflog") -> RunDir:
    run = a_run(work, steps=1)
    table = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3))
    for row in table["rows"]:
        row |= {"hacked": 1, "hacks": {"git's history": 1}} if row["name"] == "after" else {}
    write(run.evaluation_json, table)
    (run.path / "evaluation").mkdir()
    hacked = judged("e1", f"git's history: {text}", reason=f"the hack monitor: {text}", text=text)
    failed = judged("e2", reason="tests/test_a.py::test_b failed")
    write_sessions(run.evaluated("after"), [hacked, failed, a_session("e3", text="x")])
    # of an evaluation whose row is no longer there
    write_sessions(run.evaluated("before"), [judged("old", "waits: sleep 9", reason="waits")])
    return run


def test_an_evaluations_attempts_can_be_read_with_the_judges_reason(tmp_path: Path) -> None:
    page = Page(run_page(run_report(evaluated_run(tmp_path).path)))
    hacks = page.text_of["hacks"]
    assert "1 kept rollout tried something else" in hacks
    assert "evaluation, after: e1, reward 0" in hacks and "git's history: git reflog" in hacks
    assert "The judge: the hack monitor: git reflog" in hacks and "call Edit" in hacks
    assert "sleep 9" not in page.text
    refused = page.text_of["refused"]
    assert "tests/test_a.py::test_b failed" in refused and "the hack monitor" in refused
    assert "git's history" in page.text_of["result"]  # counted by row


def test_what_a_player_wrote_is_text(tmp_path: Path) -> None:
    for number, evil in enumerate(EVIL):
        run = evaluated_run(tmp_path / str(number), text=evil)
        page = Page(run_page(run_report(run.path)))
        assert {name for name, _ in page.elements}.isdisjoint({"img", "iframe", "svg/onload=alert"})
        assert not any(key.startswith("on") for _, a in page.elements for key in a)


def test_many_refusals_are_cut_and_counted() -> None:
    rows = [{"row": "after", "task": f"t{n}", "reason": "failed"} for n in range(9)]
    shown = str(refused_table(rows, PageLimits(rows=4)))
    assert "t3" in shown and "t4" not in shown and "and 5 more" in shown
