"""Which logs need not be read again: those that are as they were, and whose result depends on no
log that is not.

    earlier = EarlierReading.load(work / "reading.json", key=key)
    again = logs_to_read(logs, earlier)      # the others are as they were: earlier.files[path_key]

The result of a log depends on others that hold the same messages (a resumed session), the same
session (its subagents) or the same beginning (a fork). Each log therefore has marks, hashes of
these ids; a log is read again if it shares one with a log that has changed or gone, directly or
through others. So the sessions are the same as after reading everything.
"""

from __future__ import annotations

import json
import os
from array import array
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.jsonl import write_json
from composer_replication.core.redact import Redactor
from composer_replication.core.rundir import sha256_of
from composer_replication.data.ingestion.claude_code import ingest_file
from composer_replication.data.ingestion.counts import FileReport, RawCounts
from composer_replication.data.ingestion.file_results import FileResult, Links
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.formats.known_formats import FORMATS
from composer_replication.data.ingestion.log_reader import KnownIds
from composer_replication.data.ingestion.repository import enclosing_roots, repository_of

_KEPT = ("read", "duplicate", "empty", "foreign")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """A log of an earlier reading: what tells that it is as it was, and what came of it.

    `changed_ns` are its times of modification and of change of status; `beside` is a hash of the
    other files that its reader looked into (their sizes and times); `names` are those of its
    sessions in the store, `num_sessions` how many were read; `repositories` the name of each folder
    in which one ran.
    """

    num_bytes: int
    changed_ns: tuple[int, int]
    beside: str
    sha256: str
    about: str
    marks: tuple[int, ...]
    names: tuple[str, ...]
    num_sessions: int
    repositories: Mapping[str, str]
    report: FileReport


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierReading:
    """The logs of the last reading by `path_key`, and the hash of the store that it left."""

    key: str = ""
    store: str = ""
    files: Mapping[str, KnownLog] = field(default_factory=dict)

    @staticmethod
    def load(path: Path, *, key: str) -> EarlierReading:
        """Load a reading; an empty one if the file is missing, damaged, or of another `key`."""
        try:
            value = json.loads(path.read_bytes())
            if value["key"] != key:
                return EarlierReading(key=key)
            files = {str(name): _decoded(row) for name, row in value["files"].items()}
            return EarlierReading(key=key, store=str(value["store"]), files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return EarlierReading(key=key)

    def save(self, path: Path) -> None:
        """Write the reading; marks are packed, as a log may have thousands."""
        rows = {name: _encoded(known) for name, known in self.files.items()}
        write_json(path, {"key": self.key, "store": self.store, "files": rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """Size and times of a log and of the files beside it, taken before it is read, so that what is
    added later is seen."""

    num_bytes: int
    changed_ns: tuple[int, int]
    beside: str

    @staticmethod
    def of(log: LogFile) -> LogStatus | None:
        """The status of a log; None if it cannot be looked at."""
        try:
            status = os.stat(log.path)
        except OSError:
            return None
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return LogStatus(num_bytes=status.st_size, changed_ns=times, beside=_beside(log))


def _beside(log: LogFile) -> str:
    """A hash of the sizes and times of the files that the log's reader looks into; "" of none.

    Not of the time of change of status: SQLite itself sets the owner of its files as it reads.
    """
    facts: list[tuple[str, int, int]] = []
    for path in FORMATS[log.format].beside(log.path) if log.format else ():
        try:
            status = os.stat(path)
        except OSError:
            continue
        if status.st_size:  # SQLite makes an empty one while it reads
            facts.append((path.name, status.st_size, status.st_mtime_ns))
    return sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest() if facts else ""


def path_key(log: LogFile) -> str:
    """The hash of a log's path: the path itself may hold what must not be stored."""
    path = os.path.abspath(log.path).encode("utf-8", "surrogateescape")
    return sha256(path).hexdigest()[:32]


def known_log(
    log: LogFile,
    result: FileResult,
    status: LogStatus | None,
    *,
    roots: frozenset[str],
    redactor: Redactor | None,
) -> KnownLog | None:
    """What a later reading needs to know of a log; None if it has to read it again.

    That is a log that could not be read, and one in a folder whose name must not be stored. Its
    `names` are still those of this reading.
    """
    report = result.report
    is_secret = redactor is not None and any(redactor.text(f) != f for f in result.folders)
    if status is None or report.status not in _KEPT or is_secret:
        return None
    return KnownLog(
        num_bytes=status.num_bytes,
        changed_ns=status.changed_ns,
        beside=status.beside,
        sha256=report.sha256 if report.status in ("read", "duplicate") else "",
        about=_about(log),
        marks=result.marks,
        names=tuple(session.id for session in result.sessions),
        num_sessions=len(result.sessions),
        repositories={f: repository_of(f, roots=roots) for f in result.folders},
        report=_outline(report),
    )


def logs_to_read(
    logs: Sequence[LogFile], earlier: EarlierReading, *, settings: IngestSettings
) -> set[str]:
    """The path keys of the logs that have to be read; the others are as they were."""
    roots = enclosing_roots(log.cwd for log in logs)
    by_key = {path_key(log): log for log in logs}
    same = {
        name
        for name, known in earlier.files.items()
        if name in by_key and _is_same(by_key[name], known, roots)
    }
    again = by_key.keys() - same
    if not same:
        return set(again)
    waiting = [m for name in earlier.files.keys() - same for m in earlier.files[name].marks]
    for name in again:  # what is new in them may stand in a log that is as it was
        waiting += ingest_file(
            by_key[name], KnownIds(), Links(), settings=settings, redactor=None, hashed=False
        ).marks
    holders: dict[int, list[str]] = defaultdict(list)
    for name in same:
        for mark in earlier.files[name].marks:
            holders[mark].append(name)
    again = set(again)
    while waiting:
        for name in holders.pop(waiting.pop(), ()):
            if name not in again:
                again.add(name)
                waiting += earlier.files[name].marks
    return again


def _is_same(log: LogFile, known: KnownLog, roots: frozenset[str]) -> bool:
    status = LogStatus.of(log)
    if status is None or status.num_bytes != known.num_bytes or _about(log) != known.about:
        return False
    if status.beside != known.beside:
        return False
    if any(repository_of(f, roots=roots) != name for f, name in known.repositories.items()):
        return False
    if status.changed_ns == known.changed_ns:
        return True
    try:
        return sha256_of(log.path) == known.sha256
    except OSError:
        return False


def _about(log: LogFile) -> str:
    """The hash of what was known of a log before it was read."""
    facts = repr((log.name, log.agent, log.cwd, log.why, log.format))
    return sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _outline(report: FileReport) -> FileReport:
    """The part of a report that an audit says."""
    raw = RawCounts(
        unknown_types=Counter(report.raw.unknown_types), damage=list(report.raw.damage[:3])
    )
    redactions = dict(report.redactions)
    return FileReport(
        file=report.file, status=report.status, why=report.why, raw=raw, redactions=redactions
    )


def _encoded(known: KnownLog) -> dict[str, Any]:
    report = known.report
    return {
        **{
            name: getattr(known, name)
            for name in ("num_bytes", "changed_ns", "beside", "sha256", "about")
        },
        "marks": b64encode(array("Q", known.marks).tobytes()).decode(),
        "names": known.names,
        "num_sessions": known.num_sessions,
        "repositories": known.repositories,
        "report": {
            "file": report.file,
            "status": report.status,
            "why": report.why,
            "unknown": report.raw.unknown_types,
            "damage": report.raw.damage,
            "redactions": report.redactions,
        },
    }


def _decoded(row: Mapping[str, Any]) -> KnownLog:
    about = row["report"]
    raw = RawCounts(
        unknown_types=Counter(about["unknown"]),
        damage=[(int(line), str(why)) for line, why in about["damage"]],
    )
    marks = array("Q")
    marks.frombytes(b64decode(row["marks"]))
    first, second = row["changed_ns"]
    return KnownLog(
        num_bytes=row["num_bytes"],
        changed_ns=(first, second),
        beside=row["beside"],
        sha256=row["sha256"],
        about=row["about"],
        marks=tuple(marks),
        names=tuple(row["names"]),
        num_sessions=row["num_sessions"],
        repositories=dict(row["repositories"]),
        report=FileReport(
            file=about["file"],
            status=about["status"],
            why=about["why"],
            raw=raw,
            redactions=about["redactions"],
        ),
    )
