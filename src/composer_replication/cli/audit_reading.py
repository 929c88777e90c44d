"""The first half of `audit`: find the logs and read them into the store."""

from __future__ import annotations

import os
from typing import Any

from composer_replication.cli.hints_audit_plan import Progress
from composer_replication.cli.ingest_logs import ingest_logs
from composer_replication.cli.ingest_store import RECORD
from composer_replication.cli.ingest_text import left_out, not_read_text
from composer_replication.cli.job import Job
from composer_replication.core.codec import raw_sessions
from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.find_logs import (
    RETENTION_NOTE,
    LogFile,
    default_folders,
    find_logs,
    looked_in,
    other_files,
)
from composer_replication.data.ingestion.ingest_record import read_record
from composer_replication.report.html import plural


def read_into_store(job: Job, named: list[str]) -> dict[str, Any]:
    """Read the logs into the store and say what was read; without logs the store alone counts."""
    logs = _find(job, named)
    folders = ", ".join(named or [str(f) for f in default_folders(os.environ) if f.is_dir()])
    progress = Progress(job, "file", every_s=3.0)
    numbers = iter(range(1, len(logs) + 1))
    done = ingest_logs(
        job, logs, on_file=lambda _: progress(next(numbers), len(logs)), skip_unchanged=True
    )
    merged = done.merged
    stored = len(merged.order) if merged is not None else _num_stored(job, done.counts["sessions"])
    names = ("added", "grown", "reread")
    changed = sum(len(merged.outcomes.get(n, ())) for n in names) if merged is not None else 0
    num_bytes = sum(log.num_bytes for log in logs)
    line = (
        f"{plural(len(logs), 'file')}, {num_bytes / 1e6:.1f} MB:"
        f" {plural(done.counts['sessions'], 'session')}, {changed} new or grown;"
        f" {stored} in the store"
    )
    if done.unread:
        line += f"; {plural(done.unread, 'file')} as before, not read again"
    job.screen.labelled("read", f"{folders or 'no logs'}: {line}")
    if changed and job.common.out is None:  # the work folder of this project
        message = (
            f"the new sessions are in {job.work}, from which this folder trains; to audit apart:"
            " -o FOLDER"
        )
        job.screen.line(f" note          {message}", style="yellow")
    if named and not logs and stored:
        message = f"no agent log in {folders}: what follows is of the sessions stored before"
        job.screen.line(f" note          {message}", style="yellow")
    for name, text in left_out(done.reports).items():
        if name != "unknown" or job.screen.verbose:
            job.screen.labelled(name, text, style="dim")
    kept_out = read_record(job.work / RECORD, sessions=job.sessions).removed
    if kept_out:
        message = (
            f"{plural(len(kept_out), 'session')} that you forgot (recompose sessions lists what)"
        )
        job.screen.labelled("kept out", message, style="dim")
    if others := not_read_text(other_files(named)) if named else "":
        job.screen.labelled("not read", others, style="dim")
    if not stored:
        raise DataError(
            "no session in these files", where=folders, fix="give other files: recompose audit PATH"
        )
    return {
        "folders": folders,
        "files": len(logs),
        "bytes": num_bytes,
        "stored": stored,
        "changed": changed,
        "unchanged": done.unread,
        "kept_out": len(kept_out),
        "note": RETENTION_NOTE,
    }


def _num_stored(job: Job, num_read: int) -> int:
    """The sessions of a store that nothing was added to."""
    stored = sum(1 for _ in raw_sessions(job.sessions)) if job.sessions.exists() else 0
    return max(stored, num_read)


def _find(job: Job, named: list[str]) -> tuple[LogFile, ...]:
    if not named and not any(folder.is_dir() for folder in default_folders(os.environ)):
        if job.sessions.exists():
            return ()
        raise DataError(
            "no logs of an agent on this machine",
            where=looked_in(os.environ),
            fix="give files or folders: recompose audit PATH ...",
        )
    return find_logs(named)
