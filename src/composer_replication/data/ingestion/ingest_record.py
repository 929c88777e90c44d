"""What a store remembers beside its sessions (ingest.json): when each was first and last seen, what
each log file gave, what was forgotten.

{"files": [{"file": "a.jsonl", "status": "read", "tool_use": 66, ...}], "sessions": {"s1":
{"first_seen": "2026-11-22T13:31:56Z", ...}},
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
class Seen:
    """What is known of one stored session without reading it; times in UTC, `started` and `ended`
    as the agent wrote them.

    `log_sha256` is of the log that was read; `mark` names what secrets were removed with.
    Example: Seen(project="acme/inkwell", file="a.jsonl", first_seen="2026-11-22T13:31:56Z",
    last_seen="2026-11-23T09:00:00Z")
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
    ) -> Seen:
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
    """The content of ingest.json; `since` is when a store without a record was last written.

    `forgotten` are the words of the user, `removed` the ids of the sessions that were taken out by
    them.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    sessions: dict[str, Seen] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    since: str = ""

    def is_forgotten(self, session_id: str, seen: Seen) -> bool:
        """Whether the user had a session, its parent or its project removed."""
        return any(is_named(name, session_id, seen, inside=True) for name in self.forgotten)

    def add_files(self, reports: Iterable[Mapping[str, Any]], *, names: Mapping[str, str]) -> None:
        """Put the reports of files in place of what they replace: the file that gave these sessions
        before, or the file of that name."""
        for report in reports:
            sessions = [names.get(name, name) for name in report["sessions"] if name in names]
            new = {**report, "sessions": sessions}
            self.files = [old for old in self.files if not _replaced(old, new)]
            self.files.append(new)

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        sessions = {name: asdict(seen) for name, seen in self.sessions.items()}
        removed = [name for name in self.removed if name not in sessions]
        return {
            "files": self.files,
            "sessions": sessions,
            "forgotten": self.forgotten,
            "removed": removed,
        }


def project_folder(seen: Seen) -> str:
    """The folder of a session's project: where it ran, up to the part that gave the project its
    name; "" where the log does not tell.

    >>> project_folder(Seen(project="shop", cwd="/home/me/shop/src"))
    '/home/me/shop'
    >>> project_folder(Seen(project="acme/shop", cwd="/srv/clone/.worktrees/2"))
    '/srv/clone'
    """
    parts, name = plain_folder(seen.cwd).split("/"), seen.project.rpartition("/")[2]
    return "/".join(parts[: len(parts) - parts[::-1].index(name)] if name in parts else parts)


def is_named(wanted: str, session_id: str, seen: Seen, *, inside: bool = False) -> bool:
    """Whether an entry of the forgotten means this session: its id, its parent's, its repository,
    or the folder of its project.

    With `inside`, also a session of a project without a remote that ran somewhere in that folder:
    what a project is called hangs on which logs are read with it, so it would come back under
    another name. A name without a slash is what an earlier version wrote, or a project of logs
    without a folder: it means every project of that name.

    >>> seen = Seen(project="acme/shop", cwd="/home/me/shop/src")
    >>> [is_named(word, "s1", seen) for word in ("s1", "acme/shop", "/home/me/shop", "my/shop")]
    [True, True, True, False]
    """
    if session_id == wanted or session_id.startswith((f"{wanted}.agent-", f"{wanted}~")):
        return True
    if is_path(wanted):
        within = (
            inside
            and "/" not in seen.project
            and f"{plain_folder(seen.cwd)}/".startswith(f"{wanted}/")
        )
        return within or wanted == project_folder(seen)
    return wanted == seen.project or (
        "/" not in wanted and wanted == seen.project.rpartition("/")[2]
    )


def meanings(word: str, sessions: Mapping[str, Seen]) -> list[str]:
    """What a word of the user can mean among these sessions, each so that nothing else is meant: an
    id, a repository or a project's folder.

    >>> meanings("app", {"s1": Seen(project="app", cwd="/a/app"), "s2": Seen(project="app", cwd="/b/app"), "s3": Seen(project="acme/app")})
    ['/a/app', '/b/app', 'acme/app']
    """
    if any(name == word or name.startswith((f"{word}.agent-", f"{word}~")) for name in sessions):
        return [word]
    if is_path(word):
        folder = plain_folder(str(Path(word).expanduser()))
        return [folder] if any(project_folder(seen) == folder for seen in sessions.values()) else []
    found = [
        seen
        for seen in sessions.values()
        if word in (seen.project, seen.project.rpartition("/")[2])
    ]
    return sorted(
        {
            seen.project if "/" in seen.project else project_folder(seen) or seen.project
            for seen in found
        }
    )


def is_path(word: str) -> bool:
    """Whether a word is the full path of a folder, as a system of any kind writes it."""
    return word.startswith(("/", "~", "\\")) or word[1:3] in (":/", ":\\")


def read_record(path: Path, *, sessions: Path) -> IngestRecord:
    """The record of a store; one without a record (made by an earlier version, or by hand) begins
    with what its sessions say."""
    written = (
        datetime.fromtimestamp(sessions.stat().st_mtime, UTC).isoformat(timespec="seconds")
        if sessions.exists()
        else ""
    )
    if not path.exists():
        return IngestRecord(since=written)
    try:
        value = json.loads(path.read_bytes())
        seen = {
            str(name): Seen(**{k: v for k, v in one.items() if k in _NAMES})
            for name, one in value.get("sessions", {}).items()
        }
        forgotten, removed = list(value.get("forgotten", ())), list(value.get("removed", ()))
        return IngestRecord(
            files=list(value["files"]),
            sessions=seen,
            forgotten=forgotten,
            removed=removed,
            since=written,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "move it away: the sessions stay, only when they were first seen is lost"
        raise DataError(
            f"not the record of a store: {error!r}", where=str(path), fix=fix
        ) from error


def _replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a report stands for the same sessions, or, where the file gave none then, for the
    same file."""
    if old.get("sessions"):
        return not set(old["sessions"]).isdisjoint(new["sessions"])
    return old.get("file") == new["file"] and (
        not new["sessions"] or old.get("sha256") == new.get("sha256")
    )
