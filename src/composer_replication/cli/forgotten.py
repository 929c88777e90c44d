"""Artefacts that still hold text of forgotten sessions: remove them, list them, or refuse them.

clear_derived(job, ["s1"])       # ([Path("recompose/examples")], [Path("recompose/runs/a")])
check_not_forgotten(job, data)   # DataError if an example's session was forgotten since
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from composer_replication.cli.audit_store import RULES, audit_again, is_audit_store
from composer_replication.cli.ingest_store import READING, RECORD
from composer_replication.cli.job import Job
from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.ingest_record import read_record
from composer_replication.data.teachers.ledger import LEDGER_NAME
from composer_replication.report.html import plural, session_mark, sessions_of_page, unpacked
from composer_replication.tokens.artefact import Dataset, load_dataset

MADE_ANEW: Mapping[str, str] = {"report.html": "report", "examples": "build"}
"""Artefact -> verb that makes it again; `--forget` removes it if it holds a forgotten session."""
MADE_BY_AUDIT = ("report.html", "sites.jsonl", RULES)
"""What `audit` makes anew of all sessions; `--forget` removes it from an audit's store."""
FOLDERS = ("runs", "exports")
"""Folders of trained models. Weights cannot be searched for a session, so all are listed."""
WRITTEN = (".json", ".jsonl", ".html")
_OVERLAP, _PIECE = 512, 2**20


def clear_derived(job: Job, gone: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Remove the artefacts that one command makes again, except in a dry run.

    Returns these, and the others that may still hold text of the sessions.
    """
    by_audit = MADE_BY_AUDIT if is_audit_store(job) else ()
    derived = [
        path
        for name in dict.fromkeys((*by_audit, *MADE_ANEW))
        if (path := job.work / name).exists()
        and (name in by_audit or mentions(path, gone) or _is_unmarked(path))
    ]
    removed = [path for path in derived if not path.is_symlink()]
    for path in [] if job.dry_run else removed:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = {job.sessions.name, RECORD, READING, *MADE_ANEW, *by_audit}
    others = [
        path
        for path in sorted(job.work.iterdir())
        if path.suffix in WRITTEN and path.is_file() and path.name not in store
    ]
    left = [path for path in derived if path.is_symlink()] + [
        path for path in others if mentions(path, gone) or _is_unmarked(path)
    ]
    # its rules quote programs and counts of sessions that it does not name
    left += [job.work / RULES] if not by_audit and (job.work / RULES).exists() else []
    # the ledger's prompts are compressed, so they cannot be searched
    left += [job.work / LEDGER_NAME] if (job.work / LEDGER_NAME).exists() else []
    for folder in map(job.work.joinpath, FOLDERS):
        left += (
            sorted(path for path in folder.iterdir() if not path.is_symlink() and path.is_dir())
            if folder.is_dir()
            else []
        )
    return removed, left


def made_anew_by(job: Job, path: Path) -> str:
    """The command that makes a removed artefact again."""
    is_audits = path.name in MADE_BY_AUDIT and is_audit_store(job)
    return audit_again(job) if is_audits else job.command(MADE_ANEW[path.name])


def _is_unmarked(path: Path) -> bool:
    """Whether a path is a page that does not say of which sessions: one of an earlier version, or
    one that compares runs."""
    return path.suffix == ".html" and sessions_of_page(path.read_text("utf-8", "replace")) is None


def mentions(path: Path, names: Sequence[str]) -> bool:
    """Whether a file, or any file of a folder, contains one of these ids.

    A page contains them as text, packed, or as the marks of the sessions that it was made of.
    """
    if path.is_dir():
        return any(mentions(file, names) for file in path.rglob("*") if file.is_file())
    wanted = re.compile(b"|".join(re.escape(os.fsencode(name)) for name in names))
    if path.suffix == ".html":
        page = path.read_text("utf-8", "surrogateescape")
        if not (sessions_of_page(page) or frozenset()).isdisjoint(map(session_mark, names)):
            return True
        return any(wanted.search(os.fsencode(text)) for text in (page, *unpacked(page)))
    with path.open("rb") as stream:
        before = b""
        while piece := stream.read(_PIECE):
            if wanted.search(before + piece):
                return True
            before = piece[-_OVERLAP:]
    return False


def check_not_forgotten(job: Job, data: Dataset) -> None:
    """Raise DataError if examples hold a session that was forgotten after they were built."""
    record = read_record(job.work / RECORD, sessions=job.sessions)
    held = {item.session_id for item in chain(data.examples, data.pairs)}
    if sessions := sorted(held & set(record.removed)):
        shown = ", ".join(sessions[:3]) + (", ..." if len(sessions) > 3 else "")
        message = f"the examples hold {plural(len(sessions), 'session')} forgotten since: {shown}"
        raise DataError(
            message,
            where=str(job.examples),
            fix=(
                "build them without these:"
                f" {', then '.join(map(job.command, ('sites', 'hints', 'build')))}"
            ),
        )


def load_shown(job: Job) -> Dataset:
    """Load the examples for a verb that shows them; raises DataError as `check_not_forgotten`."""
    data = load_dataset(job.need_file(job.examples, verb="build"), allow_refused=True)
    check_not_forgotten(job, data)
    return data
