"""Measure how well the default detectors agree with labels of a reader: precision and recall with
95 % Wilson intervals.

    python scripts/measure_labels.py tests/labels/dev.json --sessions FOLDER \\
        [--json build/labels.json] [--misses]

Labels whose session is not in the folder are left out and counted. If the detectors find no site
for a label, their verdict is "benign". Numbers on labels that the rules were tuned on (sites.json,
dev.json) describe these labels only; to speak about new logs takes a file that was sealed until
the rules were frozen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.site import Site
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.data.sites.shell_rules import PATH_EXPLORED, PATH_STATED
from composer_replication.evaluation.stats import wilson

Key = tuple[str, str]
Label = dict[str, Any]
BENIGN = "benign"


def read_labels(files: Iterable[Path]) -> list[Label]:
    """The labels of several files, in order."""
    return [label for file in files for label in json.loads(file.read_text("utf-8"))["labels"]]


def sites_of(folder: Path) -> tuple[dict[Key, Site], set[str]]:
    """Every site with a call that the default detectors find in a folder of sessions, by file and
    call id; and the names of the files."""
    sites: dict[Key, Site] = {}
    logs = find_logs([folder])
    names = {path.name for path in folder.rglob("*.jsonl")}
    for result in ingest(logs):
        for session in result.sessions:
            for site in find_sites(session, settings=SitesSettings()):
                if site.call_id is not None:
                    sites[Path(site.file).name, site.call_id] = site
    return sites, names


def share(count: int, total: int) -> dict[str, Any]:
    """A share with its counts and interval.

    >>> share(9, 10)
    {'n': 10, 'k': 9, 'share': 0.9, 'low': 0.5958, 'high': 0.9821}
    """
    if not total:
        return {"n": 0, "k": 0, "share": None, "low": None, "high": None}
    low, high = wilson(count, total)
    return {
        "n": total,
        "k": count,
        "share": round(count / total, 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def measure(labels: Sequence[Label], sites: Mapping[Key, Site]) -> dict[str, Any]:
    """Precision and recall of "mistake" (all, flagged, not flagged, sure) and of every verdict, and
    how missing paths were classified.

    >>> measure([], {})["mistake"]["flagged"]["precision"]
    {'n': 0, 'k': 0, 'share': None, 'low': None, 'high': None}
    """
    ours = [_category(sites, label) for label in labels]
    theirs = [str(label["verdict"]) for label in labels]
    groups = {
        "all": [True] * len(labels),
        "flagged": [bool(x["flagged"]) for x in labels],
        "not flagged": [not x["flagged"] for x in labels],
    }
    groups["sure"] = [not x.get("unsure") for x in labels]
    mistake = {
        name: _precision_recall("mistake", ours, theirs, selected)
        for name, selected in groups.items()
    }
    verdicts = {
        name: _precision_recall(name, ours, theirs, groups["all"])
        for name in sorted({*theirs, *ours})
    }
    sizes = {name: sum(selected) for name, selected in groups.items()}
    return {
        "labels": len(labels),
        "labels_by": sizes,
        "mistake": mistake,
        "verdicts": verdicts,
        "paths": _paths(labels, sites),
    }


def _category(sites: Mapping[Key, Site], label: Label) -> str:
    site = sites.get((label["file"], label["call_id"]))
    return site.category if site else BENIGN


def _precision_recall(
    name: str, ours: Sequence[str], theirs: Sequence[str], selected: Sequence[bool]
) -> dict[str, Any]:
    pairs = [(a == name, b == name) for a, b, t in zip(ours, theirs, selected, strict=True) if t]
    right = sum(a and b for a, b in pairs)
    return {
        "precision": share(right, sum(a for a, _ in pairs)),
        "recall": share(right, sum(b for _, b in pairs)),
    }


def _paths(labels: Sequence[Label], sites: Mapping[Key, Site]) -> dict[str, Any]:
    """How the detectors classify the missing paths that a reader called stated or explored, and how
    many explored ones are kept out of training."""
    by_claim: dict[str, list[str]] = {"stated": [], "explored": []}
    for label in labels:
        if claim := label.get("path_claim"):
            site = sites.get((label["file"], label["call_id"]))
            by_claim[claim].append(f"{site.category}/{site.kind}" if site else BENIGN)
    stated, explored = by_claim["stated"], by_claim["explored"]
    return {
        "stated called stated": share(
            sum(finding in {f"mistake/{kind}" for kind in PATH_STATED} for finding in stated),
            len(stated),
        ),
        "stated called a mistake": share(
            sum(finding.startswith("mistake/") for finding in stated), len(stated)
        ),
        "explored called explored": share(
            sum(finding.endswith(f"/{PATH_EXPLORED}") for finding in explored), len(explored)
        ),
        "explored kept out of training": share(
            sum(not finding.startswith("mistake/") for finding in explored), len(explored)
        ),
    }


def table(measured: Mapping[str, Any]) -> str:
    """The measurement as lines of text."""
    lines = [f"{'':28} {'precision':30} recall"]
    for title, rows in (("mistake", measured["mistake"]), ("verdict", measured["verdicts"])):
        for name, row in rows.items():
            precision, recall = _share_text(row["precision"]), _share_text(row["recall"])
            lines.append(f"{title + ', ' + name:28} {precision:30} {recall}")
    return "\n".join(
        [*lines, *(f"{name:30} {_share_text(row)}" for name, row in measured["paths"].items())]
    )


def _share_text(share: Mapping[str, Any]) -> str:
    if share["share"] is None:
        return "none"
    return "{share:.3f} [{low:.3f}, {high:.3f}] {k}/{n}".format(**share)


def misses(labels: Sequence[Label], sites: Mapping[Key, Site]) -> list[str]:
    """One line for every label on which the detectors and the reader disagree about "mistake"."""
    lines: list[str] = []
    for label in labels:
        site = sites.get((label["file"], label["call_id"]))
        ours = f"{site.category}/{site.kind}" if site else BENIGN
        if (label["verdict"] == "mistake") != ours.startswith("mistake/"):
            lines.append(
                f"{label['file']} {label['call_id']}: {label['verdict']}/{label['kind']}, ours"
                f" {ours}: {label['why']}"
            )
    return lines


def main(arguments: list[str]) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("labels", type=Path, nargs="+")
    parser.add_argument(
        "--sessions",
        type=Path,
        action="append",
        required=True,
        help="a folder of sessions; may be given again",
    )
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument(
        "--misses",
        action="store_true",
        help="list the labels that are judged otherwise (not for a sealed file)",
    )
    options = parser.parse_args(arguments)
    sites: dict[Key, Site] = {}
    names = set[str]()
    for folder in options.sessions:
        folder_sites, files = sites_of(folder)
        sites |= folder_sites
        names |= files
    all_labels = read_labels(options.labels)
    labels = [label for label in all_labels if label["file"] in names]
    measured = measure(labels, sites)
    print(
        f"{len(labels)} labels of {len({x['file'] for x in labels})} sessions;"
        f" {len(all_labels) - len(labels)} without their session"
    )
    print(table(measured))
    labelled = {(x["file"], x["call_id"]) for x in labels}
    unread = sum(
        s.category == "mistake" and key[0] in {x["file"] for x in labels} and key not in labelled
        for key, s in sites.items()
    )
    print(f"{unread} of our mistakes in these sessions have no label")
    if options.misses:
        print("\n".join(misses(labels, sites)))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(measured, indent=1), "utf-8")
    return 0 if labels else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
