"""Read logs that a test made up, and look at the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from examples.log_writer import LogWriter

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import FileResult, ingest
from composer_replication.data.ingestion.find_logs import find_logs

CWD = "/home/dev/shop"


def new_log(name: str = "one", *, version: str = "2.1.30", **more: Any) -> LogWriter:
    """An empty log."""
    return LogWriter(name, version=version, cwd=CWD, **more)


def read_all(*paths: Path, **settings: Any) -> list[FileResult]:
    """Return what ingesting files or folders gives, without redaction."""
    return list(ingest(find_logs(paths), settings=IngestSettings(**settings)))


def read_text(
    folder: Path, text: str | bytes, name: str = "log.jsonl", **settings: Any
) -> FileResult:
    """Return what ingesting one file with this content gives."""
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return read_all(path, **settings)[0]


def read_log(folder: Path, log: LogWriter) -> Session:
    """Return the only session of a log."""
    sessions = read_text(folder, log.text()).sessions
    assert len(sessions) == 1, [s.id for s in sessions]
    return sessions[0]


def lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in records)


def shape(session: Session) -> list[str]:
    """One word a turn: role initial, and its text, calls or answered call's text, e.g. ["u:hi",
    "a:Read", "t:ok"]."""
    words = []
    for turn in session.turns:
        body = (
            turn.text
            or ",".join(c.name for c in turn.calls)
            or ",".join(r.text for r in turn.results)
        )
        words.append(f"{turn.role[0]}:{body}")
    return words


def seen(session: Session, turn: int) -> list[str]:
    """The context of a turn, in the notation of `shape`."""
    words = shape(session)
    return [words[i] for i in session.context_indices(turn)]
