"""The pages: structure, hostile content, numbers equal to those of the files, and the size cap."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.site import Hint
from composer_replication.core.trace import HACK_ATTEMPT, Event
from composer_replication.report.audit_page import audit_page
from composer_replication.report.charts import Line, line_chart, thin
from composer_replication.report.heat import shade
from composer_replication.report.html import asset, document, el, script_text
from composer_replication.report.page import CUT_NOTE, MAX_BYTES
from composer_replication.report.rollout_sites import BARE, NOT_KEPT
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.views import NEITHER, TEACHER_ONLY
from composer_replication.report.work import order_of_sites, work_view
from tests.report.pages import (
    EVIL,
    Page,
    a_run,
    a_session,
    build,
    evaluation,
    fill,
    its_sites,
    write,
)

FORBIDDEN = {
    "iframe",
    "object",
    "embed",
    "link",
    "img",
    "base",
    "form",
    "video",
    "audio",
    "template",
    "foreignObject",
    "use",
}


def run_of(tmp_path: Path, *, text: str = "Fix it.", sessions: int = 1) -> Page:
    sites = fill(tmp_path, [a_session(f"s{i}", text=text) for i in range(sessions)], hint=text)
    build(
        tmp_path,
        views=sessions,
        trained=3 * sessions,
        skipped=[{"channel": "lm_ce", "reason": "site", "count": 2 * sessions}],
    )
    run = a_run(tmp_path, sites=sites, text=text)
    judged = evaluation(before=(0.1, 0.4), placebo=(0.05, 0.3), notes=[text], about=text)
    judged["rows"].append(
        {"name": text, "success": 0.5, "success_low": 0.4, "success_high": 0.6, text: {text: 1}}
    )
    judged["paired"].append({"a": text, "b": text, "difference": 0.0, "low": -0.1, "high": 0.1})
    write(run.evaluation_json, judged)
    (run.path / "samples").mkdir()
    write_sessions(run.path / "samples" / "step_000003.jsonl", [a_session("sample", text=text)])
    return Page(run_page(run_report(run.path)))


def audit_of(tmp_path: Path, *, text: str = "Fix it.", sessions: int = 1) -> Page:
    fill(
        tmp_path,
        [
            a_session(
                f"s{i}", text=text, tool=f"Edit{text}", author=f"m{text}", repository=f"r{text}"
            )
            for i in range(sessions)
        ],
        hint=text,
    )
    return Page(audit_page(work_view(tmp_path), folder_flags=" -o work"))


# ---- hostile content ----


@pytest.mark.parametrize("make", [run_of, audit_of])
def test_hostile_text_adds_no_element_and_no_attribute(make, tmp_path: Path) -> None:
    plain = make(tmp_path / "plain")
    for number, evil in enumerate((*EVIL, "".join(EVIL))):
        page = make(tmp_path / str(number), text=evil)
        assert page.open == [] and page.comments == [], evil
        assert page.shape == plain.shape, evil
        assert [sorted(a) for _, a in page.elements] == [sorted(a) for _, a in plain.elements], evil
        assert page.scripts == [script_text()] and page.styles == [asset("page.css")]


@pytest.mark.parametrize("make", [run_of, audit_of])
def test_a_page_can_load_nothing_and_run_nothing_but_its_own_script(make, tmp_path: Path) -> None:
    page = make(tmp_path, text="".join(EVIL))
    assert not FORBIDDEN & set(page.shape)
    for name, attributes in page.elements:
        assert not [
            a
            for a in attributes
            if a.startswith("on") or a in ("style", "src", "srcset", "action", "xlink:href")
        ], name
        assert all(attributes[a].startswith("#") for a in attributes if a == "href")
    policy = next(
        a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for rule, texts in (("script-src", page.scripts), ("style-src", page.styles)):
        (text,) = texts
        assert (
            rules[rule]
            == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        )
    assert "unsafe" not in policy


@pytest.mark.parametrize("make", [run_of, audit_of])
def test_control_characters_and_direction_overrides_are_shown_not_obeyed(
    make, tmp_path: Path
) -> None:
    text = make(tmp_path, text="".join(EVIL)).text
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]",
        text,
    )
    assert (
        "\u241b[31m" in text and "\\u202etxt.exe" in text and "<img src=x onerror=alert(1)>" in text
    )


def test_only_listed_elements_attributes_and_inner_links_can_be_written() -> None:
    with pytest.raises(ValueError, match="script"):
        el("script", "alert(1)")
    with pytest.raises(ValueError, match="onclick"):
        el("p", onclick="alert(1)")
    with pytest.raises(ValueError, match="leads out"):
        el("a", href="javascript:alert(1)")
    assert (
        el("p", "<b>", ["&", None, el("b", 1)], title='"')
        == '<p title="&quot;">&lt;b&gt;&amp;<b>1</b></p>'
    )
    assert "<title>&lt;/title&gt;" in document("</title>")


def test_the_script_writes_no_html_and_parses() -> None:
    script = script_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|setTimeout", script
    )
    assert "</" not in script and "</" not in asset("page.css") and "url(" not in asset("page.css")
    if node := shutil.which("node"):
        completed = subprocess.run(
            [node, "--check", "-"], input=script, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr


# ---- structure ----


def test_the_question_comes_first(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    sections = [a["id"] for name, a in page.elements if name == "section" and "id" in a]
    assert sections == ["result", "channels", "data", "sites", "samples", "settings"]
    links = {a["href"][1:] for name, a in page.elements if name == "a"}
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert links <= set(ids) and len(ids) == len(set(ids))


def test_attempts_to_cheat_are_counted_by_kind_and_can_be_read(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    assert "Attempts to cheat" not in page.text
    run = next((tmp_path / "runs").iterdir())
    seen = ("start-up files: conftest.py", "start-up files: x.pth", "waits: sleep 99")
    cheating = a_session("cheat", text="echo > conftest.py")
    events = tuple(Event(kind=HACK_ATTEMPT, turn=3, text=text) for text in seen)
    cheating = replace(cheating, events=events, outcome=0.0)
    write_sessions(run / "samples" / "step_000002.jsonl", [a_session("fair", text="x"), cheating])
    page = Page(run_page(run_report(run)))
    sections = [a["id"] for name, a in page.elements if name == "section" and "id" in a]
    assert "hacks" in sections
    assert "1 kept rollout tried something else" in page.text
    assert "start-up files: x.pth" in page.text and "cheat, reward 0" in page.text
    (report,) = run_report(run)["hack_attempts"]
    assert report["seen"] == list(seen) and report["place"] == "step 2"


def test_the_hint_stands_above_the_mistaken_message_and_later_turns_in_neither_context(
    tmp_path: Path,
) -> None:
    fill(tmp_path, [a_session()], hint="THE HINT")
    text = Page(audit_page(work_view(tmp_path))).text_of["s001"]
    places = [
        text.index(part)
        for part in (
            TEACHER_ONLY,
            "THE HINT",
            "the mistaken message",
            "call Edit",
            "evidence, " + NEITHER,
        )
    ]
    assert places == sorted(places)
    assert text.index("no match Fix it.") > text.index(NEITHER)
    assert (
        "evidence" not in text[: text.index("THE HINT")]
        and NEITHER not in text[: text.index("the mistaken message")]
    )


def test_what_is_no_mistake_is_not_called_one(tmp_path: Path) -> None:
    fill(tmp_path, [a_session()])
    text = Page(audit_page(work_view(tmp_path))).text_of["s002"]
    assert "not trained on by default" in text and "the mistaken message" not in text


def test_tokens_carry_both_steps_and_their_numbers(tmp_path: Path) -> None:
    page = run_of(tmp_path, text="tok")
    first, newline = page.of_class("t")[2:]  # below the site; the same two stand in the picture
    # 0.4 of 0.4, then 0.1 of 0.4: the root of a quarter is a half
    assert first["class"] == "t f9 l5"
    assert (
        first["title"]
        == "step 0: 0.4, log-prob -2.00, with the hint -1.00; step 3: 0.1, log-prob -2.00, with the"
        " hint -1.00"
    )
    assert newline["class"] == "t f0 l0"
    shows = [a["data-show"] for _, a in page.elements if "data-show" in a]
    assert shows == ["first", "last"] * 2  # beside the picture, and above the sites
    assert [shade(v, 4.0) for v in (-1.0, 0.0, 1e-9, 1.0, 4.0, 9.0)] == [0, 0, 1, 5, 9, 9]


def test_the_page_opens_on_the_first_step(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    assert [a["data-step"] for name, a in page.elements if name == "html"] == ["first"]
    pressed = [a["aria-pressed"] for _, a in page.elements if "data-show" in a]
    assert pressed == ["true", "false"] * 2


def live_run_of(tmp_path: Path, *, has_samples: bool) -> Page:
    """A run that watched a mistake of its own rollouts, beside imported sites that were never
    watched."""
    fill(tmp_path, [a_session("imported")])
    rollout = a_session("step-0:0:workshop-fix:1", tool="Patch")
    site = its_sites(rollout)[0]
    run = a_run(tmp_path, sites=[site])
    write_lines(
        run.watched_jsonl,
        [{"session_id": rollout.id, "hints": [{"site_id": site.id, "kind": site.kind}]}],
    )
    if has_samples:
        write_sessions(run.watched_dir / "sessions.jsonl", [rollout])
        write_lines(run.watched_dir / "sites.jsonl", [record_to_json(site)])
        write_lines(
            run.watched_dir / "hints.jsonl",
            [record_to_json(Hint(site_id=site.id, text="Look first.", writer="w", kind=site.kind))],
        )
    return Page(run_page(run_report(run.path)))


@pytest.mark.parametrize("has_samples", [True, False])
def test_a_live_run_shows_its_watched_rollouts_before_the_imported_sites(
    tmp_path: Path, has_samples: bool
) -> None:
    page = live_run_of(tmp_path, has_samples=has_samples)
    articles = [a["id"] for name, a in page.elements if name == "article"]
    assert articles == ["w001", "s001", "s002"]
    text = page.text_of["w001"]
    assert "tok" in text and [a["class"] for a in page.of_class("t")] == ["t f9 l5", "t f0 l0"] * 2
    assert ("Look first." in text, NOT_KEPT in text, "call Patch" in text, BARE in text) == (
        has_samples,
        not has_samples,
        has_samples,
        not has_samples,
    )
    shows = [a["data-show"] for _, a in page.elements if "data-show" in a]
    assert shows == ["first", "last"] * 2  # beside the picture, and above the sites


def test_without_a_coloured_site_on_the_page_there_is_no_legend_and_no_button(
    tmp_path: Path,
) -> None:
    fill(tmp_path, [a_session("imported")])
    # a table of a site that is no longer there
    run = a_run(tmp_path, sites=[its_sites(a_session("gone"))[0]])
    page = Page(run_page(run_report(run.path)))
    assert (
        page.of_class("site")
        and not page.of_class("t")
        and not page.of_class("scale")
        and not [a for _, a in page.elements if "data-show" in a]
    )


def test_tables_of_an_older_run_show_ids_and_the_distance_of_log_probs(tmp_path: Path) -> None:
    sites = fill(tmp_path, [a_session()])
    run = a_run(tmp_path, sites=sites)
    for step in (0, 3):
        write_json(
            run.tokens(step),
            {
                "step": step,
                "sites": [
                    {"site_id": sites[0].id, "ids": [5], "student": [-2.0], "teacher": [-0.5]}
                ],
            },
        )
    view = run_report(run.path)["watched"]
    assert view["measure"] == "distance of log-probs" and view["sites"][sites[0].id][0] == {
        "text": "token 5", "first": (1.5, -2.0, -0.5), "last": (1.5, -2.0, -0.5),
    }  # fmt: skip


def test_a_starved_step_is_a_tick_and_an_event(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    assert [a["class"] for a in page.of_class("tick")] == ["tick starved"]
    assert "step 2: starved" in page.text and "starved 1" in page.text_of["channels"]


def test_every_control_is_a_native_one_and_every_chart_has_words(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    for name, attributes in page.elements:
        if name == "svg" and attributes.get("role") == "img":
            assert attributes["aria-label"]
        if name == "button":
            assert attributes["type"] == "button"
            assert "aria-pressed" in attributes or "data-clear" in attributes
    assert any(a.get("aria-label", "").startswith("hint: divergence") for _, a in page.elements)


# ---- numbers ----


def test_the_audit_says_why_a_path_that_was_only_looked_for_stands_apart(tmp_path: Path) -> None:
    fill(tmp_path, [a_session("a")], hinted=0)
    sites = [
        replace(s, kind="path_explored", category="failed_check") if s.category == "rejected" else s
        for s in its_sites(a_session("a"))
    ]
    write_lines(tmp_path / "sites.jsonl", map(record_to_json, sites))
    (row,) = work_view(tmp_path)["apart"]
    assert (row["category"], row["kind"]) == ("failed_check", "path_explored")
    assert "a legitimate question whose answer is no" in row["why"]


def test_the_audit_counts_what_the_files_hold(tmp_path: Path) -> None:
    sessions = [
        a_session("a"),
        a_session("b", tool="Write", author="model-b"),
        a_session("c", repository="other"),
    ]
    fill(tmp_path, sessions, hinted=2)
    view = work_view(tmp_path)
    assert view["counts"] == {"sessions": 3, "turns": 24, "calls": 9, "messages": 12}
    assert (view["sites"], view["mistakes"], view["hints"]) == (6, 3, 2)
    assert view["kinds"] == [
        {"name": "edit_no_match", "count": 3, "hinted": 2, "tools": "Edit 2, Write 1"}
    ]
    tools = {row["name"]: (row["mistakes"], row["of"]) for row in view["tools"]}
    assert tools == {"Edit": (2, 2), "Write": (1, 1), "Bash": (0, 3), "Read": (0, 3)}
    assert {row["name"]: (row["mistakes"], row["of"]) for row in view["authors"]} == {
        "model-a": (2, 8),
        "model-b": (1, 4),
    }
    assert {r["name"]: (r["mistakes"], r["of"], r["sessions"]) for r in view["repositories"]} == {
        "demo": (2, 6, 2),
        "other": (1, 3, 1),
    }
    assert [(r["category"], r["kind"], r["count"]) for r in view["apart"]] == [
        ("rejected", "user_rejected", 3)
    ]
    assert view["ingest"]["removed"] == {"email": 2}
    text = Page(audit_page(view)).text
    for wanted in (
        "3sessions",
        "9tool calls",
        "3mistaken messages",
        "33.3mistakes per 100 calls",
        "a person refused the call",
        "email 2",
    ):
        assert wanted in text, wanted


def test_the_audit_page_shows_the_lift_of_each_kind_once_it_was_measured(tmp_path: Path) -> None:
    fill(tmp_path, [a_session("a")], hinted=1)
    assert "Do hints change" not in Page(audit_page(work_view(tmp_path))).text
    interval = {"n": 9, "sessions": 4, "lift": 1.25, "low": 0.5, "high": 2.0, "over_none": -0.3}
    kinds = [
        {
            "kind": "<b>k</b>",
            "n": 9,
            "needed": 6,
            "verdict": "weak: not above no hint",
            "decision": interval,
            "message": {"lift": -0.1},
        },
        {
            "kind": "other",
            "n": 2,
            "verdict": "not measurable",
            "decision": None,
            "message": {"lift": 0.2},
        },
    ]
    (tmp_path / "audit.json").write_text(json.dumps({"student": "tiny", "kinds": kinds}), "utf-8")
    text = Page(audit_page(work_view(tmp_path))).text
    for shown in (
        "Do hints change",
        "<b>k</b>",
        "+1.250",
        "-0.300",
        "-0.100",
        "6",
        "weak: not above no hint",
        "not measurable",
    ):
        assert shown in text
    old = [{"kind": "k", "n": 9, "keeps": True, "lift": 0.3}]
    (tmp_path / "audit.json").write_text(json.dumps({"student": "tiny", "kinds": old}), "utf-8")
    assert "Do hints change" not in Page(audit_page(work_view(tmp_path))).text


def test_each_station_says_why_the_rest_did_not_go_on(tmp_path: Path) -> None:
    fill(tmp_path, [a_session("a"), a_session("b"), a_session("c")], hinted=2)
    skipped = [
        {"channel": "session", "reason": "held_out", "session_id": "a"},
        {"channel": "hint", "reason": "no_hint", "count": 1},
        {"channel": "hint", "reason": "category", "count": 2},
        {"channel": "lm_ce", "reason": "site", "count": 4},
        {"channel": "content", "reason": "image", "count": 1},
    ]
    build(tmp_path, views=1, trained=3, skipped=skipped)
    view = work_view(tmp_path)
    reasons = {
        name: [(s["what"], s["count"], [(d["reason"], d["count"]) for d in s["drops"]]) for s in c]
        for name, c in view["chains"].items()
    }
    assert reasons["files"] == [
        ("log files", 2, []),
        ("files read", 1, [("foreign", 1)]),
        ("sessions", 3, []),
    ]
    assert reasons["sites"] == [
        ("sites", 6, []),
        ("mistaken messages", 3, [("rejected", 3)]),
        ("with a hint", 2, [("no_hint", 1)]),
        ("hint targets in the examples", 1, [("held_out", 1)]),
    ]
    messages = (
        "messages in lm_ce",
        3,
        [("held_out", 4), ("site", 4), ("not accounted for by the files", 1)],
    )
    assert reasons["messages"] == [("messages of a model", 12, []), messages]
    assert [s["reason"] for s in view["other_skips"]] == ["content/image"]


def test_a_run_shows_its_steps_settings_and_command(tmp_path: Path) -> None:
    page = run_of(tmp_path)
    text = page.text_of["settings"]
    assert "train.steps203" in text and "recompose train -o work" in text and "seed 7" in text
    channels = page.text_of["channels"]
    assert "lm_ceactive 360" in channels and "Off" not in channels  # 10 + 20 + 30 tokens
    assert "health/kl" in channels
    assert "The gradient was clipped in 1 of 3 steps. Clipping is meant for outliers" in channels
    assert Config().train.steps == 20


def test_data_that_changed_after_the_run_is_named(tmp_path: Path) -> None:
    sites = fill(tmp_path, [a_session()])
    build(tmp_path, views=1, trained=1, skipped=[])
    run = a_run(tmp_path, sites=sites)
    assert run_report(run.path)["stale"] == []
    with (tmp_path / "hints.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("\n")
    (tmp_path / "examples" / "examples.jsonl").unlink()
    view = run_report(run.path)
    assert view["stale"] == ["examples.jsonl", "hints.jsonl"]
    assert "examples.jsonl, hints.jsonl changed after the run" in Page(run_page(view)).text


def test_a_run_without_its_work_folder_still_has_a_page(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    view = run_report(run.path)
    assert view["work"] is None and "cannot be shown" in Page(run_page(view)).text_of["data"]


def test_token_tables_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path, sites=fill(tmp_path, [a_session()]))
    write_json(
        run.tokens(3),
        {"step": 3, "sites": [{"site_id": "s1:3:c2", "ids": [9], "student": [0], "teacher": [0]}]},
    )
    with pytest.raises(DataError, match="differ"):
        run_report(run.path)
    write_json(run.tokens(3), [])
    with pytest.raises(DataError, match="token table"):
        run_report(run.path)


def test_sites_without_sessions_name_the_verb(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sites"):
        work_view(tmp_path)
    fill(tmp_path, [a_session()])
    (tmp_path / "sessions.jsonl").unlink()
    with pytest.raises(DataError, match="no sessions"):
        work_view(tmp_path)


def test_watched_sites_come_first_then_kinds_in_turn_then_the_other_categories() -> None:
    sites = [site for i in range(3) for site in its_sites(a_session(f"s{i}"))]
    sites[2] = replace(sites[2], kind="file_missing")
    order = order_of_sites(sites, {}, first=[sites[4].id])
    assert order == [4, 0, 2, 1, 3, 5]


# ---- size ----


def test_a_page_stays_below_two_megabytes_and_says_what_was_cut(tmp_path: Path) -> None:
    huge = "<&\u202e" * 40_000
    sites = fill(
        tmp_path,
        [a_session(f"s{i}", text=huge, tool=f"t{i}{huge[:300]}") for i in range(6)],
        hint=huge,
    )
    run = a_run(tmp_path, sites=sites, steps=2000)
    for text in (audit_page(work_view(tmp_path)), run_page(run_report(run.path))):
        assert len(text.encode()) <= MAX_BYTES
        assert "more characters]" in Page(text).text
    short = run_page(run_report(run.path), max_bytes=100_000)
    assert len(short.encode()) <= 100_000 and CUT_NOTE in Page(short).text
    with pytest.raises(DataError, match="larger than"):
        run_page(run_report(run.path), max_bytes=1000)


def test_long_series_are_thinned_and_what_has_no_place_is_counted() -> None:
    points = [(i, float(i)) for i in range(1000)]
    assert (
        len(thin(points)) == 240
        and thin(points)[0] == (0, 0.0)
        and thin(points)[-1] == (999, 999.0)
    )
    chart = Page(
        line_chart("x", [Line("x", "c0", [(1, 0.0), (2, 1.0), (3, float("inf"))])], log=True)
    )
    assert "2 values cannot be drawn on this axis" in chart.text
    assert "no values" in Page(line_chart("x", [Line("x", "c0", [])])).text
    assert len(Page(line_chart("x", [Line("x", "c0", [(4, 2.0)])])).of_class("dot")) == 1
