"""Stamps: an artefact is stale if any file that it was made from, directly or not, has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.core.stamps import check_stale, made_from, stale_artefacts, write_stamp


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """sessions -> sites -> hints -> audit, and sessions -> preferences -> curated, and examples of
    all of it."""
    for name in (
        "sessions.jsonl",
        "sites.jsonl",
        "hints.jsonl",
        "audit.json",
        "preferences.jsonl",
        "curated.jsonl",
    ):
        (tmp_path / name).write_text(name, "utf-8")
    for name, sources in (
        ("sites.jsonl", ["sessions.jsonl"]),
        ("hints.jsonl", ["sites.jsonl"]),
        ("audit.json", ["hints.jsonl"]),
        ("preferences.jsonl", ["sessions.jsonl"]),
        ("curated.jsonl", ["preferences.jsonl"]),
    ):
        write_stamp(tmp_path / name, made_from=[tmp_path / source for source in sources])
    (tmp_path / "examples").mkdir()
    built = [
        {
            "path": f"{tmp_path}/sessions.jsonl",
            "sha256": made_from(tmp_path / "sites.jsonl")["sessions.jsonl"],
        }
    ]
    built += [{"path": "elsewhere/curated.jsonl", "sha256": "of somebody's own pairs"}]
    write_json(tmp_path / "examples" / "meta.json", {"inputs": built})
    return tmp_path


def test_nothing_is_stale_while_nothing_changed(work: Path) -> None:
    assert stale_artefacts(work) == {}


def test_what_hangs_on_a_changed_file_is_stale_however_far_away(work: Path) -> None:
    (work / "sessions.jsonl").write_text("more", "utf-8")
    stale = stale_artefacts(work)
    assert list(stale) == [
        "sites.jsonl",
        "hints.jsonl",
        "audit.json",
        "preferences.jsonl",
        "curated.jsonl",
        "examples",
    ]
    assert stale["audit.json"].verbs == ("sites", "hints", "hints --audit") and stale[
        "curated.jsonl"
    ].verbs == ("replay", "curate")
    assert (stale["audit.json"].artefact, stale["audit.json"].changed) == (
        "sites.jsonl",
        "sessions.jsonl",
    )
    assert stale["examples"].verbs == ("build",)


def test_a_change_in_the_middle_leaves_what_stands_before_it(work: Path) -> None:
    (work / "sites.jsonl").write_text("others", "utf-8")
    assert list(stale_artefacts(work)) == ["hints.jsonl", "audit.json"]
    (work / "sites.jsonl").unlink()
    assert list(stale_artefacts(work)) == ["hints.jsonl", "audit.json"]


def test_without_a_stamp_an_artefact_is_the_users_own_and_a_damaged_stamp_says_so(
    work: Path,
) -> None:
    (work / "hints.meta.json").unlink()
    (work / "sites.jsonl").write_text("others", "utf-8")
    assert check_stale(work / "hints.jsonl", work=work) is None
    (work / "sites.meta.json").write_text('{"made_from": 3}', "utf-8")
    with pytest.raises(DataError, match="not a stamp") as raised:
        check_stale(work / "sites.jsonl", work=work)
    assert raised.value.fix == "run again: recompose sites"
