"""`recompose curate`: which pairs remain, the reasons for the others, and that `build` takes the
remaining ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.cli.build_inputs import pairs_and_anchors
from composer_replication.cli.flags import Common
from composer_replication.cli.job import open_job
from composer_replication.core.codec import read_preferences, record_to_json, write_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.site import Answer, Preference
from composer_replication.core.trace import Session, Turn
from composer_replication.data.curate.pair_export import pair_of
from composer_replication.tokens.split import is_held_out
from tests.cli.workspace import inside, recompose
from tests.data.curate.pairs import call, say, session

GOOD, OWN = call("Read", file_path="src/limit.py"), say("I will look at what the test reads.")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Six sessions of three repositories; the last is a copy of the first."""
    sessions: list[Session] = [
        session(OWN, id=f"s{n}", file_text=f"x = {n}", repository=f"acme/app{n % 3}")
        for n in range(5)
    ]
    sessions.append(replace(sessions[0], id="s5"))
    chosen = [GOOD, call("Reed", file_path="a"), say(""), call("Read", path=3), OWN, GOOD]
    pairs = [
        Preference(session_id=f"s{n}", turn=3, chosen=turn, teachers=("kimi",))
        for n, turn in enumerate(chosen)
    ]
    folder = tmp_path / "recompose"
    write_sessions(folder / "sessions.jsonl", sessions)
    write_lines(folder / "preferences.jsonl", map(record_to_json, pairs))
    return tmp_path


def test_good_pairs_are_left_and_every_other_is_accounted_for(work: Path) -> None:
    result = recompose("curate", "--json", cwd=work)
    assert result.code == 0, result.err
    folder = work / "recompose"
    curated = list(read_preferences(folder / "curated.jsonl"))
    assert [(pair.session_id, pair.chosen) for pair in curated] == [("s0", GOOD)] and curated[
        0
    ].teachers == ("kimi",)
    dropped = {row["pair_id"]: row["reason"] for _, row in read_lines(folder / "dropped.jsonl")}
    assert dropped == {
        "s1:3": "tool_offered_filter",
        "s2:3": "answer_not_empty_filter",
        "s3:3": "tool_arguments_filter",
        "s4:3": "chosen_differs_filter",
        "s5:3": "document_deduplicator",
    }
    assert (result.value["pairs"], result.value["kept"], result.value["idle"]) == (
        6,
        1,
        ["chat_template_filter"],
    )
    assert (
        json.loads((folder / "curate.json").read_text("utf-8"))["dropped"]
        == result.value["dropped"]
    )
    assert (
        "curated_rows.jsonl" not in [path.name for path in folder.iterdir()]
        and result.value["next"] == "recompose sites"
    )  # build would be refused without them


def test_the_terminal_names_the_first_of_each_reason(work: Path) -> None:
    result = recompose("curate", cwd=work)
    assert "kept 1: 1 to train on, 0 held out" in result.out
    assert (
        "s1:3: chosen: there is no tool 'Reed'" in result.out
        and "not run  chat_template_filter" in result.out
    )
    assert "s5:3: like s0:3" in result.out  # the duplicate and its original


def test_no_pairs_at_all_is_said_in_words(work: Path) -> None:
    (work / "recompose" / "preferences.jsonl").write_text("", "utf-8")
    result = recompose("curate", cwd=work)
    assert (
        result.code == 0
        and "preferences.jsonl holds no pair" in result.out
        and "every pair was dropped" not in result.out
    )


def test_held_out_pairs_come_first_so_that_no_copy_of_them_is_trained_on(work: Path) -> None:
    """Whichever of two copies is held out, the other one is dropped."""
    path = work / "recompose" / "sessions.jsonl"
    from composer_replication.core.codec import read_sessions
    from composer_replication.core.config.data_settings import HeldOutSettings

    by = HeldOutSettings(by="session", fraction=0.5)
    sessions = list(read_sessions(path))
    copies = [replace(sessions[0], id=f"c{n}") for n in range(12)]
    outside = [s.id for s in copies if is_held_out(s, settings=by)]
    assert 0 < len(outside) < 12
    # training sessions come first in the file
    ordered = sorted(copies, key=lambda s: s.id in outside)
    write_sessions(path, ordered)
    write_lines(
        work / "recompose" / "preferences.jsonl",
        [record_to_json(Preference(session_id=s.id, turn=3, chosen=GOOD)) for s in ordered],
    )
    result = recompose(
        "curate", "--held_out.by", "session", "--held_out.fraction", "0.5", "--json", cwd=work
    )
    assert result.code == 0, result.err
    assert [
        pair.session_id for pair in read_preferences(work / "recompose" / "curated.jsonl")
    ] == outside[:1]
    assert (
        result.value["dropped"]["leaks_held_out"] == 12 - len(outside)
        and result.value["kept_held_out"] == 1
    )


