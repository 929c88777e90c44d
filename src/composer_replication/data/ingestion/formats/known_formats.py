"""The known formats, and which of them a file is: its content decides, never its name."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from composer_replication.data.ingestion.formats.atif import ATIF
from composer_replication.data.ingestion.formats.chat_messages import MESSAGES, MESSAGES_LINES
from composer_replication.data.ingestion.formats.cline import CLINE
from composer_replication.data.ingestion.formats.cline_cli import CLINE_CLI
from composer_replication.data.ingestion.formats.codex import CODEX
from composer_replication.data.ingestion.formats.copilot_cli import COPILOT_CLI
from composer_replication.data.ingestion.formats.gemini_cli import GEMINI_CLI, GEMINI_CLI_LINES
from composer_replication.data.ingestion.formats.log_format import LogFormat
from composer_replication.data.ingestion.formats.mini_swe_agent import MINI_SWE_AGENT
from composer_replication.data.ingestion.formats.opencode import (
    OPENCODE,
    OPENCODE_DATABASE,
    OPENCODE_STORAGE,
)
from composer_replication.data.ingestion.formats.openhands import (
    OPENHANDS,
    OPENHANDS_FOLDER,
    OPENHANDS_SDK,
    OPENHANDS_SDK_LINES,
    is_event_of_folder,
)
from composer_replication.data.ingestion.formats.pi import PI
from composer_replication.data.ingestion.formats.swe_agent import SWE_AGENT
from composer_replication.data.ingestion.lines import LineReader

_KNOWN = (
    CODEX,
    GEMINI_CLI,
    GEMINI_CLI_LINES,
    OPENCODE,
    OPENCODE_STORAGE,
    OPENCODE_DATABASE,
    SWE_AGENT,
    MINI_SWE_AGENT,
    OPENHANDS,
    OPENHANDS_FOLDER,
    OPENHANDS_SDK,
    OPENHANDS_SDK_LINES,
    ATIF,
    PI,
    COPILOT_CLI,
    CLINE_CLI,
    CLINE,
    MESSAGES,
    MESSAGES_LINES,
)
FORMATS: Mapping[str, LogFormat] = {known.name: known for known in _KNOWN}
"""Name of a format -> the format, in the order in which they are tried."""
OTHER_ENDINGS = frozenset((".json", ".traj", ".db"))
"""Files of these endings are looked into when a folder is searched."""
MAX_DOCUMENT_BYTES = 2**26
"""A larger file that is one JSON value is not read."""
_SQLITE = b"SQLite format 3\0"
_SNIFF_LINES = 20
_LINE_BYTES = 2**20
_HEAD_BYTES = 2**18
# A document without any of these near its beginning is no log: large data files stay unread.
_DOCUMENT_KEYS = (
    b'"role"',
    b'"directory"',
    b'"messages"',
    b'"kind"',
    b'"trajectory"',
    b'"steps"',
    b'"action"',
    b'"agent"',
)
_IN_VS_CODE = "the tasks of Cline and Roo Code in VS Code"
_HOME_FOLDERS: tuple[tuple[str, str], ...] = (
    ("CODEX_HOME", ".codex/sessions"),
    ("", ".gemini/tmp"),
    ("", ".local/share/opencode"),
    ("", ".openhands/conversations"),
    ("", ".pi/agent/sessions"),
    ("", ".copilot/session-state"),
    ("", ".cline/data/sessions"),
    ("", ".config/Code/User/globalStorage/saoudrizwan.claude-dev/tasks"),
    ("", ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/tasks"),
    ("", "Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev/tasks"),
    ("", "Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/tasks"),
)


def agent_folders(home: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of other agents' logs that exist; a variable such as $CODEX_HOME moves one."""
    return tuple(path for path in _agent_folders(home, environ) if path.is_dir())


def named_folders(home: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The folders of other agents' logs whether they exist or not, as people name them.

    Example: ("~/.codex/sessions", "~/.gemini/tmp", ..., "the tasks of Cline and Roo Code in VS
    Code")
    """
    names = [
        _IN_VS_CODE
        if "globalStorage" in path.parts
        else f"~/{path.relative_to(home).as_posix()}"
        if path.is_relative_to(home)
        else str(path)
        for path in _agent_folders(home, environ)
    ]
    return tuple(dict.fromkeys(names))


def _agent_folders(home: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    for variable, folder in _HOME_FOLDERS:
        moved = environ.get(variable) if variable else None
        yield Path(moved, *Path(folder).parts[1:]) if moved else home / folder


def sniff_format(path: Path) -> tuple[str, str] | None:
    """Return the name of another agent's format and the folder in which its session ran; None for
    Claude Code and for files of an unknown kind."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _sniff(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _sniff(path: Path, _changed: int, size: int) -> tuple[str, str] | None:
    try:
        if tables := _tables(path):
            database = next(f for f in FORMATS.values() if f.layout == "database")
            return (database.name, "") if database.fits(tables) else None
        records = _first_records(path)
        document = _document(path, records, size)
    except (OSError, ValueError, RecursionError):
        return None
    for known in FORMATS.values():
        for value in records if known.layout == "lines" else [document]:
            if value is not None and known.fits(value):
                is_part = known is OPENHANDS_SDK_LINES and is_event_of_folder(path)
                return None if is_part else (known.name, known.folder_of(value))
    return None


def read_document(path: Path) -> Any:
    """Read a file that is one JSON value; ValueError or RecursionError if it is not."""
    return json.loads(path.read_bytes())


def _tables(path: Path) -> frozenset[str]:
    """The tables of a SQLite database; none for any other file."""
    with path.open("rb") as stream:
        if stream.read(len(_SQLITE)) != _SQLITE:
            return frozenset()
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as database:
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return frozenset(str(name) for (name,) in rows)
    except sqlite3.Error:
        return frozenset(("?",))


def _first_records(path: Path) -> list[Any]:
    """The first lines as JSON; None for a line that is none, or too long."""
    records: list[Any] = []
    for _, line in LineReader(path, _LINE_BYTES, hashed=False):
        try:
            records.append(json.loads(line) if line is not None else None)
        except (ValueError, RecursionError):
            records.append(None)
        if len(records) == _SNIFF_LINES:
            break
    return records


def _document(path: Path, records: list[Any], size: int) -> Any:
    """The one JSON value of a file; None if it holds JSON lines, or looks like no log."""
    if not records or records[0] is not None:
        return records[0] if len(records) == 1 else None
    if size > MAX_DOCUMENT_BYTES:
        return None
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    is_likely = head.lstrip()[:1] in (b"{", b"[") and any(key in head for key in _DOCUMENT_KEYS)
    return read_document(path) if is_likely else None
