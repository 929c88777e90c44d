"""The pages in a real browser: open, click, search, filter, keys, addresses, print, axe-core, and
hostile content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Site
from composer_replication.report.audit_page import audit_page
from composer_replication.report.audit_view import audit_view
from composer_replication.report.compare_page import compare_page
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.work import work_view
from tests.report.pages import EVIL, a_run, a_session, answer_all, evaluation, fill, write

pytestmark = pytest.mark.backend
STATUS = "document.querySelector('.controls output').innerText"
HEADING = "document.querySelector('.shown h3').innerText"
ANSWERS, SITES = "[data-list=answers] ", "[data-list=sites] "
NOTHING, MISSING = "[data-nothing]", "[data-missing]"
AGREED = "document.querySelector('#answers output').innerText.startsWith('4 of 12')"
LAST_ROW = "[...document.querySelectorAll('.sites li')].at(-1).innerText"
UNSAFE = ".shown [onerror], .shown [onmouseover], .shown svg"
KINDS = ("edit_no_match", "file_missing", "shell_syntax")
Opened = Callable[..., Any]


def audit_text(work: Path, *, count: int = 30, text: str = "Fix it.", dated: bool = False) -> str:
    """The audit of `count` sessions whose mistakes are of three kinds in turn."""
    sessions = [
        a_session(f"s{i}", text=f"{text} number{i}", repository=f"repo{i % 2}")
        for i in range(count)
    ]
    if dated:
        days = [f"2026-{1 + i // 28 % 12:02}-{1 + i % 28:02}T10:00:00Z" for i in range(count)]
        sessions = [replace(s, started=day) for s, day in zip(sessions, days, strict=True)]
    sites = fill(work, sessions, hint=text)
    kinds = {f"s{i}": KINDS[i % 3] for i in range(count)}
    rows = [
        replace(site, kind=kinds[site.session_id]) if site.category == "mistake" else site
        for site in sites
    ]
    write_lines(work / "sites.jsonl", map(record_to_json, rows))
    return audit_page(work_view(work), view=audit_view(work), folder_flags=" -o work")


def answered_text(work: Path, *, count: int = 12, text: str = "Fix it.") -> str:
    """The audit of a folder whose mistakes three teachers answered at."""
    sessions = [a_session(f"s{i}", text=text, repository=f"repo{i % 2}") for i in range(count)]
    answer_all(work, fill(work, sessions, hint=text), text=text)
    return audit_page(work_view(work), view=audit_view(work), folder_flags=" -o work")


def run_text(work: Path, *, text: str = "Fix it.") -> str:
    sites: list[Site] = fill(work, [a_session(f"s{i}", text=text) for i in range(4)], hint=text)
    run = a_run(work, sites=sites, steps=30, text=text)
    answer_all(work, sites, text=text)
    write(run.evaluation_json, evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3), notes=[text]))
    return run_page(run_report(run.path))


def shown(page: Any, part: str = SITES) -> str:
    return page.locator(f"{part}.shown h3").inner_text()


def status(page: Any, part: str = SITES) -> str:
    return page.locator(f"{part}.controls output").inner_text()


def lasting(page: Any) -> str:
    """The lasting name of the site that is shown, as its article says it."""
    name, _, _ = page.locator(f"{SITES}.shown code").first.inner_text().partition(" ")
    return str(name)


def test_the_list_filters_by_choice_by_search_and_by_address(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(audit_text(tmp_path))
    assert status(page) == "60 of 60 entries" and "s001" in shown(page)
    page.select_option("[data-facet=kind]", "file_missing")
    assert status(page) == "10 of 60 entries" and "Edit: file not there" in shown(page)
    page.fill("[data-facet=q]", "number4")
    assert status(page) == "1 of 60 entries" and "s009" in shown(page)
    address = f"#sites?q=number4&kind=file_missing&at={lasting(page)}"
    assert page.evaluate("location.hash") == address
    page.click("[data-clear]")
    assert status(page) == "60 of 60 entries"
    page.fill("[data-facet=q]", "nothing holds this")
    assert status(page) == "0 of 60 entries" and page.locator(".shown *").count() == 0
    assert page.evaluate("location.hash") == "#sites?q=nothing+holds+this"
    assert page.locator(NOTHING).is_visible()


def test_the_search_is_of_the_rows_and_the_logs_not_of_the_pages_own_words(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(audit_text(tmp_path))
    page.fill("[data-facet=q]", "text not found")  # the title of ten rows
    assert status(page) == "10 of 60 entries"
    for label in ("found by", "shown by", "before it", "neither context", "assistant", "result"):
        page.fill("[data-facet=q]", label)
        assert status(page) == "0 of 60 entries", label
    for text in ("number4", "no match number4", "fix number4"):  # of the call, the error, the hint
        page.fill("[data-facet=q]", text)
        assert int(status(page).split()[0]) in (1, 2), text


@pytest.mark.parametrize(
    "filters",
    [
        "outcome=outvoted&teacher=kimi",  # values that no row has, or no row together
        "outcome=agreed&problem=curate%3A+min_words",
        "model=model-z",  # a facet with one value, which has no control
        "q=nothing+holds+this&sort=nothing",
    ],
)
def test_an_address_that_matches_nothing_says_so_and_is_cleared(
    filters: str, opened: Opened, tmp_path: Path
) -> None:
    page = opened(answered_text(tmp_path), anchor=f"#answers?{filters}")
    assert status(page, ANSWERS) == "0 of 12 answered turns"
    assert page.locator(f"{ANSWERS}nav li").count() == 0
    assert page.locator(f"{ANSWERS}.shown *").count() == 0
    told = page.locator(f"{ANSWERS}{NOTHING}")
    sentence = "None of the answered turns matches the search and the filters."
    assert told.is_visible() and told.inner_text().startswith(sentence)
    assert status(page) == "24 of 24 entries" and not page.locator(f"{SITES}{NOTHING}").is_visible()
    told.locator("button").click()
    assert status(page, ANSWERS) == "12 of 12 answered turns" and not told.is_visible()
    assert page.evaluate("location.hash") == "#a001" and "a001" in shown(page, ANSWERS)


def test_an_address_of_one_row_shows_it_whatever_its_filters(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(answered_text(tmp_path), anchor="#answers?outcome=outvoted&at=a005")
    assert shown(page, ANSWERS).startswith("a005")
    assert page.locator(f"{ANSWERS}{NOTHING}").is_visible()


@pytest.mark.parametrize("anchor", ["#a999", "#answers?at=a999", "#answers?outcome=agreed&at=a999"])
def test_an_address_of_a_row_that_is_not_there_shows_no_other_row(
    anchor: str, opened: Opened, tmp_path: Path
) -> None:
    page = opened(answered_text(tmp_path), anchor=anchor)
    told = page.locator(f"{ANSWERS}{MISSING}")
    sentence = "None of the answered turns has the name in the address"
    assert told.is_visible() and told.inner_text().startswith(sentence)
    assert page.locator(f"{ANSWERS}.shown *").count() == 0
    assert page.locator(f"{ANSWERS}nav li").count() > 0 and "s001" in shown(page)
    assert not page.locator(f"{SITES}{MISSING}").is_visible()
    page.click(f"{ANSWERS}nav li a")
    page.wait_for_function("() => document.querySelector('#answers .shown h3')")
    assert not told.is_visible()


def test_a_site_has_an_address_and_a_kind_is_a_link(opened: Opened, tmp_path: Path) -> None:
    text = audit_text(tmp_path)
    page = opened(text, anchor="#s004")
    assert shown(page).startswith("s004")
    again = opened(text, anchor="#sites?kind=shell_syntax&repository=repo1&at=s012")
    assert shown(again).startswith("s012") and status(again) == "5 of 60 entries"
    page.click("#kinds td a >> text=text not found")
    page.wait_for_function(f"() => {STATUS} == '10 of 60 entries'")  # an address changes later
    assert page.input_value("[data-facet=kind]") == KINDS[0]


def test_an_address_means_the_same_site_or_none_when_sessions_were_forgotten(
    opened: Opened, tmp_path: Path
) -> None:
    """Addresses held the place in the list: after a page was made anew, they showed another one."""
    page = opened(audit_text(tmp_path, count=3))
    page.click(f"{SITES}nav li a >> text=s003")
    page.wait_for_function(f"() => {HEADING}.startsWith('s003')")
    kept, address = lasting(page), page.evaluate("location.hash")
    assert address == f"#{kept}"
    again = opened(audit_text(tmp_path, count=2), anchor=address)
    assert lasting(again) == kept
    without = opened(audit_text(tmp_path, count=1), anchor=f"#sites?at={kept}")
    assert without.locator(f"{SITES}.shown *").count() == 0
    assert without.locator(f"{SITES}{MISSING}").is_visible()


def test_keys_move_search_and_switch_the_step(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_text(tmp_path))
    first = shown(page)
    page.keyboard.press("j")
    page.wait_for_function(f"first => {HEADING} != first", arg=first)
    page.keyboard.press("k")
    page.wait_for_function(f"first => {HEADING} == first", arg=first)
    root = page.locator("html")
    assert root.get_attribute("data-step") == "first"
    page.keyboard.press("l")
    assert root.get_attribute("data-step") == "last"
    page.click("button[data-show=first] >> nth=0")
    assert root.get_attribute("data-step") == "first"
    page.keyboard.press("/")
    page.keyboard.type("jkl")
    assert page.input_value(f"{SITES}[data-facet=q]") == "jkl" and status(page) == "0 of 8 entries"


def test_answers_filter_by_outcome_teacher_problem_search_and_address(
    opened: Opened, tmp_path: Path
) -> None:
    text = answered_text(tmp_path)
    page = opened(text)
    assert status(page, ANSWERS) == "12 of 12 answered turns" and "a001" in shown(page, ANSWERS)
    page.select_option(f"{ANSWERS}[data-facet=outcome]", "agreed")
    assert status(page, ANSWERS) == "4 of 12 answered turns" and "a002" in shown(page, ANSWERS)
    assert page.evaluate("location.hash") == "#answers?outcome=agreed&at=a002"
    page.click(f"{ANSWERS}[data-clear]")
    page.select_option(f"{ANSWERS}[data-facet=problem]", "curate: min_words")
    page.select_option(f"{ANSWERS}[data-facet=teacher]", "glm")
    assert status(page, ANSWERS) == "4 of 12 answered turns" and "a003" in shown(page, ANSWERS)
    page.select_option(f"{ANSWERS}[data-facet=problem]", "-")
    assert status(page, ANSWERS) == "8 of 12 answered turns"
    page.fill(f"{ANSWERS}[data-facet=q]", "chosen repo1")
    assert status(page, ANSWERS) == "2 of 12 answered turns"
    assert status(page) == "24 of 24 entries"  # the other list is left as it was
    again = opened(text, anchor="#answers?outcome=pair&at=a007")
    assert shown(again, ANSWERS).startswith("a007") and "s001" in shown(again)
    again.click("#answers td a >> text=others did the same")
    again.wait_for_function(f"() => {AGREED}")
    again.click(f"{ANSWERS}.shown p a")
    again.wait_for_function(f"() => {HEADING}.startsWith('s003')")
    assert shown(again).startswith("s003") and "a002" in shown(again, ANSWERS)
    again.click(f"{SITES}.shown p a")
    again.wait_for_function("() => location.hash == '#a002'")


def test_the_keys_are_for_the_list_on_the_screen(opened: Opened, tmp_path: Path) -> None:
    page = opened(answered_text(tmp_path), anchor="#a001")
    page.keyboard.press("j")
    page.wait_for_function("() => location.hash == '#a002'")
    assert "s001" in shown(page)
    page.locator("#sites .controls").evaluate("part => part.scrollIntoView()")
    page.keyboard.press("/")
    page.keyboard.type("repo0")
    assert status(page) == "12 of 24 entries" and status(page, ANSWERS) == "12 of 12 answered turns"


def test_an_answer_stands_beside_the_logged_message_and_below_it_on_a_phone(
    opened: Opened, tmp_path: Path
) -> None:
    text = answered_text(tmp_path)
    for phone in (False, True):
        page = opened(text, anchor="#a001", phone=phone)
        logged, answers = (page.locator(".beside > div").nth(i).bounding_box() for i in (0, 1))
        assert (answers["x"] > logged["x"] + logged["width"]) is not phone
        assert (answers["y"] > logged["y"] + logged["height"]) is phone
        assert page.locator(".beside ins").count() == 3


def test_order_and_a_long_list_draws_only_the_rows_in_view(opened: Opened, tmp_path: Path) -> None:
    page = opened(audit_text(tmp_path, count=300))
    assert status(page) == "600 of 600 entries" and page.locator(".sites li").count() < 60
    page.select_option("[data-facet=sort]", "log")
    nav = page.locator(".sites nav")
    nav.evaluate("nav => nav.scrollTop = nav.scrollHeight")
    last = page.locator(".sites li a b >> nth=-1")
    page.wait_for_function(f"() => {LAST_ROW}.startsWith('s600')")
    assert last.inner_text().startswith("s600")
    assert page.locator(".sites li >> nth=-1").get_attribute("aria-posinset") == "600"


def test_a_curve_shows_its_values_at_the_pointer_and_by_key(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_text(tmp_path))
    figure = page.locator("#channels figure.curves").first
    svg = figure.locator("svg")
    svg.scroll_into_view_if_needed()
    svg.hover()
    read = figure.locator("output").inner_text()
    assert read.startswith("step ") and read.split()[1].isdigit()
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert int(figure.locator("output").inner_text().split()[1]) == int(read.split()[1]) + 1


@pytest.mark.parametrize("make", [audit_text, answered_text, run_text])
@pytest.mark.parametrize("phone", [False, True])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    make: Any, phone: bool, dark: bool, opened: Opened, tmp_path: Path
) -> None:
    page = opened(make(tmp_path), phone=phone, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    faults = page.evaluate("axe.run()")["violations"]
    serious = [
        (fault["id"], fault["nodes"][0]["html"][:200])
        for fault in faults
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_print_has_the_open_site_and_no_controls(opened: Opened, tmp_path: Path) -> None:
    page = opened(audit_text(tmp_path), anchor="#s003")
    page.emulate_media(media="print")
    assert page.locator(".shown article").is_visible()
    assert not page.locator(".controls").is_visible() and not page.locator("nav.top").is_visible()
    assert not page.locator(".sites nav").is_visible()


@pytest.mark.parametrize("make", [audit_text, answered_text, run_text])
def test_hostile_content_runs_nothing_and_adds_no_element(
    make: Any, opened: Opened, tmp_path: Path
) -> None:
    """`opened` fails on any dialog, error, refused script or request."""
    plain = opened(make(tmp_path / "plain"))
    evil = opened(make(tmp_path / "evil", text=" ".join(EVIL)))
    count = "[...document.querySelectorAll('script, style, iframe, img, object, form')].length"
    assert plain.evaluate(count) == evil.evaluate(count)
    for part in evil.locator("[data-list]").all():
        for number in range(4):
            row = part.locator(".sites li a").nth(number)
            name, _, _ = row.inner_text().partition(" ")
            row.click()
            part.locator(f".shown article#{name}").wait_for()
            assert "<img src=x onerror=alert(1)>" in part.locator(".shown").inner_text()
            assert evil.locator(UNSAFE).count() == 0


def test_without_a_script_the_page_says_how_to_see_the_sites(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(audit_text(tmp_path), "utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "recompose show site -o work" in page.locator(".no-script").inner_text()
    assert not page.locator(".controls").is_visible()
    context.close()


@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("width", [1280, 1000, 900, 800, 390])
def test_there_is_no_hole_beside_the_costliest_mistakes(
    opened: Opened, tmp_path: Path, width: int, dated: bool
) -> None:
    page = opened(audit_text(tmp_path, dated=dated))
    page.set_viewport_size({"width": width, "height": 900})
    left, right = page.evaluate(
        "[...document.querySelectorAll('#audit .picture > *')]"
        ".map((part) => part.getBoundingClientRect().toJSON())"
    )
    if right["top"] < left["bottom"]:  # side by side
        assert right["bottom"] - left["bottom"] < 60
    else:
        assert left["width"] == right["width"]


@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_is_wider_than_the_page_and_no_label_is_cut(
    opened: Opened, tmp_path: Path, width: int
) -> None:
    value = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3))
    for row in value["rows"]:
        for number in range(8):
            name = f"measure_of_an_episode_{number}"
            row |= {name: 0.5, f"{name}_low": 0.4, f"{name}_high": 0.6}
    views = []
    for name in ("one", "two"):
        run = a_run(tmp_path / name)
        write(run.evaluation_json, value)
        views.append({**run_report(run.path), "id": f"{'a-long-name-' * 6}{name}"})
    for text in (run_page(views[0]), compare_page(views)):
        page = opened(text)
        page.set_viewport_size({"width": width, "height": 900})
        wide = "[...document.querySelectorAll('.wide')].map((t) => t.scrollWidth - t.clientWidth)"
        assert max(page.evaluate(wide)) <= 0
        cut = """[...document.querySelectorAll('figure svg text')].filter((text) => {
          const [inner, outer] = [text, text.ownerSVGElement].map((e) => e.getBoundingClientRect());
          return inner.left < outer.left - 1 || inner.right > outer.right + 1;
        }).map((text) => text.textContent)"""
        assert page.evaluate(cut) == []