def test_rows_for_other_trainers_and_dry_run(work: Path) -> None:
    assert recompose("curate", "--curate.rows", "true", "--dry-run", cwd=work).code == 0
    assert not (work / "recompose" / "curated.jsonl").exists()
    assert recompose("curate", "--curate.rows", "true", cwd=work).code == 0
    ((_, row),) = read_lines(work / "recompose" / "curated_rows.jsonl")
    pair = pair_of(row)
    assert (
        pair.chosen.turn == GOOD
        and pair.repository == "acme/app0"
        and pair.preference.teachers == ("kimi",)
    )


def test_what_cannot_be_used_is_said_with_a_remedy(work: Path) -> None:
    result = recompose("curate", "--curate.recipe", "defualt", cwd=work)
    assert result.code == 1 and "no recipe 'defualt'" in result.err
    (work / "bytes.yaml").write_bytes(b"\xff\xfep\x00")
    result = recompose("curate", "--curate.recipe", "bytes.yaml", cwd=work)
    assert result.code == 1 and "a recipe is UTF-8 text" in result.err
    result = recompose("curate", "--curate.engine", "data_juicer", cwd=work)
    assert result.code == 1 and "no Python at" in result.err
    write_lines(
        work / "recompose" / "preferences.jsonl",
        [record_to_json(Preference(session_id="zz", turn=3, chosen=GOOD))],
    )
    result = recompose("curate", cwd=work)
    assert result.code == 1 and "1 session with pairs that are not here, e.g. zz" in result.err
    (work / "recompose" / "preferences.jsonl").unlink()
    result = recompose("curate", cwd=work)
    assert result.code == 1 and "recompose replay" in result.err


def answered(work: Path, replies: dict[str, Turn]) -> None:
    """Each of 24 sessions answered at turn 3 by three families."""
    sessions = [session(OWN, id=f"s{n}", file_text=f"x = {n}") for n in range(24)]
    folder = work / "recompose"
    write_sessions(folder / "sessions.jsonl", sessions)
    turns = [
        Answer(
            site_id=f"s{n}:3:-",
            teacher=f"t-{family}",
            family=family,
            turn=turn if turn.text else call("Read", file_path=f"{n}.py"),
        )
        for n in range(24)
        for family, turn in replies.items()
    ]
    write_lines(folder / "answers.jsonl", map(record_to_json, turns))
    write_lines(
        folder / "preferences.jsonl",
        [record_to_json(Preference(session_id="s0", turn=3, chosen=GOOD))],
    )


@pytest.mark.parametrize(
    ("expected", "passed", "message"),
    [("", True, "collapses, as it must"), ("Hm.", False, "does NOT collapse")],
)
def test_check_tells_teachers_that_look_from_those_that_always_say_the_same(
    work: Path, expected: str, passed: bool, message: str
) -> None:
    answered(work, dict.fromkeys("abc", say(expected)))
    shown = recompose("curate", "--check", cwd=work)
    assert shown.code == (0 if passed else 3) and message in shown.out, shown.err
    assert f"next   recompose {'sites' if passed else 'replay'}" in shown.out
    value = recompose("curate", "--check", "--json", cwd=work).value["check"]
    assert value["null_test"]["pairs"] == 24 and value["null_test"]["passed"] is passed
    assert value["left_out_min_families"] == 2 and [
        (teacher["family"], teacher["same"]) for teacher in value["left_out"]
    ] == [(f, 24) for f in "abc"]


def test_check_leaves_no_family_out_where_too_few_would_be_left(work: Path) -> None:
    answered(work, dict.fromkeys("ab", say("")))
    shown = recompose("curate", "--check", cwd=work)
    assert shown.code == 0 and "no family can be left out" in shown.out
    assert recompose("curate", "--check", "--json", cwd=work).value["check"]["left_out"] == []


def test_build_takes_what_is_left_and_refuses_what_is_stale(work: Path) -> None:
    assert recompose("curate", cwd=work).code == 0
    with inside(work):
        job = open_job(Common())
        assert pairs_and_anchors(job) == (job.curated, None)
        write_lines(
            job.preferences, [record_to_json(Preference(session_id="s0", turn=3, chosen=OWN))]
        )
        with pytest.raises(
            DataError, match=r"curated\.jsonl was made from another preferences\.jsonl"
        ):
            pairs_and_anchors(job)
        job.curated.unlink()
        assert pairs_and_anchors(job) == (job.preferences, None)
