"""The verdicts that a reader of `recompose sites` left in the work folder: used again, shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_verdicts, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Candidate, ReaderVerdict
from composer_replication.data.sites.reader_verdicts import Verdicts
from composer_replication.report.html import plural
from composer_replication.report.reader_view import HEAD, reader_rows, reader_total

if TYPE_CHECKING:
    from composer_replication.data.hints.candidate_reader import CandidateReading

VERDICTS, SITE_ANSWERS = "site_verdicts.jsonl", "site_answers.jsonl"


def read_stored(job: Job) -> list[ReaderVerdict]:
    """The verdicts of the last reading; none if there was none."""
    path = job.work / VERDICTS
    return list(read_verdicts(path)) if path.exists() else []


def stored_verdicts(job: Job) -> dict[str, Verdicts]:
    """The verdicts of the last reading, by session; none if no reader is set."""
    by_session: dict[str, dict[Candidate, ReaderVerdict]] = defaultdict(dict)
    for verdict in read_stored(job) if job.config.sites.reader.is_set else ():
        by_session[verdict.session_id][verdict.candidate] = verdict
    return dict(by_session)


def reader_files(job: Job) -> list[Path]:
    """The files that a reading writes."""
    return [job.work / VERDICTS, job.work / SITE_ANSWERS]


def keep_verdicts(job: Job, sessions: Collection[str]) -> None:
    """Keep the file of verdicts only with a reader, and only verdicts on these sessions, so that
    it holds what sites.jsonl was made with."""
    path = job.work / VERDICTS
    if not job.config.sites.reader.is_set:
        path.unlink(missing_ok=True)
        return
    stored = read_stored(job)
    kept = [verdict for verdict in stored if verdict.session_id in sessions]
    if len(kept) < len(stored):
        write_lines(path, map(record_to_json, kept))


def show_verdicts(job: Job, reading: CandidateReading | None = None) -> dict[str, Any]:
    """Print the verdicts per kind, and what came of this reading; returns them for --json, {} if
    nobody was asked."""
    rows = reader_rows(read_stored(job))
    if not rows and reading is None:
        return {}
    screen = job.screen
    screen.line(f"\n reader   {reader_total(rows)}")
    screen.table([row.cells for row in rows], head=HEAD)
    value: dict[str, Any] = {"kinds": [asdict(row) for row in rows]}
    if reading is not None:
        for reason, count in reading.void.items():
            screen.line(f" void     {plural(count, 'answer')}: {reason}", style="yellow")
        if (stopped := reading.stopped) is not None:
            screen.line(f" stopped  {stopped.what}; what was bought is kept", style="yellow")
        asked = {"asked": reading.num_asked, "void": reading.void}
        value |= {**asked, "stopped": reading.stopped is not None}
    return {"reader": value}
