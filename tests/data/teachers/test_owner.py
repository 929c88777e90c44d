"""One process at a time holds a file: a second one learns who holds it, and takes over what a dead
one left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from composer_replication.core.errors import DataError
from composer_replication.data.teachers.owner import held_alone, new_owner, owner_is_alive


def test_the_second_is_told_who_holds_the_file(tmp_path: Path) -> None:
    lock = tmp_path / ".replay.lock"
    with held_alone(lock, what="replay"):
        assert owner_is_alive(lock.read_text()) and lock.stat().st_mode & 0o077 == 0
        with (
            pytest.raises(
                DataError, match=f"another replay is at work on this folder: process {os.getpid()}"
            ),
            held_alone(lock, what="replay"),
        ):
            pass
        assert lock.exists()
    assert not lock.exists()
    with held_alone(lock, what="replay"):
        pass


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / ".replay.lock"
    pid = os.fork()
    if not pid:
        with held_alone(lock, what="replay"):
            time.sleep(60)
        os._exit(0)
    try:
        deadline = time.monotonic() + 30
        while not (lock.exists() and lock.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(DataError, match=f"process {pid}"), held_alone(lock, what="replay"):
            pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert lock.exists() and lock.read_text().split(":")[1] == str(pid)
    with held_alone(lock, what="replay"):
        assert lock.read_text().split(":")[1] == str(os.getpid())


def test_without_locks_of_the_system_the_name_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.core.lock.fcntl", None)
    lock = tmp_path / ".replay.lock"
    lock.write_text(new_owner())
    with pytest.raises(DataError, match="remove this file"), held_alone(lock, what="replay"):
        pass
    for left in ("", "torn", new_owner().replace(f":{os.getpid()}:", ":999999999:")):
        lock.write_text(left)
        with held_alone(lock, what="replay"):
            pass
