"""Read logs into the store of a work folder: what `ingest` and `audit` share."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

from composer_replication.cli.ingest_store import (
    READING,
    RECORD,
    count_sessions,
    disk_room_for,
    merge,
    redaction_mark,
    session_scratch,
)
from composer_replication.cli.job import Job
from composer_replication.core.code_hash import hash_of_code
from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.files import explain_full_disk, make_work
from composer_replication.core.lock import lock_folder
from composer_replication.core.redact import Redactor
from composer_replication.core.rundir import sha256_of
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest as read_logs
from composer_replication.data.ingestion.counts import FileReport, recount
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.ingest_record import read_record
from composer_replication.data.ingestion.repository import enclosing_roots
from composer_replication.data.ingestion.store import StoreUpdate
from composer_replication.data.ingestion.unchanged import (
    EarlierReading,
    KnownLog,
    LogStatus,
    known_log,
    logs_to_read,
    path_key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedLogs:
    """What was read: a report per file, the counts of sessions, turns and calls, and what became of
    the store (None: nothing was written).

    `unread` are the files that were as they were: their reports hold what an audit says, and of
    the counts only that of sessions includes them.
    """

    reports: list[FileReport]
    counts: Counter[str]
    merged: StoreUpdate | None
    unread: int = 0


@dataclass(slots=True)
class _Reading:
    """The logs of one call that are read, those that are as they were, and what came so far."""

    logs: Sequence[LogFile]
    known: dict[str, KnownLog] = field(default_factory=dict)
    reports: list[FileReport] = field(default_factory=list)
    fresh: dict[str, KnownLog] = field(default_factory=dict)

    def sessions(
        self, job: Job, redactor: Redactor | None, on_file: Callable[[FileReport], None] | None
    ) -> Iterator[Session]:
        logs = [log for log in self.logs if path_key(log) not in self.known]
        beside = [log for log in self.logs if path_key(log) in self.known]
        roots = enclosing_roots(log.cwd for log in self.logs)
        statuses = [LogStatus.of(log) for log in logs]
        results = read_logs(logs, settings=job.config.ingest, redactor=redactor, beside=beside)
        for log, status, result in zip(logs, statuses, results, strict=True):
            self.reports.append(result.report)
            if (
                known := known_log(log, result, status, roots=roots, redactor=redactor)
            ) is not None:
                self.fresh[path_key(log)] = known
            if on_file is not None:
                on_file(result.report)
            yield from result.sessions


def ingest_logs(
    job: Job,
    logs: Sequence[LogFile],
    *,
    on_file: Callable[[FileReport], None] | None = None,
    skip_unchanged: bool = False,
) -> IngestedLogs:
    """Read the logs and merge their sessions into the store; a dry run only reads.

    `on_file` is called after each file. With `skip_unchanged`, logs that are as they were at the
    last such reading are not read again, as long as nobody else has written the store since.
    """
    full = partial(explain_full_disk, job.sessions, need=disk_room_for(job, logs))
    with full():
        if not job.dry_run:
            make_work(job.work)
        redactor = job.redactor() if job.config.ingest.redact else None
    counts: Counter[str] = Counter()
    reading = _Reading(logs=logs)
    merged: StoreUpdate | None = None
    if job.dry_run:
        deque(count_sessions(reading.sessions(job, redactor, on_file), counts), maxlen=0)
        return IngestedLogs(reports=reading.reports, counts=counts, merged=None)
    with full(), lock_folder(job.work, task="ingest"), session_scratch(job.sessions) as fresh:
        if skip_unchanged:
            reading.known = _known_logs(job, logs)
        sessions = count_sessions(reading.sessions(job, redactor, on_file), counts)
        if write_sessions(fresh, sessions) or reading.known:
            # The counts are those of the written file, not of what was meant to be written.
            counts.clear()
            reports = recount(reading.reports, count_sessions(read_sessions(fresh), counts))
            unread = [name for known in reading.known.values() for name in known.names]
            merged = merge(job, fresh, reports, redactor=redactor, unread=unread)
            reading.reports = reports
            if skip_unchanged:
                _remember(job, reading, names=merged.names)
    counts["sessions"] += sum(known.num_sessions for known in reading.known.values())
    return IngestedLogs(
        reports=[*reading.reports, *(known.report for known in reading.known.values())],
        counts=counts,
        merged=merged,
        unread=len(reading.known),
    )


def _known_logs(job: Job, logs: Sequence[LogFile]) -> dict[str, KnownLog]:
    """What is known of the logs that are as they were; none if another process, verb or version
    has written the store."""
    earlier = EarlierReading.load(job.work / READING, key=_key(job))
    if not job.sessions.exists() or earlier.store != sha256_of(job.sessions):
        return {}
    again = logs_to_read(logs, earlier, settings=job.config.ingest)
    return {name: earlier.files[name] for log in logs if (name := path_key(log)) not in again}


def _remember(job: Job, reading: _Reading, *, names: Mapping[str, str]) -> None:
    """Write what is known of the logs for the next reading; `names` maps the names of the sessions
    to those in the store."""
    files = dict(reading.known)
    for path, known in reading.fresh.items():
        stored = tuple(names[name] for name in known.names if name in names)
        files[path] = replace(known, names=stored)
    store = sha256_of(job.sessions)
    EarlierReading(key=_key(job), store=store, files=files).save(job.work / READING)


def _key(job: Job) -> str:
    """The hash of all else that a reading depends on: the code, the settings, what is redacted and
    what was forgotten."""
    record = read_record(job.work / RECORD, sessions=job.sessions)
    facts = (
        hash_of_code("core", "data/ingestion"),
        job.config.ingest.model_dump_json(),
        redaction_mark(job),
        record.forgotten,
    )
    return sha256(json.dumps(facts).encode("utf-8")).hexdigest()
