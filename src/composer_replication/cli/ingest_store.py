"""Merge new sessions into the store of a work folder, and replace the store."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from composer_replication.cli.job import Job
from composer_replication.core.files import move_into_place, open_private, scratch_folder
from composer_replication.core.jsonl import write_json
from composer_replication.core.pseudonyms import store_key
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.counts import FileReport
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.ingest_record import read_record
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.ingestion.scanner import check_file
from composer_replication.data.ingestion.store import StoreUpdate, plan_merge, write_merged

RECORD = "ingest.json"
READING = "reading.json"
"""What the last audit knows of each log, so that the next one reads what has changed."""


@contextmanager
def session_scratch(store: Path) -> Iterator[Path]:
    """Yield the path of a scratch file for the sessions of a call, until they are in the store."""
    with scratch_folder(store) as folder:
        yield folder / "fresh.jsonl"


def merge(
    job: Job,
    fresh: Path,
    reports: Sequence[FileReport],
    *,
    redactor: Redactor | None,
    unread: Iterable[str] = (),
) -> StoreUpdate:
    """Merge the sessions of `fresh` into the store; `unread` are stored sessions of logs that are
    as they were.

    A store that holds all of them already is not written, so that nothing becomes stale.
    """
    record = read_record(job.work / RECORD, sessions=job.sessions)
    clean: Callable[[Session], Session] | None = (
        None if redactor is None else partial(redact_session, redactor=redactor)
    )
    plan = plan_merge(
        job.sessions,
        fresh,
        record=record,
        now=_now(),
        mark=redaction_mark(job) if clean else "",
        clean=clean,
        unread=unread,
    )
    if plan.is_changed:
        replace_store(job, partial(write_merged, plan))
    record.add_files([report.to_json() for report in reports], names=plan.names)
    write_json(job.work / RECORD, record.to_json())
    return plan


def replace_store(job: Job, write: Callable[..., int]) -> None:
    """Write a new store and move it into place, unless the user's scanner rejects it."""
    with scratch_folder(job.sessions) as folder:
        unscanned = folder / job.sessions.name
        with os.fdopen(open_private(unscanned, os.O_WRONLY), "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())  # the old store may hold what no log does any more
        if scanner := job.config.ingest.scanner:
            check_file(unscanned, command=scanner)
        move_into_place(unscanned, job.sessions)


def disk_room_for(job: Job, logs: Sequence[LogFile]) -> int:
    """The most bytes that an ingest may need: the sessions of these logs, and a new store."""
    stored = job.sessions.stat().st_size if job.sessions.exists() else 0
    return stored + 2 * sum(log.path.stat().st_size for log in logs if log.path.is_file())


def count_sessions(sessions: Iterator[Session], counts: Counter[str]) -> Iterator[Session]:
    """Yield the sessions and count them, their turns and their calls."""
    for session in sessions:
        counts["sessions"] += 1
        counts["turns"] += len(session.turns)
        calls = sum(len(turn.calls) for turn in session.turns)
        counts["calls"] += calls
        if session.parent is not None:
            counts["subagent_calls"] += calls
        yield session


def redaction_mark(job: Job) -> str:
    """A keyed hash of the version and the user's words, by which a store knows how it was redacted.

    The hash is keyed so that it does not reveal the words.
    """
    from importlib.metadata import version

    inputs = "\0".join([version("composer-replication"), *sorted(job.config.ingest.redact_words)])
    return hmac.new(
        store_key(job.work) or b"", inputs.encode("utf-8", "surrogatepass"), hashlib.sha256
    ).hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
