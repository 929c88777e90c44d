"""The default detectors on sessions of our own from every era, and against a reader's verdicts on
public ones (two sets, both used for tuning)."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from scripts.measure_labels import measure, misses, read_labels, sites_of
from tests.conftest import OWN_LOGS

MIN_PRECISION, MIN_RECALL = 0.95, 0.85
SESSIONS_VARIABLE = "COMPOSER_REPLICATION_LABEL_SESSIONS"


@pytest.fixture(scope="session")
def label_sessions() -> Path:
    """The folder with the second set's sessions: the variable names it, or it is `label_sessions`
    beside the traces."""
    named, traces = (
        os.environ.get(SESSIONS_VARIABLE, ""),
        os.environ.get("COMPOSER_REPLICATION_TRACES", ""),
    )
    folder = Path(named) if named else Path(traces).resolve().parent / "label_sessions"
    if not named and not (traces and folder.is_dir()):
        pytest.skip(
            f"set {SESSIONS_VARIABLE} (python scripts/fetch_traces.py FOLDER --manifest"
            " tests/labels/manifest.json)"
        )
    if not folder.is_dir():
        pytest.fail(f"{SESSIONS_VARIABLE} names {folder}, which is no folder")
    return folder


def check(labels_file: Path, folder: Path) -> dict[str, Any]:
    """Check precision and recall on one file of labels against the floors, and keep them for
    scripts/run_tests.py to print."""
    sites, names = sites_of(folder)
    labels = [label for label in read_labels([labels_file]) if label["file"] in names]
    assert labels, f"no session of {labels_file.name} lies in {folder}"
    measured = measure(labels, sites)
    overall = measured["mistake"]["all"]
    assert overall["precision"]["share"] >= MIN_PRECISION, misses(labels, sites)
    assert overall["recall"]["share"] >= MIN_RECALL, misses(labels, sites)
    build = labels_file.parents[2] / "build"
    build.mkdir(exist_ok=True)
    results_file = build / "labels.json"
    results: dict[str, Any] = (
        json.loads(results_file.read_text("utf-8")) if results_file.exists() else {}
    )
    for group, row in measured["mistake"].items():
        precision, recall, of = row["precision"], row["recall"], measured["labels_by"][group]
        results[f"{labels_file.stem}, {group}"] = {
            "labels": of,
            "found": precision["n"],
            "right": recall["k"],
            "mistakes": recall["n"],
        }
    results_file.write_text(json.dumps(results), "utf-8")
    return measured


# What our own sessions were written to hold, by what the program's results say.
OWN_MISTAKES = {"unknown_tool": 6, "file_missing": 7, "bad_arguments": 6}
OWN_MISTAKES |= {"edit_no_match": 6, "edit_multi_match": 2, "edit_not_read": 5, "edit_stale": 1}
NEVER_A_MISTAKE = (
    "test_failed",
    "hook_blocked",
    "user_rejected",
    "interrupted",
    "permission_denied",
    "sibling_errored",
)


def test_sessions_of_our_own_give_the_same_sites() -> None:
    sites = [
        site
        for result in ingest(find_logs(OWN_LOGS))
        for session in result.sessions
        for site in find_sites(session, settings=SitesSettings())
    ]
    mistakes = Counter(site.kind for site in sites if site.category == "mistake")
    assert {kind: mistakes[kind] for kind in OWN_MISTAKES} == OWN_MISTAKES
    assert {site.kind for site in sites} >= set(NEVER_A_MISTAKE) and not mistakes.keys() & set(
        NEVER_A_MISTAKE
    )


@pytest.mark.real
def test_precision_and_recall_of_mistakes(traces_dir: Path, repository_root: Path) -> None:
    file = repository_root / "tests" / "labels" / "sites.json"
    measured = check(file, traces_dir)
    assert measured["labels"] == 154 and measured["labels_by"]["flagged"] >= 60
    # a detector that finds nothing is precise too
    assert measured["mistake"]["flagged"]["precision"]["n"] >= 20
    sites, _ = sites_of(traces_dir)
    named = {(label["file"], label["call_id"]) for label in read_labels([file])}
    unread = [key for key, site in sites.items() if site.category == "mistake" and key not in named]
    assert not unread, f"mistakes nobody has read: {unread}"


@pytest.mark.real
def test_precision_and_recall_on_the_second_set(
    label_sessions: Path, repository_root: Path
) -> None:
    measured = check(repository_root / "tests" / "labels" / "dev.json", label_sessions)
    assert measured["paths"]["explored kept out of training"]["share"] == 1.0
    assert measured["paths"]["stated called a mistake"]["share"] >= 0.9


def test_labels_hold_no_more_than_a_few_words_of_a_session(repository_root: Path) -> None:
    folder = repository_root / "tests" / "labels"
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    assert not any(entry.get("redacted") for entry in manifest), (
        "a session that holds secrets where it was published is not fetched"
    )
    split = {entry["file"]: entry["split"] for entry in manifest}
    for label in read_labels([folder / "dev.json"]):
        assert split[label["file"]] == "dev"
        assert len(label["why"]) <= 200 and len(label.get("unsure_why", "")) <= 200
        assert label["verdict"] == "benign" or label["kind"]
