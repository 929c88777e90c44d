"""Replicas as processes of this machine: the default executor.

    executor = LocalProcesses(Path("replicas"))
    handle = executor.launch(job)              # replicas/0.5f0c.../ holds log, pid, exit code

The handle is the attempt's folder, so a driver that died and came back reads the exit code there. A
small shell around the command writes it; a job whose shell was killed too is "lost" to a later
driver, and "failed" to the one that started it. Each job leads a process group of its own: `cancel`
ends what the job started as well, and Ctrl-C in the driver's terminal reaches the driver only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from composer_replication.core.errors import ConfigError
from composer_replication.core.files import FILE, atomic_writer, make_folder
from composer_replication.training.diloco.executors.jobs import (
    JobStatus,
    ReplicaJob,
    status_of_exit,
)

_SHELL = """
trap : TERM INT  # the shell outlives the command, which gets these signals too
exit_file=$1; shift
"$@"
code=$?
echo $code > "$exit_file.part" && mv "$exit_file.part" "$exit_file"
exit $code
"""
_SIGNALLED = 128
"""What a shell adds to a signal's number in an exit code."""


class LocalProcesses:
    """Starts each replica as a process of this machine, with its own folder below `folder`."""

    name = "local"
    poll_s = 0.05

    def __init__(self, folder: Path | None = None, *, stop_s: float = 5.0) -> None:
        """`stop_s`: how long `cancel` waits after SIGTERM before SIGKILL."""
        self._folder = folder or Path(tempfile.mkdtemp(prefix="recompose-replicas-"))
        self._stop_s = stop_s
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, job: ReplicaJob) -> str:
        """Start the process; its folder is the handle."""
        folder = (self._folder / f"{job.slot}.{job.attempt}").absolute()
        make_folder(folder)
        if (folder / "job.json").exists():
            raise ConfigError(
                f"slot {job.slot} has an attempt {job.attempt} already",
                where=str(folder),
                fix="launch job.next_attempt()",
            )
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, "sh", str(folder / "exit"), *job.argv],
                env={**os.environ, **job.environment(), **job.secrets},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._children[str(folder)] = child
        record = {"pid": child.pid, "started": _started(child.pid), "job": job.public()}
        with atomic_writer(folder / "job.json") as stream:
            json.dump(record, stream)
        return str(folder)

    def running(self) -> list[tuple[ReplicaJob, str]]:
        """The jobs below the folder that run, with their handles: those of a driver that was
        killed go on without it.

        >>> LocalProcesses(Path("no folder")).running()
        []
        """
        found = []
        for path in sorted(self._folder.glob("*/job.json")):
            if self._alive(handle := str(path.parent.absolute())):
                fields = json.loads(path.read_text("utf-8"))["job"]
                found.append((ReplicaJob(**{**fields, "argv": tuple(fields["argv"])}), handle))
        return found

    def poll(self, handle: str) -> JobStatus:
        """The state of the process, by its exit file, then by its process id."""
        if self._alive(handle):
            return JobStatus(state="running")
        folder = Path(handle)
        if (folder / "cancelled").exists():
            return JobStatus(state="cancelled", reason="cancelled")
        with contextlib.suppress(FileNotFoundError, ValueError):
            code = int((folder / "exit").read_text())
            return status_of_exit(code if code <= _SIGNALLED else _SIGNALLED - code)
        if (child := self._children.get(handle)) and child.returncode is not None:
            return status_of_exit(child.returncode)
        return JobStatus(state="lost", reason="the process ended without an exit code")

    def logs(self, handle: str) -> str:
        """What the process has written to stdout and stderr."""
        try:
            return (Path(handle) / "log").read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def cancel(self, handle: str) -> None:
        """End the process and what it started: SIGTERM, after `stop_s` seconds SIGKILL."""
        if not self._alive(handle):
            return
        (Path(handle) / "cancelled").touch(FILE)
        self._signal(handle, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_s
        while self._alive(handle) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(handle, signal.SIGKILL)
        self._reap(handle)

    def kill(self, handle: str) -> None:
        """SIGKILL the process and what it started, as a crash would."""
        if self._alive(handle):
            self._signal(handle, signal.SIGKILL)
            self._reap(handle)

    def _signal(self, handle: str, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(_process(handle)[0], number)

    def _reap(self, handle: str) -> None:
        if child := self._children.get(handle):
            child.wait()

    def _alive(self, handle: str) -> bool:
        if child := self._children.get(handle):
            return child.poll() is None
        pid, started = _process(handle)
        return bool(pid) and bool(started) and _started(pid) == started


def _process(handle: str) -> tuple[int, str]:
    """The process id of a job's shell and when it started; 0 and "" if it never did."""
    try:
        record = json.loads((Path(handle) / "job.json").read_text("utf-8"))
    except FileNotFoundError:
        return 0, ""
    return int(record["pid"]), str(record["started"])


def _started(pid: int) -> str:
    """When a process started, in the system's own unit; "" if it is gone or a zombie.

    A process id is given out again, so the id alone could be somebody else's process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return _started_by_ps(pid) if not Path("/proc/self").exists() else ""
    except ProcessLookupError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _started_by_ps(pid: int) -> str:
    """The same where there is no /proc (macOS)."""
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = shown.partition(" ")
    return "" if state.startswith("Z") else started.strip()
