"""Artefacts made from other files than those that lie there now are refused: their turns would be
the wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.codec import (
    read_sessions,
    read_sites,
    record_to_json,
    write_sessions,
)
from composer_replication.core.jsonl import write_lines
from composer_replication.core.trace import Segment, Session, Text, Turn
from tests.cli.workspace import recompose, session


def prepended(old: Session) -> Session:
    """The same session with two more turns at its start, as a log that was completed later gives
    it."""
    extra = (
        Turn(role="user", author="human", blocks=(Text("Hello"),)),
        Turn(role="assistant", author="claude-test-1", blocks=(Text("Hi"),)),
    )
    turns = extra + old.turns
    return Session(
        id=old.id,
        source=old.source,
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        repository=old.repository,
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_sessions(tmp_path / "recompose" / "sessions.jsonl", [session()])
    assert recompose("sites", cwd=tmp_path).code == 0
    assert recompose("hints", cwd=tmp_path).code == 0
    return tmp_path


def test_sites_of_other_sessions_are_refused_by_hints_and_build(work: Path) -> None:
    write_sessions(work / "recompose" / "sessions.jsonl", [prepended(session())])
    for verb in ("hints", "build"):
        result = recompose(verb, cwd=work)
        assert (
            result.code == 1
            and "another sessions.jsonl" in result.err
            and "recompose sites" in result.err
        )
    assert recompose("sites", cwd=work).code == 0 and recompose("hints", cwd=work).code == 0
    assert next(read_sites(work / "recompose" / "sites.jsonl")).turn == 5


def test_hints_of_other_sites_are_refused_by_build(work: Path) -> None:
    assert recompose("sites", "--sites.detectors", "repeated_call", cwd=work).code == 0
    result = recompose("build", cwd=work)
    assert (
        result.code == 1 and "another sites.jsonl" in result.err and "recompose hints" in result.err
    )


@pytest.mark.train
def test_a_users_own_sites_are_checked_call_by_call(work: Path) -> None:
    (site,) = read_sites(work / "recompose" / "sites.jsonl")
    assert (
        next(read_sessions(work / "recompose" / "sessions.jsonl")).turns[site.turn].calls[0].id
        == site.call_id
    )
    for name in ("sites.meta.json", "hints.meta.json"):
        (work / "recompose" / name).unlink()  # as if they were written by hand
    assert recompose("build", cwd=work).code == 0
    write_lines(work / "recompose" / "sites.jsonl", [record_to_json(site) | {"turn": 1}])
    result = recompose("build", cwd=work)
    assert result.code == 1 and "does not hold the call c2" in result.err
