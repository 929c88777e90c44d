"""A small work folder for the tests of the verbs: one session with one mistake, written with the
real codec."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.cli.main import run
from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.load_config import find_config
from composer_replication.core.config.trusted_files import VARIABLE
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]markup[/bold] \u202etxt.exe \x9b2J"


@dataclass(frozen=True, slots=True)
class CliResult:
    """The output of a command line and its exit code."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The JSON object on stdout; fails if anything else was printed."""
        return json.loads(self.out)


def recompose(*argv: str, cwd: Path, trusting: bool = True) -> CliResult:
    """Run one command line in this process, in a folder, as with a pipe for stdout; the settings
    files that it reads are trusted."""
    out, err = io.StringIO(), io.StringIO()
    with (
        inside(cwd),
        trusted(argv if trusting else ()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(list(argv))
    return CliResult(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def trusted(argv: Sequence[str]) -> Iterator[None]:
    """As in CI: RECOMPOSE_TRUST holds the hashes of the settings files that a command line reads,
    while the block runs."""
    if not argv:
        yield
        return
    named = [Path(value) for flag, value in itertools.pairwise(argv) if flag in ("-c", "--config")]
    files = [path for path in (*named, *filter(None, [find_config(Path.cwd())])) if path.is_file()]
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ",".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The current folder, for the time of a block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def session(name: str = "sess-aaaa", *, text: str = "Please fix the test.") -> Session:
    """Seven turns: a good read, then an edit of a file that does not exist, its error, and the
    later turns."""
    model = "claude-test-1"
    turns = (
        Turn(role="user", author="human", blocks=(Text(text),)),
        Turn(
            role="assistant",
            author=model,
            blocks=(Text("I look first."), ToolCall("c1", "Read", {"file_path": "a.py"})),
        ),
        Turn(
            role="tool",
            author="environment",
            blocks=(ToolResult("c1", "def f():\n    return 1", False),),
        ),
        Turn(
            role="assistant",
            author=model,
            blocks=(
                ToolCall("c2", "Edit", {"file_path": "b.py", "old_string": "x", "new_string": "y"}),
            ),
        ),
        Turn(
            role="tool",
            author="environment",
            blocks=(ToolResult("c2", "File does not exist.", True),),
        ),
        Turn(role="assistant", author=model, blocks=(Text("It was a.py all along."),)),
        Turn(role="user", author="human", blocks=(Text("Thanks."),)),
    )
    source = SourceRef(file="log.jsonl", format="claude_code")
    return Session(
        id=name,
        source=source,
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        repository="demo",
    )


def site(session_id: str = "sess-aaaa") -> Site:
    """The mistaken message of `session`."""
    return Site(
        session_id=session_id,
        turn=3,
        call_id="c2",
        kind="file_missing",
        detector="tool_error",
        evidence=(4,),
        tool="Edit",
        author="claude-test-1",
        detail="File does not exist.",
        flagged=True,
    )


def fill(work: Path, sessions: Sequence[Session]) -> None:
    """Write sessions.jsonl, and a site and a hint for each session."""
    write_sessions(work / "sessions.jsonl", sessions)
    sites = [site(s.id) for s in sessions]
    write_lines(work / "sites.jsonl", map(record_to_json, sites))
    hints = [
        Hint(site_id=s.id, text="Reminder: seen so far: a.py", writer="seen_paths", kind=s.kind)
        for s in sites
    ]
    write_lines(work / "hints.jsonl", map(record_to_json, hints))


def files(folder: Path) -> set[str]:
    """Every file below a folder."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
