"""What a store remembers beside its sessions (ingest.json): when each was first and last seen, what each log file gave, what was forgotten.

{"files": [{"file": "a.jsonl", "status": "read", "tool_use": 66, ...}], "sessions": {"s1": {"first_seen": "2026-11-22T13:31:56Z", ...}},
 "forgotten": ["secret-project"]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of one stored session without reading it; times in UTC, `started` and `ended` as the agent wrote them.

    `log_sha256` is of the log that was read; `mark` names what secrets were removed with.
    Example: Seen(project="acme/inkwell", file="a.jsonl", first_seen="2026-11-22T13:31:56Z", last_seen="2026-11-23T09:00:00Z")
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
    def of(header: Mapping[str, Any], *, first_seen: str, last_seen: str = "", mark: str = "") -> Seen:
        """From the header line of a stored session."""
        head = header["session"]
        source = head.get("source", {})
        return Seen(
            project=head.get("repository", ""),
            cwd=head.get("cwd", ""),
            file=source.get("file", ""),
            log_sha256=source.get("sha256", ""),
            turns=head.get("num_turns", 0),
            started=head.get("started", ""),
            ended=head.get("ended", ""),
            first_seen=first_seen,
            last_seen=last_seen or first_seen,
            mark=mark,
        )


_NAMES = frozenset(f.name for f in fields(Seen))


@dataclass(slots=True)
class IngestRecord:
    """The content of ingest.json; `since` is when a store without a record was last written."""

    files: list[dict[str, Any]] = field(default_factory=list)
    sessions: dict[str, Seen] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    since: str = ""

    def is_forgotten(self, session_id: str, project: str) -> bool:
        """Whether the user had a session, its parent or its project removed."""
        return any(is_named(name, session_id, project) for name in self.forgotten)

    def add_files(self, reports: Iterable[Mapping[str, Any]], *, names: Mapping[str, str]) -> None:
        """Put the reports of files in place of what they replace: the file that gave these sessions before, or the file of that name."""
        for report in reports:
            sessions = [names.get(name, name) for name in report["sessions"] if name in names]
            new = {**report, "sessions": sessions}
            self.files = [old for old in self.files if not _replaced(old, new)]
            self.files.append(new)

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return {"files": self.files, "sessions": {name: asdict(seen) for name, seen in self.sessions.items()}, "forgotten": self.forgotten}


def is_named(wanted: str, session_id: str, project: str) -> bool:
    """Whether a word of the user names this session: its id, its parent's, or its project.

    >>> is_named("s1", "s1.agent-a7", "shop"), is_named("shop", "s1", "acme/shop"), is_named("s", "s1", "shop")
    (True, True, False)
    """
    of_it = session_id == wanted or session_id.startswith((f"{wanted}.agent-", f"{wanted}~"))
    return of_it or wanted in (project, project.rpartition("/")[2])


def read_record(path: Path, *, sessions: Path) -> IngestRecord:
    """The record of a store; one without a record (made by an earlier version, or by hand) begins with what its sessions say."""
    written = datetime.fromtimestamp(sessions.stat().st_mtime, UTC).isoformat(timespec="seconds") if sessions.exists() else ""
    if not path.exists():
        return IngestRecord(since=written)
    try:
        value = json.loads(path.read_bytes())
        seen = {str(name): Seen(**{k: v for k, v in one.items() if k in _NAMES}) for name, one in value.get("sessions", {}).items()}
        return IngestRecord(files=list(value["files"]), sessions=seen, forgotten=list(value.get("forgotten", ())), since=written)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "move it away: the sessions stay, only when they were first seen is lost"
        raise DataError(f"not the record of a store: {error!r}", where=str(path), fix=fix) from error


def _replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a report stands for the same sessions, or, where the file gave none then, for the same file."""
    if old.get("sessions"):
        return not set(old["sessions"]).isdisjoint(new["sessions"])
    return old.get("file") == new["file"] and (not new["sessions"] or old.get("sha256") == new.get("sha256"))
