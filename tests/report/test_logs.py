"""One's own logs on the page: the log's message and those of before and after at a held-out site,
side by side; hostile text stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import record_to_json, turn_to_json, write_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.rundir import RunDir, sha256_of
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.report.charts import CHAR_WIDTH, NAME_CHARS, interval_chart
from composer_replication.report.logs_view import logs_view, outcome_tally, read_logs
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from tests.report.pages import EVIL, Page, a_run, a_session, its_sites, write

METRICS = ("recurrence", "ok", "other", "malformed", "undecided")
PLAN = {"sites": 2, "sessions": 2, "repositories": 1, "smallest_difference": None}


def edit_turn(path: str, text: str = "") -> Turn:
    return Turn(
        role="assistant",
        author="before",
        blocks=(Text(text), ToolCall("c0", "Edit", {"file_path": path, "note": text})),
    )


def judged(work: Path, *, text: str = "Fix it.", claim: str = "nothing") -> RunDir:
    """A run with an evaluation on two held-out sites: before repeats the mistake, after does not;
    `text` is in every field that can hold text."""
    sessions = [a_session(name, text=text) for name in ("s1", "s2")]
    work.mkdir(parents=True, exist_ok=True)
    write_sessions(work / "sessions.jsonl", sessions)
    sites = [site for s in sessions for site in its_sites(s, detail=f"no match {text}")]
    write_lines(work / "sites.jsonl", map(record_to_json, sites))
    write_json(work / "ingest.json", {"files": []})
    run = a_run(work, sites=sites, text=text)
    at = [site for site in sites if site.category == "mistake"]
    for name, outcome, path in (
        ("before", "same", "old.py"),
        ("after", "ok", "new.py"),
        ("placebo", "same", "third.py"),
    ):
        lines = [
            {
                "site_id": site.id, "kind": site.kind, "number": number,
                "outcome": outcome if not number else "undecided",
                "reason": "same_call", "detail": text,
                "message": turn_to_json(edit_turn(path, text)),
            }
            for site in at for number in (0, 1)
        ]  # fmt: skip
        write_lines(run.written_at_sites(name), lines)
    rows = [
        {"name": n, "n": 2, "sessions": 2, **_shares(v)}
        for n, v in (("before", 0.5), ("placebo", 0.5), ("after", 0.0))
    ]
    paired = [
        _pair("after", "before", -0.5, -0.7, -0.3),
        _pair("after", "placebo", -0.5, -0.7, -0.3),
    ]
    table = {
        "rows": rows,
        "paired": paired,
        "verdict": {"claim": claim, "sentence": "Null result: nothing.", "reasons": [text]},
        "plan": PLAN,
        "notes": [text],
        "samples_per_site": 2,
        "inputs": {n: sha256_of(work / n) for n in ("sessions.jsonl", "sites.jsonl")},
    }
    write(run.evaluation_logs_json, table)
    return run


def test_an_evaluation_on_logs_is_one_although_no_other_task_was_played(tmp_path: Path) -> None:
    """The page used to state that no evaluation was run, above the section that held one."""
    page = Page(run_page(run_report(judged(tmp_path).path)))
    assert (
        "No evaluation was run" not in page.text
        and "Null result: nothing." in page.text_of["result"]
    )
    assert "Null result: nothing." in page.text_of["logs"]


def _shares(value: float) -> dict[str, float]:
    return {
        f"{m}{end}": value if m == "recurrence" else 0.1
        for m in METRICS
        for end in ("", "_low", "_high")
    }


def _pair(a: str, b: str, *interval: float) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "metric": "recurrence",
        "detectable": 0.4,
        **dict(zip(("difference", "low", "high"), interval, strict=True)),
    }


def page_of(work: Path, **more: Any) -> Page:
    return Page(run_page(run_report(judged(work, **more).path)))


def test_the_log_before_and_after_stand_side_by_side_with_the_verdict_of_each(
    tmp_path: Path,
) -> None:
    page = page_of(tmp_path)
    assert [a["id"] for name, a in page.elements if name == "section" and "id" in a][:2] == [
        "result",
        "logs",
    ]
    text = page.text_of["logs"]
    assert (
        "Null result: nothing." in text
        and "[0.500, 0.500]" in text
        and "−0.500" not in text
        and "-0.500" in text
    )
    for name in ("h001", "h002"):
        shown = page.text_of[name]
        log, before, after = (
            shown.index("in the log"),
            shown.index("same 1, undecided 1"),
            shown.index("ok 1, undecided 1"),
        )
        assert (
            log
            < shown.index("the mistaken message")
            < before
            < shown.index("old.py")
            < after
            < shown.index("new.py")
        )
        assert "third.py" not in shown, "the placebo is counted in the table, not shown"
    assert len(page.of_class("sides")) == 2 and len(page.of_class("outcome")) == 8
    assert {a["class"] for a in page.of_class("outcome")} == {
        "outcome same",
        "outcome ok",
        "outcome undecided",
    }


def test_hostile_messages_add_no_element(tmp_path: Path) -> None:
    plain = page_of(tmp_path / "plain")
    for number, evil in enumerate((*EVIL[:-3], "".join(EVIL[:-2]))):
        page = page_of(tmp_path / str(number), text=evil)
        assert page.open == [] and page.comments == [] and page.shape == plain.shape, evil


def test_the_logs_own_message_is_shown_only_from_the_files_that_were_evaluated(
    tmp_path: Path,
) -> None:
    run = judged(tmp_path)
    view = logs_view(run, work=tmp_path)
    assert view is not None and view["unknown"] == "" and view["sites"][0]["log"]["turn"] == 3
    assert outcome_tally(view["sites"][0]["written"]["after"]) == "ok 1, undecided 1"
    write_sessions(tmp_path / "sessions.jsonl", [a_session("s1", text="another"), a_session("s2")])
    changed = logs_view(run, work=tmp_path)
    assert (
        changed is not None
        and changed["unknown"] == "sessions.jsonl is not the file that was evaluated"
    )
    assert [site["log"] for site in changed["sites"]] == [None, None]
    page = Page(run_page(run_report(run.path)))
    assert (
        "is not the file that was evaluated" in page.text_of["logs"]
        and "old.py" in page.text_of["h001"]
    )
    (tmp_path / "sites.jsonl").unlink()
    gone = logs_view(run, work=tmp_path)
    assert gone is not None and "sites.jsonl is no longer there" in gone["unknown"]


def test_what_is_no_evaluation_on_logs_is_a_named_error(tmp_path: Path) -> None:
    run = judged(tmp_path)
    for broken in ([], {"rows": []}, {"rows": [{"n": 1}]}):
        write(run.evaluation_logs_json, broken)
        with pytest.raises(DataError, match="not an evaluation on logs"):
            read_logs(run)
    run.evaluation_logs_json.write_text("{", "utf-8")
    with pytest.raises(DataError, match="not JSON"):
        read_logs(run)
    run.evaluation_logs_json.unlink()
    assert (
        logs_view(run, work=tmp_path) is None
        and "logs" not in Page(run_page(run_report(run.path))).text_of
    )


@pytest.mark.parametrize(
    "name", ["after − before", "more_sft − before", "a_very_long_name_of_a_row − before"]
)
def test_a_rows_name_has_room_left_of_its_interval(name: str) -> None:
    page = Page(interval_chart("differences", [(name, 0.1, 0.0, 0.2)], low=-1, high=1))
    texts = [a for n, a in page.elements if n == "text"]
    end = [a for a in texts if a["class"] == "end"][-1]
    assert float(end["x"]) < 340, "the number at the end of the axis would be cut off"
    assert page.text.count(name) == 2, "in the title of the row, and as its label"
    axis = next(a for n, a in page.elements if n == "line" and a["class"] == "axis")
    if len(name) <= NAME_CHARS:
        label = next(a for a in texts if a["class"] == "end")
        assert CHAR_WIDTH * len(name) <= float(label["x"]) < float(axis["x1"]) <= 340 / 2
    else:  # above its row
        label, whisker = texts[0], next(a for n, a in page.elements if a.get("class") == "whisker")
        assert float(label["x"]) + CHAR_WIDTH * len(name) <= 340
        assert float(label["y"]) < float(whisker["y1"])
