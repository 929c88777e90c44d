"""`recompose ingest`: agent logs -> sessions.jsonl, with everything that was left out counted and shown."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from composer_replication.cli.flags import Common
from composer_replication.cli.ingest_text import show_reading
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.problems import DONE, FIXABLE, UsageError
from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.files import make_work, scratch_folder, settle
from composer_replication.core.jsonl import write_json
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest as read_logs
from composer_replication.data.ingestion.counts import FileReport
from composer_replication.data.ingestion.find import RETENTION_NOTE, LogFile, default_folders, find_logs, other_files
from composer_replication.data.ingestion.recount import recount
from composer_replication.data.ingestion.scanner import check_file


def ingest(*paths: Path, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False, common: Common = Common()) -> int:
    """Agent logs -> sessions.jsonl. Secrets are removed before anything is written.

    Parameters
    ----------
    paths
        Files or folders; none = [ingest] logs, else where Claude Code keeps its logs.
    yes
        Read the default folder without asking.
    """
    job = open_job(common, uses=("scanner",))
    settings = job.config.ingest
    named = [str(p) for p in paths] or list(settings.logs)
    logs = _find(job, named, yes=yes)
    if not job.dry_run:
        make_work(job.work)
    redactor = job.redactor() if settings.redact else None
    reports: list[FileReport] = []
    counts: Counter[str] = Counter()
    sessions = _counted(_sessions(logs, job, redactor, reports), counts)
    if job.dry_run:
        for _ in sessions:
            pass
    elif write_sessions_if_any(job.sessions, sessions, scanner=settings.scanner):
        # What is told is what a reader of the file will find, not what was meant to be written.
        counts.clear()
        reports = recount(reports, _counted(read_sessions(job.sessions), counts))
    others = other_files(named)
    show_reading(job.screen, reports, counts, others)
    value: dict[str, Any] = {"files": [r.to_json() for r in reports], **counts, "not_read": others, "note": RETENTION_NOTE}
    if not counts["sessions"]:
        job.screen.line(" no session in these files: nothing was written; give other files or folders", style="yellow")
        job.screen.result({**value, "dry_run": job.dry_run, "wrote": [], "problem": "no session in these files"})
        return FIXABLE
    written = job.work / "ingest.json"
    if not job.dry_run:
        write_json(written, {"files": value["files"]})
    job.finish(value, wrote=[job.sessions, written], next_command=job.command("sites"))
    return DONE


def write_sessions_if_any(path: Path, sessions: Iterator[Session], *, scanner: Sequence[str] = ()) -> int:
    """Write sessions one at a time; where there is none, or the scanner objects, a file of an earlier call stays. Returns how many."""
    first = next(sessions, None)
    if first is None:
        return 0
    if not scanner:
        return write_sessions(path, chain((first,), sessions))
    with scratch_folder(path) as scratch:
        unseen = scratch / path.name
        count = write_sessions(unseen, chain((first,), sessions))
        check_file(unseen, command=scanner)
        settle(unseen, path)
    return count


def _find(job: Job, named: Sequence[str], *, yes: bool) -> tuple[LogFile, ...]:
    """The logs to read; the default folder is read only after a yes."""
    if not named and not yes:
        folder = ", ".join(map(str, default_folders(os.environ)))
        if job.screen.json or not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("no PATH was given", fix=f"recompose ingest PATH ..., or --yes to read {folder}")
        if input(f"Read the agent logs in {folder}? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was read", fix="give files or folders: recompose ingest PATH ...")
    logs = find_logs(named)
    if not logs:
        raise DataError("no .jsonl file there", where=", ".join(named), fix="give a log file, or a folder that holds some")
    return logs


def _sessions(logs: Sequence[LogFile], job: Job, redactor: Redactor | None, reports: list[FileReport]) -> Iterator[Session]:
    for result in read_logs(logs, settings=job.config.ingest, redactor=redactor):
        reports.append(result.report)
        yield from result.sessions


def _counted(sessions: Iterator[Session], counts: Counter[str]) -> Iterator[Session]:
    for session in sessions:
        counts["sessions"] += 1
        counts["turns"] += len(session.turns)
        counts["calls"] += sum(len(t.calls) for t in session.turns)
        yield session
