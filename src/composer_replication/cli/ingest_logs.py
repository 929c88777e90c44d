"""Read logs into the store of a work folder: what `ingest` and `audit` share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from composer_replication.cli.ingest_store import (
    count_sessions,
    disk_room_for,
    merge,
    session_scratch,
)
from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.files import explain_full_disk, make_work
from composer_replication.core.lock import lock_folder
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest as read_logs
from composer_replication.data.ingestion.counts import FileReport, recount
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.store import StoreUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedLogs:
    """What was read: a report per file, the counts of sessions, turns and calls, and what became of
    the store (None: nothing was written)."""

    reports: list[FileReport]
    counts: Counter[str]
    merged: StoreUpdate | None


def ingest_logs(
    job: Job, logs: Sequence[LogFile], *, on_file: Callable[[FileReport], None] | None = None
) -> IngestedLogs:
    """Read the logs and merge their sessions into the store; a dry run only reads.

    `on_file` is called after each file.
    """
    full = partial(explain_full_disk, job.sessions, need=disk_room_for(job, logs))
    with full():
        if not job.dry_run:
            make_work(job.work)
        redactor = job.redactor() if job.config.ingest.redact else None
    reports: list[FileReport] = []
    counts: Counter[str] = Counter()
    sessions = count_sessions(
        _sessions(logs, job, redactor=redactor, reports=reports, on_file=on_file), counts
    )
    merged: StoreUpdate | None = None
    if job.dry_run:
        deque(sessions, maxlen=0)
    else:
        with full(), lock_folder(job.work, task="ingest"), session_scratch(job.sessions) as fresh:
            if write_sessions(fresh, sessions):
                # The counts are those of the written file, not of what was meant to be written.
                counts.clear()
                reports = recount(reports, count_sessions(read_sessions(fresh), counts))
                merged = merge(job, fresh, reports, redactor=redactor)
    return IngestedLogs(reports=reports, counts=counts, merged=merged)


def _sessions(
    logs: Sequence[LogFile],
    job: Job,
    *,
    redactor: Redactor | None,
    reports: list[FileReport],
    on_file: Callable[[FileReport], None] | None,
) -> Iterator[Session]:
    for result in read_logs(logs, settings=job.config.ingest, redactor=redactor):
        reports.append(result.report)
        if on_file is not None:
            on_file(result.report)
        yield from result.sessions
