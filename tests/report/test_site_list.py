"""The packed list of sites: its rows, what its filters offer, diffs, and how it stays small."""

from __future__ import annotations

import random
from pathlib import Path

from composer_replication.core.site import short_name
from composer_replication.report.audit_page import audit_page
from composer_replication.report.audit_view import audit_view
from composer_replication.report.diffs import edit_lines
from composer_replication.report.heat import clearest_site
from composer_replication.report.limits import PageLimits
from composer_replication.report.site_article import site_article, turn_block
from composer_replication.report.sites_section import site_link, sites_section
from composer_replication.report.views import APART, MISTAKE
from composer_replication.report.work import work_view
from tests.report.pages import EVIL, Page, a_session, build, fill


def rows_of(page: Page) -> list[dict[str, object]]:
    fields = page.packed["fields"]
    return [dict(zip(fields, row, strict=True)) for row in page.packed["rows"]]


def test_every_site_is_a_row_and_an_article(tmp_path: Path) -> None:
    sites = fill(tmp_path, [a_session(f"s{i}", repository=f"r{i % 2}") for i in range(40)])
    page = Page(audit_page(work_view(tmp_path), view=audit_view(tmp_path)))
    rows = rows_of(page)
    assert len(rows) == len(page.packed["articles"]) == 80
    assert rows[0] | {"day": "", "tokens": 0} == {
        "name": "s001", "kind": "edit_no_match", "tool": "Edit", "repository": "r0",
        "model": "model-a", "split": "", "category": "mistake", "day": "", "tokens": 0,
        "lasting": short_name(sites[0].id), "title": "Edit: text not found", "text": "no match",
    }  # fmt: skip
    facets = [a["data-facet"] for _, a in page.elements if "data-facet" in a]
    assert facets == ["q", "kind", "tool", "repository", "category", "sort"]  # one model, no split


def test_held_out_sessions_are_a_split(tmp_path: Path) -> None:
    fill(tmp_path, [a_session("s1"), a_session("s2")])
    skipped = [{"channel": "session", "reason": "held_out", "session_id": "s2", "count": 1}]
    build(tmp_path, views=1, trained=1, skipped=skipped)
    rows = rows_of(Page(audit_page(work_view(tmp_path))))
    assert {str(row["name"]): row["split"] for row in rows} == {
        "s001": "training", "s002": "training", "s003": "held out", "s004": "held out",
    }  # fmt: skip


def test_rows_show_control_characters_and_links_find_their_rows(tmp_path: Path) -> None:
    evil = "".join(EVIL)
    fill(tmp_path, [a_session("s1", repository=evil), a_session("s2")])
    row = rows_of(Page(audit_page(work_view(tmp_path))))[0]
    assert "\x1b" not in str(row["repository"]) and "\u202e" not in str(row["repository"])
    assert site_link("x", repository="a b&c\x1b") == (
        '<a href="#sites?repository=a%20b%26c%E2%90%9B">x</a>'
    )


def test_a_long_list_keeps_every_row_within_its_bytes(tmp_path: Path) -> None:
    words = random.Random(0)
    texts = [" ".join(str(words.random()) for _ in range(120)) for _ in range(30)]
    fill(tmp_path, [a_session(f"s{i}", text=text) for i, text in enumerate(texts)])
    shown = work_view(tmp_path)["shown"]
    sizes = {}
    for room in (400_000, 40_000, 4_000):
        limits = PageLimits(site_bytes=room)
        section = Page(sites_section(shown, probe=None, limits=limits, folder_flags=""))
        assert len(section.packed["rows"]) == 60
        sizes[room] = len(section.packed["articles"])
    assert sizes[400_000] == sizes[40_000] == 60 and 0 < sizes[4_000] < 60


def test_a_site_without_a_hint_says_why(tmp_path: Path) -> None:
    fill(tmp_path, [a_session("s1")])
    view = dict(work_view(tmp_path)["shown"][0])
    texts = {}
    for place in (MISTAKE, APART):
        shown = {**view, "hint": None, "message": {**view["message"], "place": place}}
        texts[place] = Page(
            site_article(shown, tokens=None, probe=None, limits=PageLimits(), folder_flags="")
        ).text
    assert "no writer knew anything useful" in texts[MISTAKE]
    assert "this is not counted" not in texts[MISTAKE]
    assert "this is not counted as a mistake" in texts[APART] and "writer" not in texts[APART]


def test_an_edit_is_a_diff_and_another_call_is_not() -> None:
    edit = {"file_path": "a.py", "old_string": "x = 1\ny", "new_string": "x = <2>\ny"}
    block = {"type": "call", "name": "Edit", "arguments": edit}
    turn = {"turn": 3, "role": "assistant", "author": "", "tag": "", "place": "mistake"}
    page = Page(turn_block({**turn, "blocks": [block]}, 500))
    assert (page.shape["del"], page.shape["ins"]) == (1, 1)
    assert "-x = 1\n+x = <2>\n y" in page.text and "a.py" in page.text
    assert "old_string" not in page.text
    assert edit_lines({"command": "ls"}) is None
    assert edit_lines({"edits": [edit, edit]}) == 2 * ["-x = 1", "+x = <2>", " y"]
    assert edit_lines({"input": "*** Begin Patch\n+a"}) == ["*** Begin Patch", "+a"]
    assert edit_lines({"edits": [{"old": 1}]}) is None
    pi = {"oldText": "x = 1", "newText": "x = 2"}
    assert edit_lines({"path": "a.py", **pi}) == edit_lines({"edits": [pi]}) == ["-x = 1", "+x = 2"]


def test_the_clearest_site_is_that_of_the_furthest_token_at_the_first_step() -> None:
    def token(first: float, last: float) -> dict[str, object]:
        return {"text": "a", "first": (first, 0, 0), "last": (last, 0, 0)}

    sites = {"a": [token(0.1, 0.9)], "b": [token(0.0, 0.0), token(0.4, 0.0)], "c": []}
    assert clearest_site({"sites": sites}) == "b"
    assert clearest_site({"sites": {}}) == clearest_site({"sites": {"a": [token(0, 1)]}}) == ""
