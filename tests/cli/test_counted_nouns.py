"""What the terminal counts is written as people write it: 1 session, 2 sessions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer_replication import cli
from composer_replication.cli.doctor import logs
from composer_replication.cli.flags import Common
from composer_replication.cli.job import open_job
from tests.cli.agent_logs import sessions_on
from tests.cli.workspace import inside

NOUNS = "answers|files|hints|logs|messages|sessions|tasks|teachers|turns"
RAW = re.compile(rf"\{{len\([^{{}}]*\)\}} ({NOUNS})\b")
OF_SEVERAL = ("of {len(", "tasks are made")
"""After "3 of", the number of all is rarely one, and "of 1 tasks" is read as a total."""


def test_doctor_counts_one_file_and_one_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    sessions_on(("2026-11-03",), to=tmp_path / ".claude" / "projects")
    with inside(tmp_path):
        found = logs(open_job(Common(), writes=False)).found
    assert found.startswith("1 file in ") and "the oldest is 0 days old" in found


def test_no_length_stands_before_a_plural() -> None:
    """A length before a noun goes through `plural`; else a person reads "1 sessions"."""
    folder = Path(str(cli.__file__)).parent
    raw = [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.glob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if RAW.search(line) and not any(words in line for words in OF_SEVERAL)
    ]
    assert raw == []
