"""One process at a time works on a folder: a second one learns who holds it, and the place of a
dead one is taken."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from composer_replication.core import lock
from composer_replication.core.errors import BusyError
from composer_replication.core.lock import OWNER, Owner, lock_folder, owner_of, process_start
from composer_replication.core.rundir import RunDir, create_run, remove_run

HOLD = """
import sys, time
from pathlib import Path
from composer_replication.core.rundir import RunDir
with RunDir(Path(sys.argv[1])).attempt() as number:
    print(number, flush=True)
    time.sleep(60)
"""


def make(folder: Path) -> RunDir:
    return create_run(folder / "runs", resolved={}, command="recompose train", seed=1, name="a")


def held(run: RunDir) -> subprocess.Popen[str]:
    """Start a process that is in the middle of a launch."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_a_second_launch_is_told_who_is_at_work_and_a_dead_ones_place_is_taken(
    tmp_path: Path,
) -> None:
    run = make(tmp_path)
    process = held(run)
    try:
        owner = owner_of(run.path)
        assert owner is not None and (owner.pid, owner.began, owner.host) == (
            process.pid,
            process_start(process.pid),
            platform.node(),
        )
        message = f"another launch of this run is at work on this folder: process {process.pid} on "
        with pytest.raises(BusyError, match=message), run.attempt():
            raise AssertionError("two at once")
        with pytest.raises(BusyError, match=message):
            remove_run(run.path)  # as a second demo would
        assert (
            run.info()["state"] == "running"
            and run.info()["attempts"] == 1
            and owner_of(run.path) == owner
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (run.path / OWNER).exists() and owner_of(run.path) is None
    with run.attempt() as number:
        assert number == 2 and owner_of(run.path) == Owner(
            **json.loads((run.path / OWNER).read_text("utf-8"))
        )
    assert [(e["kind"], e["owner"]) for e in run.events()] == [("took_over", owner.text())]
    with run.attempt():  # a process that ends normally leaves nothing to take over
        pass
    assert len(run.events()) == 1 and not (run.path / OWNER).exists()


def test_an_error_gives_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path, task="test"):
        _ = 1 / 0
    assert not (tmp_path / OWNER).exists()
    with lock_folder(tmp_path, task="test") as before:
        assert before is None


def test_without_locks_the_owners_name_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    with (
        lock_folder(tmp_path, task="test"),
        pytest.raises(BusyError, match=f"process {os.getpid()} on"),
        lock_folder(tmp_path, task="test"),
    ):
        raise AssertionError("two at once")
    owner = {
        "pid": os.getpid(),
        "began": process_start(os.getpid()),
        "host": platform.node(),
        "since": "2026-11-20T14:02:11+00:00",
    }
    # one number belongs to another process by now, and nobody has the other
    gone = [{**owner, "began": "1"}, {**owner, "pid": 2**22 + 1, "began": ""}]
    for dead_owner in gone:
        (tmp_path / OWNER).write_text(json.dumps(dead_owner), "utf-8")
        with lock_folder(tmp_path, task="test") as before:
            assert before is not None and asdict(before) == dead_owner
    (tmp_path / OWNER).write_text('{"pid": 47', "utf-8")
    with lock_folder(tmp_path, task="test") as before:
        assert before is None
