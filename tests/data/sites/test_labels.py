"""The default detectors on sessions of our own of every era, and against verdicts that a reader gave on public sessions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.data import SitesSettings
from composer_replication.core.site import Site
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find import find_logs
from composer_replication.data.sites.find import find_sites
from tests.conftest import OWN_LOGS

MIN_PRECISION = 0.95


# What our own sessions were written to hold, by what the program's results say.
OWN_MISTAKES = {"unknown_tool": 6, "file_missing": 7, "bad_arguments": 6}
OWN_MISTAKES |= {"edit_no_match": 6, "edit_multi_match": 2, "edit_not_read": 5, "edit_stale": 1}
NEVER_A_MISTAKE = ("test_failed", "hook_blocked", "user_rejected", "interrupted", "permission_denied", "sibling_errored")


def test_sessions_of_our_own_give_the_same_sites() -> None:
    sites = [
        site
        for result in ingest(find_logs(OWN_LOGS))
        for session in result.sessions
        for site in find_sites(session, settings=SitesSettings())
    ]
    mistakes = Counter(site.kind for site in sites if site.category == "mistake")
    assert {kind: mistakes[kind] for kind in OWN_MISTAKES} == OWN_MISTAKES
    assert {site.kind for site in sites} >= set(NEVER_A_MISTAKE) and not mistakes.keys() & set(NEVER_A_MISTAKE)


@pytest.mark.real
def test_precision_and_recall_of_mistakes(traces_dir: Path, repository_root: Path) -> None:
    labels: list[dict[str, Any]] = json.loads((repository_root / "tests" / "labels" / "sites.json").read_text())["labels"]
    found: dict[tuple[str, str | None], Site] = {}
    for result in ingest(find_logs([traces_dir])):
        for session in result.sessions:
            for site in find_sites(session, settings=SitesSettings()):
                found[(Path(site.file).name, site.call_id)] = site
    named = {(row["file"], row["call_id"]): row["verdict"] == "mistake" for row in labels}
    flagged = {(row["file"], row["call_id"]) for row in labels if row["flagged"]}
    ours = {key for key, site in found.items() if site.category == "mistake"}
    assert len(flagged) >= 60
    unlabelled = [key for key in ours if key not in named]
    assert not unlabelled, f"mistakes nobody has read: {unlabelled}"
    measured: dict[str, dict[str, int]] = {}
    for name, keys in {"all": set(named), "flagged": flagged, "unflagged": set(named) - flagged}.items():
        right = sum(named[k] for k in ours & keys)
        measured[name] = {"labels": len(keys), "found": len(ours & keys), "right": right, "mistakes": sum(named[k] for k in keys)}
        assert right >= MIN_PRECISION * len(ours & keys), (name, [(k, found[k].detail) for k in ours & keys if not named[k]])
    assert measured["flagged"]["found"] >= 20  # a detector that finds nothing is precise, too
    build = repository_root / "build"
    build.mkdir(exist_ok=True)
    (build / "labels.json").write_text(json.dumps(measured), "utf-8")  # scripts/run_tests.py prints it
