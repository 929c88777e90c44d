"""Find the logs of coding agents: files, folders, $CLAUDE_CONFIG_DIR, ~/.claude, and the folders of
other agents. What a file is, its content says, never its name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.formats.known_formats import (
    OTHER_ENDINGS,
    agent_folders,
    named_folders,
    sniff_format,
)
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_records import BadRecord, decode

RETENTION_NOTE = (
    "Claude Code deletes its logs after 30 days (setting cleanupPeriodDays). What recompose ingests"
    ' is kept; to keep the logs themselves, raise "cleanupPeriodDays" in ~/.claude/settings.json or'
    " copy the folder."
)
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")
_SNIFF_LINES = 20
_SNIFF_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A file to read: its path, its name in reports, its size, and the subagent it holds, if any.

    `agent` is (session id, agent id). `cwd` is the folder that the first records name. If `why` is
    set, the file cannot be read: it is reported and not opened. `format` names another agent's
    format (`formats/known_formats.py`); "" = Claude Code, or not known.

    Example: LogFile(path=Path("p/s1/subagents/agent-a1.jsonl"), name="s1/subagents/agent-a1.jsonl",
    num_bytes=900, agent=("s1", "a1"))
    """

    path: Path
    name: str
    num_bytes: int
    agent: tuple[str, str] | None = None
    cwd: str = ""
    why: str = ""
    format: str = ""


def default_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of logs: Claude Code's ($CLAUDE_CONFIG_DIR/projects, else ~/.claude/projects),
    then those of other agents that exist."""
    return (_claude_folder(environ), *agent_folders(_home(environ), environ))


def looked_in(environ: Mapping[str, str]) -> str:
    """Every folder in which logs are looked for, as people name them; for errors."""
    claude = str(_claude_folder(environ))
    return ", ".join([claude, *named_folders(_home(environ), environ)])


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _claude_folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("CLAUDE_CONFIG_DIR")
    return (Path(configured) if configured else _home(environ) / ".claude") / "projects"


def find_logs(
    paths: Iterable[str | Path] = (), *, environ: Mapping[str, str] | None = None
) -> tuple[LogFile, ...]:
    """Find every log under the paths (default: Claude Code's own folders), in reading order.

    A path to a file counts whatever its name; a folder counts with every *.jsonl in and below it,
    and with every other file (*.json, *.traj, ...) whose content is a known format.
    Large files come first, so that a partial copy is recognised by the complete file; files of
    subagents come last, when their calls are known. Folders that cannot be opened and broken links
    are listed, too, with the reason.
    Raises DataError if a path, or the default folder, does not exist.
    """
    logs: dict[str, LogFile] = {}
    for root in _roots(paths, environ):
        for path, name, why in _files(root):
            key = str(path) if why else os.path.realpath(path)
            if key not in logs:
                logs[key] = (
                    LogFile(path=path, name=name, num_bytes=0, why=why)
                    if why
                    else _sniff(path, name)
                )
    return tuple(sorted(logs.values(), key=lambda f: (f.agent is not None, -f.num_bytes, f.name)))


def other_files(
    paths: Iterable[str | Path] = (), *, environ: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Count the files of other kinds, which are not read, by suffix, most frequent first.

    Example: other_files(["~/.claude/projects"]) -> {".json": 12, ".traj": 3}; a file without a
    plain suffix counts under "".
    """
    count: Counter[str] = Counter()
    for root in _roots(paths, environ):
        for folder, _, files in os.walk(root):
            for name in files:
                if not name.endswith(".jsonl") and not _other_agents(Path(folder) / name):
                    ending = os.path.splitext(name)[1]
                    count[ending if _ENDING.fullmatch(ending) else ""] += 1
    return dict(count.most_common())


def _roots(paths: Iterable[str | Path], environ: Mapping[str, str] | None) -> list[Path]:
    environ = os.environ if environ is None else environ
    roots = [Path(p).expanduser() for p in paths] or [
        p for p in default_folders(environ) if p.is_dir()
    ]
    if not roots:
        raise DataError(
            "no logs of an agent on this machine",
            where=looked_in(environ),
            fix="give files or folders: recompose ingest PATH ...",
        )
    for root in roots:
        if not root.exists():
            raise DataError(f"no file or folder {root}", fix="check the path")
    return roots


def _files(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, name in reports, why it cannot be read or "") of every log, in order."""
    if not root.is_dir():
        yield root, root.name, ""
        return
    errors: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=errors.append):
        folders.sort()
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".jsonl") or _other_agents(path):
                why = (
                    ""
                    if path.is_file()
                    else "a link that leads nowhere"
                    if path.is_symlink()
                    else "not a file"
                )
                yield path, path.relative_to(root).as_posix(), why
    for error in errors:
        path = Path(os.fsdecode(error.filename))
        yield (
            path,
            f"{path.relative_to(root).as_posix()}/",
            f"cannot be opened: {error.strerror or type(error).__name__}",
        )


def _other_agents(path: Path) -> bool:
    """Whether a file that is not called *.jsonl is a log of another agent."""
    return path.suffix in OTHER_ENDINGS and sniff_format(path) is not None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sniff(path: Path, name: str) -> LogFile:
    """Read the first lines of a file for the folder and, from its first message, the subagent."""
    agent: tuple[str, str] | None = None
    cwd = ""
    sniffed = sniff_format(path)
    if sniffed is not None:
        name_of_format, cwd = sniffed
        return LogFile(path=path, name=name, num_bytes=_size(path), cwd=cwd, format=name_of_format)
    try:
        for count, (_, line) in enumerate(LineReader(path, _SNIFF_LINE_BYTES, hashed=False), 1):
            if count > _SNIFF_LINES:
                break
            try:
                record = decode(line)[0] if line is not None else None
            except BadRecord:
                continue
            cwd = cwd or (record.cwd or "" if record is not None else "")
            if record is not None and record.type in ("user", "assistant"):
                if record.isSidechain and record.agentId and record.sessionId:
                    agent = record.sessionId, record.agentId
                break
    except OSError:
        pass  # the reader reports the file as unreadable
    return LogFile(path=path, name=name, num_bytes=_size(path), agent=agent, cwd=cwd)
