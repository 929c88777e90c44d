"""What other models answered, on the page: every turn and answer, who voted for what, what came of
it, and what is said if the files do not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from composer_replication.core.codec import record_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.site import AnchorReason, Answer
from composer_replication.core.stamps import write_stamp
from composer_replication.core.trace import ToolCall, Turn
from composer_replication.data.replay.ask import replay
from composer_replication.report.answers_section import answers_section
from composer_replication.report.answers_view import answers_by_teacher
from composer_replication.report.audit_page import audit_page
from composer_replication.report.audit_view import audit_view
from composer_replication.report.explanations import ANSWERED, ANSWERED_SHORT
from composer_replication.report.funnel import NO_RESULT
from composer_replication.report.limits import PageLimits
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.work import work_view
from tests.report.pages import EVIL, Page, a_run, a_session, answer_all, fill, write


def answered(work: Path, *, count: int = 3, text: str = "const x = 1") -> dict[str, Any]:
    sessions = [a_session(f"s{i}", repository=f"r{i % 2}") for i in range(count)]
    answer_all(work, fill(work, sessions), text=text)
    return work_view(work)


def article(page: Page, name: str) -> str:
    return page.text_of[name]


def test_a_turn_stands_beside_each_answer_with_its_vote_and_what_came_of_it(tmp_path: Path) -> None:
    page = Page(audit_page(answered(tmp_path)))
    pair, anchor, nothing = (article(page, name) for name in ("a001", "a002", "a003"))
    assert "a preference. moonshot, zhipu, deepseek (3 of 3 families) agree" in pair
    assert "Evidence against the log: failed. Not curated yet. Booked here: $0.0060." in pair
    assert "in the log · 0 of 3 votes for it" in pair
    assert pair.count("voted for action 1") == 3 and pair.count(": the chosen message") == 1
    assert "kimi · $0.0020 by our count, it reports $0.0010" in pair
    assert "family moonshot · answered by moonshot/kimi-1 · through router" in pair
    assert "-x\n+const x = 1 1" in pair
    assert "in the log · 2 of 3 votes for it" in anchor
    assert anchor.count("voted for what the log's model did") == 2
    assert anchor.count("voted for action 1") == 1 and "chosen" not in anchor
    assert "Fewer than two families answered." in nothing and "voted for" not in nothing
    assert nothing.count("unusable: curate: min_words: const x = 1") == 2
    assert nothing.count("not weighed: nothing to compare it with") == 1


def test_the_rows_filter_by_outcome_teacher_and_problem(tmp_path: Path) -> None:
    page = Page(audit_page(answered(tmp_path, count=4)))
    value = page.lists["answers"]
    rows = [dict(zip(value["fields"], row, strict=True)) for row in value["rows"]]
    assert len(rows) == len(value["articles"]) == 4
    assert [row["outcome"] for row in rows] == ["pair", "agreed", "too_few_families", "pair"]
    assert rows[0] | {"text": ""} == {
        "name": "a001", "outcome": "pair", "teacher": ["kimi", "glm", "deepseek"], "problem": [],
        "kind": "edit_no_match", "tool": "Edit", "repository": "r0", "model": "model-a",
        "split": "", "day": "", "usd": 0.006, "title": "Edit: text not found", "text": "",
    }  # fmt: skip
    assert rows[2]["problem"] == ["curate: min_words"]
    options = [a["value"] for tag, a in page.elements if tag == "option"]
    assert {"pair", "agreed", "too_few_families", "kimi", "glm", "curate: min_words"} <= {*options}


def test_the_counts_are_those_of_the_files(tmp_path: Path) -> None:
    work = answered(tmp_path, count=7)
    values = [value for _, value in read_lines(tmp_path / "answers.jsonl")]
    turns = json.loads((tmp_path / "replay.json").read_text("utf-8"))["turns"]
    rows = answers_by_teacher(work["answered"])
    assert [row["teacher"] for row in rows] == ["kimi", "glm", "deepseek"]
    for row in rows:
        votes = [turn["votes"].get(row["teacher"]) for turn in turns.values()]
        mine = [value for value in values if value["teacher"] == row["teacher"]]
        assert row["answers"] == len(mine) == 7
        assert row["voted"] == sum(vote is not None for vote in votes)
        assert row["same"] == votes.count(0)
        assert row["unusable"] == sum(bool(value.get("problem")) for value in mine)
        assert row["usd"] == pytest.approx(sum(value["usd"] for value in mine))
    page = Page(str(answers_section(work, PageLimits())))
    assert "21 answers of 3 teachers from 3 families at 7 turns of the logs, booked at $0.0420" in (
        page.text
    )
    assert [a["href"] for tag, a in page.elements if tag == "a"][:3] == [
        "#answers?outcome=pair", "#answers?outcome=agreed", "#answers?outcome=too_few_families",
    ]  # fmt: skip


def test_a_site_and_its_answers_name_each_other(tmp_path: Path) -> None:
    page = Page(audit_page(answered(tmp_path)))
    for site, turn in (("s001", "a001"), ("s003", "a002"), ("s005", "a003")):
        assert f"The turn is {site}." in article(page, turn)
        assert "What other models answered here" in article(page, site)
    assert "What other models" not in article(page, "s002")  # a refused call: nobody was asked
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert {"#a001", "#a002", "#a003"} <= {*links}


def test_a_run_page_has_them_too_and_a_folder_without_answers_has_no_section(
    tmp_path: Path,
) -> None:
    answered(tmp_path / "asked")
    run = a_run(tmp_path / "asked")
    assert "a003" in Page(run_page(run_report(run.path))).text_of
    fill(tmp_path / "not", [a_session("s1")])
    page = Page(audit_page(work_view(tmp_path / "not")))
    assert "answers" not in page.lists and "answers" not in page.text_of


def test_a_replay_that_kept_no_votes_says_so_and_still_names_the_pairs(tmp_path: Path) -> None:
    answered(tmp_path)
    write(tmp_path / "replay.json", {"outcomes": {"pair": 1, "agreed": 1}})
    page = Page(audit_page(work_view(tmp_path)))
    assert "a preference." in article(page, "a001") and "an anchor." in article(page, "a002")
    assert "did not record why" in article(page, "a003")
    assert article(page, "a001").count("did not record who voted") == 3
    assert "votes for it" not in article(page, "a001")


def test_curation_and_prices_stand_on_the_pair(tmp_path: Path) -> None:
    answered(tmp_path, count=4)
    pairs = [value for _, value in read_lines(tmp_path / "preferences.jsonl")]
    write_lines(tmp_path / "curated.jsonl", pairs[:1])
    dropped = {"pair_id": "s3:3", "reason": "min_words", "detail": "2 of 3"}
    write_lines(tmp_path / "dropped.jsonl", [dropped])
    page = Page(audit_page(work_view(tmp_path)))
    assert "Kept by recompose curate." in article(page, "a001")
    assert "Dropped by recompose curate: min_words: 2 of 3." in article(page, "a004")
    assert "curate" not in article(page, "a002")


def test_stale_answers_are_not_shown_and_lost_ones_are_counted(tmp_path: Path) -> None:
    answered(tmp_path)
    rows = [value for _, value in read_lines(tmp_path / "answers.jsonl")]
    write_lines(tmp_path / "answers.jsonl", [*rows, {**rows[0], "site_id": "gone:3:-"}])
    page = Page(audit_page(work_view(tmp_path)))
    assert "Not shown: 1 answered turn of sessions that are not here." in page.text
    write_stamp(tmp_path / "answers.jsonl", made_from=[tmp_path / "sessions.jsonl"])
    (tmp_path / "sessions.jsonl").write_bytes(
        (tmp_path / "sessions.jsonl").read_bytes().replace(b"Fix it.", b"Mend it")
    )
    page = Page(audit_page(work_view(tmp_path)))
    assert "answers.jsonl was made from another sessions.jsonl" in page.text_of["answers"]
    assert "answers" not in page.lists
    (tmp_path / "answers.meta.json").unlink()
    write_lines(tmp_path / "answers.jsonl", [{**rows[0], "site_id": "s1"}])
    with pytest.raises(DataError, match="no turn of a session"):
        work_view(tmp_path)


def test_an_audit_of_some_sessions_has_the_answers_of_these(tmp_path: Path) -> None:
    work = answered(tmp_path, count=6)
    page = Page(audit_page(work, view=audit_view(tmp_path, project="r1")))
    assert len(page.lists["answers"]["rows"]) == 3
    assert "9 answers of 3 teachers from 3 families at 3 turns" in page.text


def test_hostile_answers_add_no_element_and_a_long_list_stays_small(tmp_path: Path) -> None:
    plain = Page(audit_page(answered(tmp_path / "plain"))).shape
    for text in EVIL:
        page = Page(audit_page(answered(tmp_path / "evil", text=text)))
        lines = {"ins": plain["ins"] * len(f"{text} 1".splitlines())}
        assert page.shape == {**plain, **lines} and page.comments == []
    work = answered(tmp_path / "long", count=60, text="word " * 400)
    for room in (2_000_000, 40_000):
        text = audit_page(work, max_bytes=room * 2)
        assert len(text.encode()) <= room * 2
        assert len(Page(text).lists["answers"]["rows"]) == 60


def test_only_the_turns_whose_article_was_left_out_are_called_listed(tmp_path: Path) -> None:
    work = answered(tmp_path, count=60, text=" ".join(map(str, range(999))))
    page = Page(str(answers_section(work, PageLimits(site_bytes=3_000))))
    value = page.lists["answers"]
    left = len(value["rows"]) - len(value["articles"])
    assert left > 0 and f"The last {left} answered turns are only listed" in page.text


def test_every_outcome_and_every_reason_for_no_vote_has_its_text() -> None:
    assert {*NO_RESULT, *get_args(AnchorReason), "pair", "no result"} <= {*ANSWERED}
    assert {*NO_RESULT, *get_args(AnchorReason), "pair"} == {*ANSWERED_SHORT}


def test_a_divided_family_has_no_vote_and_the_page_says_why(tmp_path: Path) -> None:
    """Two models of one family contradict each other; one says what others say."""
    session = a_session("s1")
    fill(tmp_path, [session])
    ours, other = (
        Turn(role="assistant", author="x", blocks=(ToolCall("t1", "Read", {"file_path": name}),))
        for name in ("ours.py", "other.py")
    )
    answers = tuple(
        Answer(site_id="s1:3:-", teacher=teacher, family=family, turn=turn)
        for teacher, family, turn in (
            ("kimi", "moonshot", ours), ("kimi-2", "moonshot", other),
            ("glm", "zhipu", ours), ("deepseek", "deepseek", ours),
        )
    )  # fmt: skip
    replayed = replay([session], lambda _, turn: {3: answers}.get(turn), min_families=2)
    turn = next(turn for turn in replayed if turn.turn == 3)
    write_lines(tmp_path / "answers.jsonl", map(record_to_json, answers))
    write_lines(tmp_path / "preferences.jsonl", [record_to_json(turn.result)])
    write(tmp_path / "replay.json", {"outcomes": {"pair": 1}, "turns": {"s1:3:-": turn.record()}})
    work = work_view(tmp_path)
    text = article(Page(audit_page(work)), "a001")
    assert text.count("no vote: its family gave another action as often or more often") == 2
    assert text.count("voted for action 1") == 2 and "0 of 2 votes for it" in text
    assert [row["voted"] for row in answers_by_teacher(work["answered"])] == [0, 0, 1, 1]


def test_an_unsure_answer_and_one_of_the_logs_own_family_are_told_apart(tmp_path: Path) -> None:
    answered(tmp_path)
    path = tmp_path / "replay.json"
    value = json.loads(path.read_text("utf-8"))
    value["turns"]["s0:3:-"] |= {"votes": {"kimi": 1}, "no_votes": {"glm": "own_family"}}
    write(path, value)
    text = article(Page(audit_page(work_view(tmp_path))), "a001")
    assert "no vote: the family that wrote the log" in text
    assert "no vote: less certain than replay.min_confidence" in text
    assert "0 of 1 vote for it" in text
