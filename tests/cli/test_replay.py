"""`recompose replay` on sessions recorded in the workshop: from logs to pairs and anchors, and its
refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.codec import (
    read_anchors,
    read_answers,
    read_preferences,
    read_sessions,
    write_sessions,
)
from composer_replication.data.replay.actions import canonical_action
from composer_replication.tokens.artefact import load_dataset
from composer_replication.workshop.demonstrators import FAMILIES, oracle
from composer_replication.workshop.recorded_task import env_before
from composer_replication.workshop.sandbox import Sandbox
from tests.cli.workspace import files, recompose, session
from tests.workshop.recordings import played_messages, record, tasks_of

pytestmark = pytest.mark.train
SEED, COUNT = 77, 24


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    with Sandbox() as sandbox:
        recorded = record(
            folder,
            sandbox,
            seed=SEED,
            messages=list(played_messages(tasks_of(SEED, COUNT), sandbox)),
        )
    assert not recorded.left_out
    return folder


@pytest.fixture(scope="module")
def work(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    for verb in (["ingest", str(logs)], ["sites"], ["hints"], ["replay"]):
        assert recompose(*verb, cwd=folder).code == 0, verb
    return folder


def test_pairs_cure_the_detour_and_anchors_hold_what_only_the_reward_sees(work: Path) -> None:
    artefacts = work / "recompose"
    sessions = {s.id: s for s in read_sessions(artefacts / "sessions.jsonl")}
    pairs, anchors = (
        list(read_preferences(artefacts / "preferences.jsonl")),
        list(read_anchors(artefacts / "anchors.jsonl")),
    )
    rejected = [
        canonical_action(pair.rejected_turn(sessions[pair.session_id])).parts[0][0]
        for pair in pairs
    ]
    assert len(pairs) >= 4 and rejected.count("list_files") >= len(pairs) - 1
    assert all(pair.rejected is None and len(pair.teachers) == len(FAMILIES) for pair in pairs)
    with Sandbox() as sandbox:
        for pair in pairs:
            env = env_before(sessions[pair.session_id], pair.turn, sandbox=sandbox)
            # on this level the families that agree are right
            assert canonical_action(oracle(env)) == canonical_action(pair.chosen)
    reasons = {
        reason: [a for a in anchors if a.reason == reason] for reason in ("agreed", "no_consensus")
    }
    assert len(reasons["agreed"]) > COUNT and reasons["no_consensus"]
    for anchor in reasons["no_consensus"]:  # the end of an episode: test, or say that it is done
        (name, _), *_ = canonical_action(sessions[anchor.session_id].turns[anchor.turn]).parts
        assert name in ("run_tests", "")
    failed = {
        (s.id, ref.turn)
        for s in sessions.values()
        for ref in s.calls().values()
        if ref.result is not None and ref.result.is_error
    }
    assert failed and not failed & {(a.session_id, a.turn) for a in anchors}


def test_the_table_accounts_for_every_turn(work: Path) -> None:
    result = recompose("replay", "--json", cwd=work)
    value = result.value
    turns = sum(
        t.role == "assistant"
        for s in read_sessions(work / "recompose" / "sessions.jsonl")
        for t in s.turns
    )
    assert value["asked"] == turns and value["answers"] == 3 * turns == len(
        list(read_answers(work / "recompose" / "answers.jsonl"))
    )
    assert (
        value["pairs"] + value["agreed"] + value["no_consensus"] + sum(value["skipped"].values())
        == turns
    )
    assert (
        value["skipped"]["erred"] > 0 and value["usd"] == 0 and value["next"] == "recompose curate"
    )
    text = recompose("replay", cwd=work).out
    assert "never a measurement" in text and "erred" in text and "scripted-birch" in text


def test_build_takes_pairs_and_anchors_up_and_refuses_those_of_other_sessions(work: Path) -> None:
    result = recompose("build", "--json", cwd=work)
    assert result.code == 0
    data = load_dataset(work / "recompose" / "examples")
    value = recompose("replay", "--json", cwd=work).value
    assert len(data.pairs) == value["pairs"] == result.value["pairs"]
    assert "raw, of preferences.jsonl: not curated; recompose curate" in " ".join(
        recompose("build", cwd=work).out.split()
    )
    recompose("curate", cwd=work)
    assert "not curated" not in recompose("build", cwd=work).out
    (work / "recompose" / "curated.jsonl").unlink()
    held = sum(len(example.anchored) for example in data.examples)
    lost = sum(n for name, n in result.value["skipped"].items() if name.startswith("anchor/"))
    assert (
        held == result.value["anchors"] > 0
        and held + lost == value["agreed"] + value["no_consensus"]
    )
    examples_by_session = {example.session_id: example for example in data.examples}
    for pair in data.pairs:
        trunk = pair.prefix_ids + pair.rejected_ids
        assert examples_by_session[pair.session_id].ids[: len(trunk)] == trunk


def test_pairs_of_ones_own_stand_alone(work: Path) -> None:
    mine = work / "mine.jsonl"
    mine.write_bytes(
        (work / "recompose" / "preferences.jsonl").read_bytes().splitlines(keepends=True)[0]
    )
    value = recompose("build", "--json", "--build.pairs", str(mine), cwd=work).value
    assert (value["pairs"], value["anchors"]) == (1, 0)


def test_answers_to_other_sessions_are_refused(logs: Path, tmp_path: Path) -> None:
    log = sorted(logs.rglob("*.jsonl"))
    for verb in (["ingest", str(log[0])], ["sites"], ["hints"], ["replay"]):
        assert recompose(*verb, cwd=tmp_path).code == 0
    for verb in (["ingest", str(log[1])], ["sites"], ["hints"]):
        assert recompose(*verb, cwd=tmp_path).code == 0
    result = recompose("build", cwd=tmp_path)
    assert (
        result.code == 1
        and "another sessions.jsonl" in result.err
        and "recompose replay" in result.err
    )


def test_a_dry_run_writes_nothing(logs: Path, tmp_path: Path) -> None:
    assert recompose("ingest", str(next(logs.rglob("*.jsonl"))), cwd=tmp_path).code == 0
    before = files(tmp_path)
    result = recompose("replay", "--dry-run", "--json", cwd=tmp_path)
    assert result.code == 0 and files(tmp_path) == before
    assert [Path(path).name for path in result.value["would_write"]] == [
        "answers.jsonl",
        "preferences.jsonl",
        "anchors.jsonl",
    ]


def test_other_logs_need_real_teachers(tmp_path: Path) -> None:
    assert recompose("replay", cwd=tmp_path).code == 1  # no sessions yet
    write_sessions(tmp_path / "recompose" / "sessions.jsonl", [session()])
    result = recompose("replay", cwd=tmp_path)
    assert (
        result.code == 1
        and "1 of 1 sessions were not recorded there" in result.err
        and "set replay.teachers =" in " ".join(result.err.split())
    )
    assert "sess-aaaa" in result.err and files(tmp_path) == {"recompose/sessions.jsonl"}
