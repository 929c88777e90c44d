"""Remove sessions from the store and keep them out of it; readmit sessions that were kept out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from composer_replication.cli.ingest_store import READING, RECORD, replace_store
from composer_replication.cli.job import Job
from composer_replication.cli.lookup import is_ordinal
from composer_replication.cli.problems import UsageError
from composer_replication.core.codec import read_sites
from composer_replication.core.files import explain_full_disk
from composer_replication.core.jsonl import write_json
from composer_replication.data.ingestion.ingest_record import (
    IngestRecord,
    names_session,
    read_record,
    resolve_name,
)
from composer_replication.data.ingestion.store import remaining_sessions
from composer_replication.data.ingestion.unchanged import EarlierReading
from composer_replication.report.html import plural


def forget_sessions(job: Job, names: Sequence[str]) -> list[str]:
    """Remove sessions (and their subagents) by id, repository or project folder; returns the ids.

    Later ingests keep them out. Raises UsageError for a name that could mean several projects,
    because what is removed may be the last copy.
    """
    record = read_record(job.work / RECORD, sessions=job.sessions)
    meant = [_one_meaning(job, word, record) for word in names]
    removed = [
        name
        for name, entry in record.sessions.items()
        if any(names_session(word, name, entry) for word in meant)
    ]
    removed += [
        name
        for name in record.sessions
        if name not in removed and name.partition(".agent-")[0] in removed
    ]
    if job.dry_run:
        return removed
    if removed:
        with explain_full_disk(job.sessions, need=job.sessions.stat().st_size):
            replace_store(
                job,
                lambda stream: sum(
                    map(stream.write, remaining_sessions(job.sessions, names=frozenset(removed)))
                ),
            )
    record.forgotten = list(dict.fromkeys([*record.forgotten, *meant]))
    record.removed = list(dict.fromkeys([*record.removed, *removed]))
    record.sessions = {
        name: entry for name, entry in record.sessions.items() if name not in removed
    }
    record.files = [
        left for report in record.files if (left := _without(report, removed)) is not None
    ]
    write_json(job.work / RECORD, record.to_json())
    if (job.work / READING).exists():
        EarlierReading().save(job.work / READING)  # it names sessions; the next reading is of all
    return removed


def _one_meaning(job: Job, word: str, record: IngestRecord) -> str:
    """The only session, repository or folder that the user's word can mean."""
    candidates = resolve_name(word, record.sessions)
    if len(candidates) == 1:
        return candidates[0]
    listed = f"list them: {job.command('sessions')}"
    if candidates:
        listing = "".join(
            f"\n  {candidate}  ({plural(_count(candidate, record), 'session')})"
            for candidate in candidates
        )
        message = (
            f"{word!r} could mean {len(candidates)} projects, and what is forgotten may be the last"
            f" copy:{listing}"
        )
        raise UsageError(
            message, where=str(job.sessions), fix=f"give one of these in full; {listed}"
        )
    if earlier := _earlier(word, record):
        return earlier[0]
    if session := _session_of_site(job, word):
        raise UsageError(
            f"{word!r} is one message of the session {session}; whole sessions are forgotten",
            where=str(job.sites),
            fix=f"give the session instead: --forget {shlex.quote(session)}",
        )
    if beginning := [name for name in record.sessions if name.startswith(word)]:
        shown = ", ".join(beginning[:3]) + (", ..." if len(beginning) > 3 else "")
        raise UsageError(
            f"{word!r} is only the beginning of {plural(len(beginning), 'session')}",
            where=str(job.sessions),
            fix=f"give the id in full, as what is forgotten may be the last copy: {shown}",
        )
    if is_ordinal(word):
        raise UsageError(
            f"{word!r} is a place in a list, and places change",
            where=str(job.sessions),
            fix=f"give the session's id; {listed}",
        )
    fix = f"give an id, a repository (owner/name) or the full path of a project's folder; {listed}"
    raise UsageError(
        f"no session and no project {word!r} in the store", where=str(job.sessions), fix=fix
    )


def _count(name: str, record: IngestRecord) -> int:
    """The number of stored sessions that a name means."""
    return sum(names_session(name, *row) for row in record.sessions.items())


def _session_of_site(job: Job, word: str) -> str:
    """The session of the site with this id or short name; "" if there is none."""
    sites = read_sites(job.sites) if job.sites.exists() else ()
    return next((site.session_id for site in sites if word in (site.id, site.name)), "")


def _earlier(word: str, record: IngestRecord) -> list[str]:
    """Forgotten names that a word means: in full, or by their last part."""
    return (
        [word]
        if word in record.forgotten
        else [name for name in record.forgotten if name.rpartition("/")[2] == word]
    )


def recall_names(job: Job, names: Sequence[str]) -> list[str]:
    """Let later ingests read these again; returns the names that were on the list."""
    record = read_record(job.work / RECORD, sessions=job.sessions)
    recalled: list[str] = []
    for name in names:
        earlier = _earlier(name, record)
        if len(earlier) != 1:
            known = ", ".join(record.forgotten) or "nothing was"
            message = (
                f"{name!r} could mean {' or '.join(earlier)}"
                if earlier
                else f"{name!r} was not forgotten"
            )
            raise UsageError(message, where=str(job.work / RECORD), fix=f"forgotten: {known}")
        recalled += earlier
    record.forgotten = [name for name in record.forgotten if name not in recalled]
    if not job.dry_run:
        write_json(job.work / RECORD, record.to_json())
    return recalled


def _without(report: dict[str, object], removed: Sequence[str]) -> dict[str, object] | None:
    """The report of a file without the removed sessions; None if no session is left."""
    sessions = report.get("sessions")
    left = [name for name in sessions if name not in removed] if isinstance(sessions, list) else []
    return None if sessions and not left else {**report, "sessions": left}
