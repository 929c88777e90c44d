"""Mistakes named by a reader model beside those of the rule detectors, on the labelled calls of the
public sessions.

    python benchmarks/hint_reader.py --logs FOLDER
        the rules, and a stand-in for a reader
    python benchmarks/hint_reader.py --logs FOLDER --recorded reader_answers.jsonl
        the rules, and a model's recorded readings

`tests/labels/sites.json` holds 154 verdicts of one reader on calls of the sessions in FOLDER
(scripts/fetch_traces.py). Precision is over the labelled calls that were named; calls without a
label are counted apart. The rules were corrected on these labels, so their numbers are those of
development data; a reader's are not. The stand-in is a rule of a few lines that names every call
whose result is marked as an error: no model was asked, and its row shows how far the error mark
alone gets.

Prints a table, and JSON with --json FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.config.reader_settings import ReaderSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session
from composer_replication.data.hints.hint_reader import read_session
from composer_replication.data.hints.reader_hints import Score, score_named_mistakes
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.recorded_teachers import recorded_teachers

ROOT = Path(__file__).resolve().parent.parent
NamedMistake = tuple[str, str | None]


def labels_of(path: Path) -> dict[tuple[str, str], str]:
    """(file, call id) -> verdict."""
    return {
        (row["file"], row["call_id"]): row["verdict"]
        for row in json.loads(path.read_text("utf-8"))["labels"]
    }


def sessions_of(paths: Sequence[Path]) -> list[Session]:
    """The sessions of some logs, redacted under a fixed key, so that recorded readings match."""
    return [
        session
        for result in ingest(find_logs(paths), redactor=Redactor(environ={}, key=b"labels"))
        for session in result.sessions
    ]


def named_by_rules(sessions: Sequence[Session]) -> Iterator[NamedMistake]:
    """The calls that the default detectors name as mistakes."""
    for session in sessions:
        for site in find_sites(session, settings=SitesSettings()):
            if site.is_target:
                yield Path(site.file).name, site.call_id


def named_by_reader(
    sessions: Sequence[Session], teacher: Teacher, *, settings: ReaderSettings
) -> list[NamedMistake]:
    """The calls that enough readings of a teacher name as mistakes."""

    async def run() -> list[NamedMistake]:
        asker, redactor = Asker(None), Redactor(environ={}, key=b"labels")
        named: list[NamedMistake] = []
        for session in sessions:
            reading = await read_session(
                session, teacher=teacher, asker=asker, settings=settings, redactor=redactor
            )
            named += ((Path(session.source.file).name, flag.call_id) for flag in reading.flags)
        return named

    return asyncio.run(run())


def main() -> int:
    """Read, score, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--recorded",
        type=Path,
        help="reader_answers.jsonl of `recompose hints --writer reader` on these sessions",
    )
    parser.add_argument("--votes", type=int, default=3)
    parser.add_argument("--min-votes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sessions, labels = (
        sessions_of(options.logs),
        labels_of(ROOT / "tests" / "labels" / "sites.json"),
    )
    if options.recorded:
        (teacher,) = recorded_teachers(options.recorded)
        settings, name = (
            ReaderSettings(votes=options.votes, min_votes=options.min_votes),
            f"reader: {teacher.name}, recorded",
        )
    else:
        sys.path.insert(0, str(ROOT))
        from tests.data.hints.scripted_reader import flags_every_error, reader

        teacher, settings, name = (
            reader(flags_every_error),
            ReaderSettings(votes=1, min_votes=1),
            "stand-in: every marked error (no model)",
        )
    scores = {
        "rule detectors (tuned on these labels)": score_named_mistakes(
            named_by_rules(sessions), labels
        ),
        name: score_named_mistakes(named_by_reader(sessions, teacher, settings=settings), labels),
    }
    print(f"{'':46s} {'precision':>9s} {'recall':>9s} {'named':>6s} {'unlabelled':>11s}")
    for who, result in scores.items():
        print(
            f"{who:46s} {_share(result.precision)} {_share(result.recall)} {result.found:6d}"
            f" {result.unlabelled:11d}"
        )
    numbers: dict[str, dict[str, float | None]] = {
        who: _numbers(result) for who, result in scores.items()
    }
    print(json.dumps(numbers))
    if options.json:
        from page import about  # beside this file

        options.json.write_text(
            json.dumps({"about": about(sys.argv), "rows": numbers}, indent=1) + "\n",
            encoding="utf-8",
        )
    return 0


def _share(value: float | None) -> str:
    return f"{'none':>9s}" if value is None else f"{value:9.2f}"


def _numbers(result: Score) -> dict[str, float | None]:
    return {**asdict(result), "precision": result.precision, "recall": result.recall}


if __name__ == "__main__":
    sys.exit(main())
