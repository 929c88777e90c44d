"""`recompose sessions`: what the store holds, and since when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.cli.audit_store import is_audit_store, open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.ingest_store import RECORD
from composer_replication.cli.lookup import ordinal
from composer_replication.cli.sessions_written import Form, write_sessions_as
from composer_replication.core.codec import raw_sessions
from composer_replication.data.ingestion.ingest_record import (
    SessionEntry,
    project_folder,
    read_record,
)
from composer_replication.report.html import plural

TIMES = ("started", "first_seen", "last_seen")


def sessions_command(
    project: str = "",
    /,
    *,
    write: Path | None = None,
    form: Form = "trl",
    max_gb: float = 1.0,
    common: Common = Common(),
) -> int:
    """List the store: every session with its project, its times, and when it was first and last
    seen in a log. With --write, write these sessions for other tools.

    Parameters
    ----------
    project
        List only this project: its name, its repository, or the full path of its folder.
    write
        Write the sessions here: a new JSON Lines file ("trl", "training_trace"), a new folder with
        a document per session ("atif"), or one with Parquet files and a card ("parquet").
    form
        Format of --write. "trl" = prompt, completion and tools for TRL's SFTTrainer, without the
        mistaken messages;
        "parquet" = the same as a data set, held-out sessions apart (extra `parquet`);
        "atif" = Harbor's trajectory format; "training_trace" = OpenEnv's, of sessions that
        student.model sampled (`recompose serve`, rollouts): its ids and log-probs.
    max_gb
        Refuse "trl" and "parquet" with more gigabytes of text than this: a row per message of the
        model repeats all of the message's context.
    """
    job = open_where_sessions_are(common)
    store = job.need_file(job.sessions, verb="ingest")
    record = read_record(job.work / RECORD, sessions=store)
    rows: list[dict[str, Any]] = []
    for number, raw in enumerate(raw_sessions(store), 1):
        head = raw.header["session"]
        entry = record.sessions.get(raw.id) or SessionEntry.of(raw.header, first_seen=record.since)
        if project and project not in (
            entry.project,
            entry.project.rpartition("/")[2],
            project_folder(entry),
        ):
            continue
        rows.append(
            {
                "ordinal": number,
                "id": raw.id,
                "project": entry.project,
                "folder": project_folder(entry),
                "cwd": entry.cwd,
                "turns": head.get("num_turns", 0),
                "bytes": len(raw.data),
                "started": entry.started,
                "ended": entry.ended,
                "first_seen": entry.first_seen,
                "last_seen": entry.last_seen,
                "file": entry.file,
                "requests": head.get("requests", 0),
                "requests_verified": head.get("requests_verified", 0),
                "context": (
                    f"verified {head.get('requests_verified', 0)} of {head['requests']}"
                    if head.get("requests")
                    else ""
                ),
            }
        )
    columns = ("id", "project", "folder", "turns", "started", "first_seen", "last_seen", "context")
    shown = [
        (
            ordinal(row["ordinal"]),
            *(str(row[name])[:16] if name in TIMES else row[name] for name in columns),
        )
        for row in rows
    ]
    job.screen.table(shown, head=("", *(name.replace("_", " ") for name in columns)))
    size = sum(row["bytes"] for row in rows) / 1e6
    projects = {
        row["project"] if "/" in row["project"] else row["folder"] or row["project"] for row in rows
    }
    job.screen.line(
        f"\n {plural(len(rows), 'session')} of {plural(len(projects), 'project')}, {size:.1f} MB"
    )
    if record.forgotten:
        verb = "audit" if is_audit_store(job) else "ingest"
        job.screen.line(
            f" forgotten: {', '.join(record.forgotten)}  (recompose {verb} --recall NAME)",
            style="dim",
        )
    if write is not None:
        written = write_sessions_as(
            job, {row["id"] for row in rows}, path=write, form=form, max_gb=max_gb
        )
        job.screen.line(f" wrote {written} to {write}")
    job.warn_stale("sites.jsonl", "hints.jsonl", "preferences.jsonl", "curated.jsonl", "examples")
    job.screen.result({"sessions": rows, "forgotten": record.forgotten})
    return 0
