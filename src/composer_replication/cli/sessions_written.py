"""`recompose sessions --write`: sessions as TRL's columns, as Parquet or as ATIF documents."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from composer_replication.cli.job import Job
from composer_replication.cli.sessions_parquet import write_parquet
from composer_replication.cli.sessions_rows import RowsToWrite, check_text, write_rows
from composer_replication.cli.sessions_traces import write_training_traces
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder
from composer_replication.core.jsonl import dumps, write_json
from composer_replication.core.trace import Session
from composer_replication.data.session_export import trajectory
from composer_replication.report.html import plural

Form = Literal["trl", "parquet", "atif", "training_trace"]


def write_sessions_as(
    job: Job, names: Collection[str], *, path: Path, form: Form, max_gb: float
) -> str:
    """Write the named sessions of the store; returns what was written, in words.

    Raises DataError if the path exists, if "trl" and "parquet" have no sites to leave out mistakes
    by or more than `max_gb` of rows, or if a secret is found in what would be written.
    """
    if path.exists():
        raise DataError("it exists already", where=str(path), fix="name a new file or folder")
    sessions = [s for s in read_sessions(job.sessions) if s.id in names]
    if form == "atif":
        make_folder(path)
        for session in sessions:
            name = hashlib.sha256(session.id.encode()).hexdigest()[:16]
            write_json(path / f"{name}.json", checked(trajectory(session), session))
        return f"{len(sessions)} trajectories"
    if form == "training_trace":
        return write_training_traces(job, sessions, check=checked, path=path)
    barred: dict[str, dict[int, str]] = {}
    for site in read_sites(job.need_file(job.work / "sites.jsonl", verb="sites")):
        if site.bars_lm_ce and site.session_id in names:
            barred.setdefault(site.session_id, {})[site.turn] = f"{site.category}: {site.kind}"
    if form == "parquet":
        return write_parquet(job, sessions, barred=barred, max_gb=max_gb, folder=path)
    rows = RowsToWrite(job, sessions, barred=barred, max_gb=max_gb)
    write_rows(rows, path)
    return f"{plural(rows.count, 'message')} of {plural(len(sessions), 'session')}"


def checked(value: dict[str, Any], session: Session) -> dict[str, Any]:
    """The value; raises DataError if a secret was overlooked when the session was ingested."""
    check_text(dumps(value), session)
    return value
