"""The pictures of a page: weeks with gaps, names of rows, lines told apart, colours of tokens."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.report.audit_sentences import sentences
from composer_replication.report.audit_view import (
    AuditKind,
    AuditView,
    AuditWeek,
    StoppedRow,
    view_of,
)
from composer_replication.report.charts import Line, interval_chart, line_chart
from composer_replication.report.compare_page import compare_page
from composer_replication.report.heat import doubt_of, heat, legend
from composer_replication.report.kind_titles import KIND_TITLES
from composer_replication.report.limits import PageLimits
from composer_replication.report.page import chain
from composer_replication.report.rates import Rate
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.spend import NOTHING, Spend
from composer_replication.report.trend_chart import GAPS, NO_BARS, trend_chart, week_bars
from tests.report.pages import Page, a_run, evaluation, write


def a_week(start: str, *, low: float | None = None) -> AuditWeek:
    rate = Rate(mistakes=2, calls=40, sessions=1, low=low, high=None if low is None else 9.0)
    return AuditWeek(start=start, rate=rate, spend=NOTHING, mistakes_spend=NOTHING)


def test_a_line_joins_only_weeks_that_follow_each_other() -> None:
    weeks = ["2025-07-14", "2026-01-05", "2026-01-12", "2026-02-02", "2026-02-09", "2026-02-16"]
    page = Page(trend_chart([a_week(week) for week in weeks]))
    lines = [a["points"].split() for a in page.of_class("line")]
    assert [len(line) for line in lines] == [2, 3] and len(page.of_class("dot")) == 6
    assert GAPS in page.text and NO_BARS in page.text
    joined = Page(trend_chart([a_week(week, low=1.0) for week in weeks[-3:]]))
    assert GAPS not in joined.text and NO_BARS not in joined.text
    assert len(joined.of_class("line")) == 1


def test_the_bars_of_a_kind_stand_at_their_weeks() -> None:
    weeks = [("2025-07-14", 1), ("2026-01-05", 0), ("2026-02-09", 3)]
    bars = [attributes for name, attributes in Page(week_bars(weeks)).elements if name == "rect"]
    assert [bar["x"] for bar in bars] == ["0.0", "30.0"]


def test_long_names_are_told_apart_by_their_ends_and_every_row_says_its_value() -> None:
    rows = [(f"{'a-long-name-' * 6}: {end}", 0.3125, 0.1, 0.5) for end in ("before", "after")]
    page = Page(interval_chart("success", rows, low=0.0, high=1.0))
    assert "…" in page.text and ": before" in page.text and ": after" in page.text
    assert page.text.count("0.312") == 4, "of each row in its title and beside it"
    assert "+0.31" in interval_chart("change", rows, low=-1.0, high=1.0, zero=True)


def test_lines_differ_by_more_than_colour_and_the_key_has_their_order() -> None:
    lines = [Line(f"run {i}", f"c{i % 4}", [(1, i), (2, i + 1)]) for i in range(6)]
    page = Page(line_chart("loss", lines))
    drawn = [a["class"] for a in page.of_class("line")]
    assert len(set(drawn[:6])) == 6 and drawn[6:] == drawn[:6]
    assert [a["data-name"] for a in page.of_class("line")[:6]] == [line.name for line in lines]
    dashes = [re.findall(r"\bd\d", name) for name in drawn[:6]]
    assert len({name for names in dashes for name in names}) == 6


def probe(*, log_prob: float, values: list[float]) -> dict[str, Any]:
    tokens = [{"text": "a", "first": (v, log_prob, log_prob)} for v in values]
    tokens = [{**token, "last": token["first"]} for token in tokens]
    return {
        "first": 0, "last": 0, "measure": "jsd", "most": max(values), "sites": {"s": tokens},
    }  # fmt: skip


def test_the_colours_of_a_student_that_guesses_are_pale_and_say_so() -> None:
    limits = PageLimits()
    random = probe(log_prob=-7.6, values=[1e-4, 8e-5, 9e-5, 7e-5])
    shades = [a["class"] for a in Page(heat(random["sites"]["s"], random, limits)).of_class("t")]
    assert {name.split()[1] for name in shades} == {"f1"}
    assert "this student guesses" in legend(random) and "about 2,000" in legend(random)
    taught = probe(log_prob=-0.1, values=[1e-7, 5.0, 1e-7, 1e-7])
    page = Page(heat(taught["sites"]["s"], taught, limits))
    assert [a["class"].split()[1] for a in page.of_class("t")] == ["f1", "f9", "f1", "f1"]
    assert "half of the change is in 1 of them" in page.text and doubt_of(taught) == ""
    assert "they say nothing" in doubt_of(probe(log_prob=-0.1, values=[0.001, 0.0]))


def test_every_kind_that_the_detectors_give_has_a_readable_name() -> None:
    kinds: set[str] = set()
    for path in Path("src/composer_replication/data/sites").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = [k.value for k in node.keywords if k.arg == "kind"]
            at = {"error_pattern": 1, "_rule": 0}.get(getattr(node.func, "id", ""))
            values = named if at is None else [*named, node.args[at]]
            kinds |= {v.value for v in values if isinstance(v, ast.Constant)}
    assert len(kinds) > 30
    assert sorted(kinds - set(KIND_TITLES)) == []


def test_reasons_that_people_gave_are_counted_of_what_they_stopped() -> None:
    row = StoppedRow(
        category="rejected", count=9, sessions=6, spend=NOTHING, tools=(),
        words=(("s1", "no"), ("s2", "not so")),
    )  # fmt: skip
    view: AuditView = view_of([])
    object.__setattr__(view, "stopped", (row,))
    assert sentences(view)[-1] == (
        "People stopped 9 messages ($0.00 spent on them): they refused a call in 9, with a reason"
        " for 2 of them."
    )


def test_what_has_no_price_is_not_called_free() -> None:
    unpriced = Spend(tokens=900.0, new_tokens=900.0, unpriced=0.33)
    kind = AuditKind(
        kind="edit_no_match", title="Edit: text not found", tools=(("Edit", 1),), count=1, calls=3,
        sessions=1, spend=unpriced, weeks=(),
    )  # fmt: skip
    view: AuditView = view_of([])
    for name, value in (
        ("kinds", (kind, replace(kind, spend=replace(unpriced, usd=0.36)))),
        ("messages_with_usage", 3),
        ("rate", Rate(mistakes=1, calls=3, sessions=1, low=0.0, high=1.0)),
        ("mistakes_spend", unpriced),
        ("spend", replace(unpriced, unpriced=3.0)),
    ):
        object.__setattr__(view, name, value)
    _, cost, costliest, *_ = sentences(view)
    assert costliest == (
        "Costliest: Edit: text not found 1x (price unknown);"
        " Edit: text not found 1x ($0.36 + unpriced)."
    )
    assert "price unknown" in cost and "$" not in cost


def test_measures_are_lines_and_rows_are_columns(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    value = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3))
    for row in value["rows"]:
        row |= {f"measure_{i}": 0.5 for i in range(20)}
    write(run.evaluation_json, value)
    page = Page(run_page(run_report(run.path)))
    labels = [a.get("data-label") for name, a in page.elements if name == "td"]
    assert labels.count("after") == 23 and "measure 7" not in labels
    assert page.text_of["result"].count("success on held-out tasks") == 0, "it is at the top"


def test_the_name_of_a_run_does_not_turn_its_numbers_around(tmp_path: Path) -> None:
    views = [run_report(a_run(tmp_path / name).path) for name in ("a", "b")]
    views[0]["id"], views[1]["id"] = "ניסוי", "long-" * 30
    page = Page(compare_page(views))
    assert len(page.of_class("name")) >= 6 and page.text.count("long-" * 30) == 1
    assert page.text.lower().count("settings that differ") == 2, "the link and the heading"


def test_a_loss_is_named_in_plain_words() -> None:
    stage = {"what": "with a hint", "count": 2}
    drop = {"reason": "no_hint", "count": 1, "why": "nobody knew"}
    assert "− 1 no hint: nobody knew" in chain([{**stage, "drops": [drop]}], title="hints")
