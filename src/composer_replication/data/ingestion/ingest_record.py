"""The record of a store (ingest.json), beside its sessions: when each session was first and last
seen, the report of each log file, and what the user had removed.

    {"files": [{"file": "a.jsonl", "status": "read", "tool_use": 66, ...}],
     "sessions": {"s1": {"first_seen": "2026-11-22T13:31:56Z", ...}},
     "forgotten": ["/home/me/secret-project"], "removed": ["s2"]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.repository import plain_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """The facts about one stored session that are known without reading it.

    Times are in UTC, but `started` and `ended` are as the agent wrote them. `log_sha256` is the
    hash of the log; `mark` identifies the redaction rules that were applied.
    Example: SessionEntry(project="acme/inkwell", file="a.jsonl",
    first_seen="2026-11-22T13:31:56Z", last_seen="2026-11-23T09:00:00Z")
    """

    project: str = ""
    cwd: str = ""
    file: str = ""
    log_sha256: str = ""
    turns: int = 0
    started: str = ""
    ended: str = ""
    first_seen: str = ""
    last_seen: str = ""
    mark: str = ""

    @staticmethod
    def of(
        header: Mapping[str, Any], *, first_seen: str, last_seen: str = "", mark: str = ""
    ) -> SessionEntry:
        """Build an entry from the header line of a stored session."""
        fields_of_session = header["session"]
        source = fields_of_session.get("source", {})
        return SessionEntry(
            project=fields_of_session.get("repository", ""),
            cwd=fields_of_session.get("cwd", ""),
            file=source.get("file", ""),
            log_sha256=source.get("sha256", ""),
            turns=fields_of_session.get("num_turns", 0),
            started=fields_of_session.get("started", ""),
            ended=fields_of_session.get("ended", ""),
            first_seen=first_seen,
            last_seen=last_seen or first_seen,
            mark=mark,
        )


_NAMES = frozenset(f.name for f in fields(SessionEntry))


@dataclass(slots=True)
class IngestRecord:
    """The content of ingest.json; `since` is when a store without a record was last written.

    `forgotten` holds the names that the user gave to `forget`, `removed` the ids of the sessions
    that were removed because of them.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    sessions: dict[str, SessionEntry] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    since: str = ""

    def is_forgotten(self, session_id: str, entry: SessionEntry) -> bool:
        """Whether the user has removed a session, its parent or its project."""
        return any(
            names_session(name, session_id, entry, include_nested=True) for name in self.forgotten
        )

    def add_files(self, reports: Iterable[Mapping[str, Any]], *, names: Mapping[str, str]) -> None:
        """Add the reports of files, each in place of the report on the same sessions or the same
        file; `names` maps session names of this reading to those in the store."""
        for report in reports:
            sessions = [names.get(name, name) for name in report["sessions"] if name in names]
            new = {**report, "sessions": sessions}
            self.files = [old for old in self.files if not _is_replaced(old, new)]
            self.files.append(new)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ingest.json."""
        sessions = {name: asdict(entry) for name, entry in self.sessions.items()}
        removed = [name for name in self.removed if name not in sessions]
        return {
            "files": self.files,
            "sessions": sessions,
            "forgotten": self.forgotten,
            "removed": removed,
        }


def project_folder(entry: SessionEntry) -> str:
    """The folder of a session's project: its working folder, up to the part that is the project's
    name; "" if the log does not say.

    >>> project_folder(SessionEntry(project="shop", cwd="/home/me/shop/src"))
    '/home/me/shop'
    >>> project_folder(SessionEntry(project="acme/shop", cwd="/srv/clone/.worktrees/2"))
    '/srv/clone'
    """
    parts, name = plain_folder(entry.cwd).split("/"), entry.project.rpartition("/")[2]
    return "/".join(parts[: len(parts) - parts[::-1].index(name)] if name in parts else parts)


def names_session(
    name: str, session_id: str, entry: SessionEntry, *, include_nested: bool = False
) -> bool:
    """Whether a forgotten name refers to this session: it is the session's id, its parent's, its
    repository, or the folder of its project.

    With `include_nested`, also if the session ran anywhere in that folder and its project has no
    remote: such a project's name depends on the logs that are read with it, so that the session
    could come back under another name. A name without a slash refers to every project of that
    name; earlier versions wrote it, and it serves projects of logs that name no folder.

    >>> entry = SessionEntry(project="acme/shop", cwd="/home/me/shop/src")
    >>> names = ("s1", "acme/shop", "/home/me/shop", "my/shop")
    >>> [names_session(name, "s1", entry) for name in names]
    [True, True, True, False]
    """
    if session_id == name or session_id.startswith((f"{name}.agent-", f"{name}~")):
        return True
    if is_path(name):
        is_nested = (
            include_nested
            and "/" not in entry.project
            and f"{plain_folder(entry.cwd)}/".startswith(f"{name}/")
        )
        return is_nested or name == project_folder(entry)
    return name == entry.project or ("/" not in name and name == entry.project.rpartition("/")[2])


def resolve_name(name: str, sessions: Mapping[str, SessionEntry]) -> list[str]:
    """Resolve a name that the user typed to unambiguous ones: an id, repositories, or the folders
    of projects.

    >>> a, b = SessionEntry(project="app", cwd="/a/app"), SessionEntry(project="app", cwd="/b/app")
    >>> resolve_name("app", {"s1": a, "s2": b, "s3": SessionEntry(project="acme/app")})
    ['/a/app', '/b/app', 'acme/app']
    """
    if any(
        session_id == name or session_id.startswith((f"{name}.agent-", f"{name}~"))
        for session_id in sessions
    ):
        return [name]
    if is_path(name):
        folder = plain_folder(str(Path(name).expanduser()))
        return (
            [folder] if any(project_folder(entry) == folder for entry in sessions.values()) else []
        )
    matching = [
        entry
        for entry in sessions.values()
        if name in (entry.project, entry.project.rpartition("/")[2])
    ]
    return sorted(
        {
            entry.project if "/" in entry.project else project_folder(entry) or entry.project
            for entry in matching
        }
    )


def is_path(name: str) -> bool:
    """Whether a name is the full path of a folder, on any operating system."""
    return name.startswith(("/", "~", "\\")) or name[1:3] in (":/", ":\\")


def read_record(path: Path, *, sessions: Path) -> IngestRecord:
    """Read the record of a store; a store without one (from an earlier version, or made by hand)
    gets an empty record with the time of its last change."""
    last_written = (
        datetime.fromtimestamp(sessions.stat().st_mtime, UTC).isoformat(timespec="seconds")
        if sessions.exists()
        else ""
    )
    if not path.exists():
        return IngestRecord(since=last_written)
    try:
        value = json.loads(path.read_bytes())
        entries = {
            str(name): SessionEntry(**{k: v for k, v in stored_fields.items() if k in _NAMES})
            for name, stored_fields in value.get("sessions", {}).items()
        }
        forgotten, removed = list(value.get("forgotten", ())), list(value.get("removed", ()))
        return IngestRecord(
            files=list(value["files"]),
            sessions=entries,
            forgotten=forgotten,
            removed=removed,
            since=last_written,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "move it away: the sessions stay, only when they were first seen is lost"
        raise DataError(
            f"not the record of a store: {error!r}", where=str(path), fix=fix
        ) from error


def _is_replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the new report covers the sessions of the old one or, if that had none, its file."""
    if old.get("sessions"):
        return not set(old["sessions"]).isdisjoint(new["sessions"])
    return old.get("file") == new["file"] and (
        not new["sessions"] or old.get("sha256") == new.get("sha256")
    )
