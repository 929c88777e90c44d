"""What every executor must do, with real jobs: a subclass hands in the executor.

The jobs are small Python programs. They count their starts in the results folder, so that a retry
by the executor itself would be seen.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import ReplicaError
from composer_replication.training.diloco.executors.jobs import Executor, JobStatus, ReplicaJob
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
import os, pathlib, sys, time
from composer_replication.training.diloco.executors.done_marker import write_done, write_failure
folder = pathlib.Path(os.environ["RECOMPOSE_RESULTS"])
slot = os.environ["RECOMPOSE_SLOT"]
starts = folder / f"starts.{slot}"
with open(starts, "a") as stream:
    print(os.getpid(), file=stream, flush=True)
num_starts = len(starts.read_text().split())
print("slot", slot, "start", num_starts, flush=True)
"""
SLEEP = "time.sleep(120)"


class ExecutorConformance:
    """Subclasses define the fixture `make`; `exit_codes` if the provider reports them."""

    exit_codes = True
    start_s = 60.0
    """How long a job may take to start and end at this provider."""
    cancelled = "cancelled"
    """What the provider calls a job that was cancelled."""
    secret_store = True
    """Whether the executor can hand secrets over; else it must refuse them by name."""

    @pytest.fixture
    def make(self) -> Callable[[], Executor]:
        """Makes the executor anew, as a second driver would."""
        raise NotImplementedError

    @pytest.fixture
    def executor(self, make: Callable[[], Executor]) -> Executor:
        return make()

    def job(self, folder: Path, code: str, *, slot: int = 0, **fields: Any) -> ReplicaJob:
        environment = {"PYTHONPATH": f"{ROOT / 'src'}", "GREETING": "hello there"}
        options = {"env": environment, **self.fields(), **fields}
        argv = (sys.executable, "-c", BEGIN + code)
        return ReplicaJob(argv=argv, slot=slot, results=str(folder), **options)

    def fields(self) -> Mapping[str, Any]:
        return {}

    def ended(self, executor: Executor, handle: str) -> JobStatus:
        deadline = time.monotonic() + self.start_s
        while not (status := executor.poll(handle)).over:
            assert time.monotonic() < deadline, f"{status} after {self.start_s} s"
            time.sleep(executor.poll_s)
        return status

    def pids(self, folder: Path, slot: int = 0) -> list[int]:
        """The process ids of the starts of a slot, once there is one."""
        path = folder / f"starts.{slot}"
        deadline = time.monotonic() + self.start_s
        while not path.exists() or not path.read_text().endswith("\n"):
            assert time.monotonic() < deadline, "the job has not started"
            time.sleep(0.05)
        return [int(line) for line in path.read_text().split()]

    def test_results_logs_and_environment_come_back(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        code = "write_done({'slot': slot, 'greeting': os.environ['GREETING']})"
        group = ReplicaGroup(executor)
        group.launch([self.job(tmp_path, code, slot=slot) for slot in (0, 1)])
        results = group.collect(timeout_s=self.start_s)
        assert results == {
            slot: {"slot": str(slot), "greeting": "hello there"} for slot in range(2)
        }
        assert self.ended(executor, group.handles()[1]).state == "ended"
        assert "slot 1 start 1" in group.logs(1) and "slot 0" not in group.logs(1)

    def test_a_secret_reaches_the_job_and_nothing_else(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        code = "write_done({'length': len(os.environ['TOKEN'])})"
        job = self.job(tmp_path, code, secrets={"TOKEN": "hunter2-hunter2"})
        group = ReplicaGroup(executor)
        if not self.secret_store:
            with pytest.raises(ValueError, match="secret"):
                group.launch([job])
            return
        group.launch([job])
        assert group.collect(timeout_s=self.start_s) == {0: {"length": 15}}
        assert "hunter2" not in repr(job) + group.to_json() + group.logs(0) + group.handles()[0]
        assert "hunter2" not in self.visible(group.handles()[0])

    def visible(self, handle: str) -> str:
        """What the provider shows about a job."""
        raise NotImplementedError

    def test_a_failure_is_reported_with_its_code_and_log(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        group = ReplicaGroup(executor)
        group.launch([self.job(tmp_path, "print('no such file', flush=True); sys.exit(3)")])
        with pytest.raises(ReplicaError, match="1 of 1 replicas failed") as raised:
            group.collect(timeout_s=self.start_s)
        assert "no such file" in raised.value.failures[0]
        status = executor.poll(group.handles()[0])
        assert status.state == "failed" and status.exit_code == (3 if self.exit_codes else None)

    def test_exit_code_0_is_not_success(self, executor: Executor, tmp_path: Path) -> None:
        group = ReplicaGroup(executor)
        group.launch([self.job(tmp_path, "sys.exit(0)")])
        with pytest.raises(ReplicaError, match="no done marker"):
            group.collect(timeout_s=self.start_s)

    def test_retries_belong_to_the_group_alone(self, executor: Executor, tmp_path: Path) -> None:
        code = "write_done({'start': num_starts}) if num_starts == 2 else sys.exit(1)"
        group = ReplicaGroup(executor, max_attempts=3)
        group.launch([self.job(tmp_path, code)])
        assert group.collect(timeout_s=self.start_s) == {0: {"start": 2}}
        assert len(self.pids(tmp_path)) == 2
        failing = ReplicaGroup(executor, max_attempts=1)
        failing.launch([self.job(tmp_path, "sys.exit(1)", slot=1)])
        with pytest.raises(ReplicaError):
            failing.collect(timeout_s=self.start_s)
        time.sleep(3 * executor.poll_s)
        assert len(self.pids(tmp_path, 1)) == 1

    def test_cancelling_ends_the_process_and_may_be_repeated(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        handle = executor.launch(self.job(tmp_path, SLEEP))
        (pid,) = self.pids(tmp_path)
        assert executor.poll(handle).state == "running"
        executor.cancel(handle)
        executor.cancel(handle)
        assert self.ended(executor, handle).state == self.cancelled
        deadline = time.monotonic() + self.start_s
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()
        executor.cancel(handle)

    def test_a_cancelled_group_starts_nothing_again(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        group = ReplicaGroup(executor, max_attempts=3)
        group.launch([self.job(tmp_path, SLEEP)])
        self.pids(tmp_path)
        group.cancel()
        with pytest.raises(ReplicaError, match="cancelled"):
            group.collect(timeout_s=self.start_s)
        assert len(self.pids(tmp_path)) == 1

    def test_a_killed_process_is_a_failure(self, executor: Executor, tmp_path: Path) -> None:
        group = ReplicaGroup(executor)
        group.launch([self.job(tmp_path, SLEEP)])
        os.kill(self.pids(tmp_path)[0], signal.SIGKILL)
        with pytest.raises(ReplicaError):
            group.collect(timeout_s=self.start_s)
        assert executor.poll(group.handles()[0]).state in ("failed", "lost", "preempted")

    def test_another_driver_goes_on_where_the_first_one_stopped(
        self, executor: Executor, make: Callable[[], Executor], tmp_path: Path
    ) -> None:
        first = ReplicaGroup(executor)
        wait = "while not (folder / 'go').exists(): time.sleep(.05)\n"
        first.launch([self.job(tmp_path, wait + "write_done({'late': True})")])
        self.pids(tmp_path)
        second = ReplicaGroup.attach(make(), first.to_json())
        assert second.poll()[0].state == "running"
        (tmp_path / "go").touch()
        assert second.collect(timeout_s=self.start_s) == {0: {"late": True}}
        assert "slot 0 start 1" in second.logs(0)

    def test_an_attempt_that_takes_too_long_is_ended(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        job = self.job(tmp_path, SLEEP, timeout_s=3.0)
        group = ReplicaGroup(executor)
        group.launch([job])
        with pytest.raises(ReplicaError, match=r"ran for more than 3 s|[Tt]imed? ?out|cancelled"):
            group.collect(timeout_s=self.start_s)

    def test_a_job_that_the_provider_does_not_know_is_lost(self, executor: Executor) -> None:
        assert executor.poll(self.unknown()).state == "lost"
        executor.cancel(self.unknown())

    def unknown(self) -> str:
        """A handle of a job that never was."""
        raise NotImplementedError
