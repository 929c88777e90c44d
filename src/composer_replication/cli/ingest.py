"""`recompose ingest`: agent logs -> sessions.jsonl; everything that is left out is counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from composer_replication.cli.asking import agrees
from composer_replication.cli.audit_store import open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.ingest_logs import ingest_logs
from composer_replication.cli.ingest_store import RECORD
from composer_replication.cli.ingest_text import show_reading, show_store
from composer_replication.cli.ingest_without import change_store
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.problems import DONE, FIXABLE, UsageError
from composer_replication.core.errors import DataError
from composer_replication.core.harmless import one_line
from composer_replication.core.stamps import stale_artefacts
from composer_replication.data.ingestion.find_logs import (
    RETENTION_NOTE,
    LogFile,
    default_folders,
    find_logs,
    other_files,
)


def ingest_command(
    *paths: Path,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    forget: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    recall: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    common: Common = Common(),
) -> int:
    """Agent logs -> sessions.jsonl, which accumulates: what an agent deletes stays. Secrets are
    removed before anything is written.

    Parameters
    ----------
    paths
        Files or folders. Default: [ingest] logs, else the folder where Claude Code keeps its logs.
    yes
        Read the default folder without confirmation.
    forget
        Remove a session, a repository or the project of a folder (with its subagents) from the
        store, and exclude it from later ingests. Repeatable.
    recall
        Undo --forget: let later ingests import it again. Repeatable.
    """
    changes = bool(forget or recall)
    job = (open_where_sessions_are if changes else open_job)(common, uses=("scanner",))
    if changes:
        if paths or yes:
            raise UsageError(
                "--forget and --recall read no logs", fix="leave the paths out; ingest afterwards"
            )
        return change_store(job, forget=forget, recall=recall)
    settings = job.config.ingest
    named = [str(p) for p in paths] or list(settings.logs)
    logs = _find(job, named, yes=yes)
    done = ingest_logs(job, logs)
    reports, counts, merged = done.reports, done.counts, done.merged
    others = other_files(named)
    show_reading(job.screen, reports, counts, others)
    value: dict[str, Any] = {
        "files": [r.to_json() for r in reports],
        **counts,
        "not_read": others,
        "note": RETENTION_NOTE,
    }
    if not counts["sessions"]:
        job.screen.line(
            " no session in these files: nothing was written; give other files or folders",
            style="yellow",
        )
        job.screen.result(
            {**value, "dry_run": job.dry_run, "wrote": [], "problem": "no session in these files"}
        )
        return FIXABLE
    if merged is not None:
        value["store"] = show_store(job.screen, merged)
        value["stale"] = job.warn_stale(*stale_artefacts(job.work))
    as_it_was = merged is not None and not merged.is_changed
    job.finish(
        value,
        wrote=[*([] if as_it_was else [job.sessions]), job.work / RECORD],
        next_command=job.command("sites"),
    )
    return DONE


def _find(job: Job, named: Sequence[str], *, yes: bool) -> tuple[LogFile, ...]:
    """Find the logs to read; the default folder is read only if the user agrees."""
    if not named and not yes:
        folder = ", ".join(map(str, default_folders(os.environ)))
        if job.screen.json or not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(
                "no PATH was given", fix=f"recompose ingest PATH ..., or --yes to read {folder}"
            )
        if not agrees(f"Read the agent logs in {one_line(folder)}?"):
            raise UsageError(
                "nothing was read", fix="give files or folders: recompose ingest PATH ..."
            )
    logs = find_logs(named)
    if not logs:
        raise DataError(
            "no .jsonl file there",
            where=", ".join(named),
            fix="give a log file, or a folder that holds some",
        )
    return logs
