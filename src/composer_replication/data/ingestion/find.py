"""Find Claude Code logs: files, folders, $CLAUDE_CONFIG_DIR, ~/.claude."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.records import BadRecord, decode

RETENTION_NOTE = (
    "Claude Code deletes its logs after 30 days (setting cleanupPeriodDays). What recompose ingests is kept; "
    'to keep the logs themselves, raise "cleanupPeriodDays" in ~/.claude/settings.json or copy the folder.'
)
_SNIFF_LINES = 20
_SNIFF_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A file to read: where it is, how it is called in reports, its size, and the subagent it holds, if any.

    Example: LogFile(path=Path("p/s1/subagents/agent-a1.jsonl"), name="s1/subagents/agent-a1.jsonl", num_bytes=900, agent=("s1", "a1"))
    """

    path: Path
    name: str
    num_bytes: int
    agent: tuple[str, str] | None = None


def default_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where Claude Code keeps its logs: $CLAUDE_CONFIG_DIR/projects, else ~/.claude/projects."""
    if configured := environ.get("CLAUDE_CONFIG_DIR"):
        return (Path(configured) / "projects",)
    return (Path(environ.get("HOME") or Path.home()) / ".claude" / "projects",)


def find_logs(paths: Iterable[str | Path] = (), *, environ: Mapping[str, str] | None = None) -> tuple[LogFile, ...]:
    """Every log under the paths, in the order to read them; none given = where Claude Code keeps them.

    A file is taken whatever its name; of a folder, every *.jsonl in it and below. The largest come first, so that a
    copy made half-way is recognised by the whole; subagents' own files come last, when their calls are known.
    Raises DataError for a path that does not exist, and where the default folder is missing.
    """
    environ = os.environ if environ is None else environ
    given = [Path(p).expanduser() for p in paths]
    roots = given or [p for p in default_folders(environ) if p.is_dir()]
    if not roots:
        looked = ", ".join(str(p) for p in default_folders(environ))
        raise DataError(f"no Claude Code logs in {looked}", fix="give files or folders: recompose ingest PATH ...")
    found: dict[str, LogFile] = {}
    for root in roots:
        if not root.exists():
            raise DataError(f"no file or folder {root}", fix="check the path")
        for path, name in _files(root):
            key = os.path.realpath(path)
            if key not in found:
                found[key] = LogFile(path=path, name=name, num_bytes=_size(path), agent=_agent_of(path))
    return tuple(sorted(found.values(), key=lambda f: (f.agent is not None, -f.num_bytes, f.name)))


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    if not root.is_dir():
        yield root, root.name
        return
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".jsonl") and path.is_file():
                yield path, path.relative_to(root).as_posix()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _agent_of(path: Path) -> tuple[str, str] | None:
    """(session id, agent id) if the file holds one subagent's messages, told by its first message."""
    try:
        for count, (_, line) in enumerate(LineReader(path, _SNIFF_LINE_BYTES, hashed=False), 1):
            if count > _SNIFF_LINES:
                return None
            try:
                record = decode(line)[0] if line is not None else None
            except BadRecord:
                continue
            if record is not None and record.type in ("user", "assistant"):
                if record.isSidechain and record.agentId and record.sessionId:
                    return record.sessionId, record.agentId
                return None
    except OSError:
        pass  # the reader reports the file as unreadable
    return None
