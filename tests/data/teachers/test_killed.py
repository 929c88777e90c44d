"""A process killed at any point loses no answer, pays for none twice and forgets no money."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    sys.platform == "win32",
    reason="Windows cannot fork; tests/cli/test_replay_paid.py kills whole processes there, too",
)
def test_killed_before_every_single_statement_of_the_ledger(tmp_path: Path) -> None:
    """Kill at each statement of a first life and at a random one of a second; the third asks only
    for what is missing."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.data.teachers.killed", str(tmp_path)]
    completed = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert completed.returncode == 0, completed.stderr
    counts = json.loads(completed.stdout)
    # Not empty: there are many statements, each was the last of a process, and many a call was in
    # flight at that moment.
    assert (
        counts["statements"] > 50
        and counts["kills"] >= counts["statements"]
        and counts["lost"] > counts["statements"] // 2
    )
