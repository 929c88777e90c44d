"""Replicas as local processes: the conformance suite, and what only they can show."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    ReplicaError,
)
from composer_replication.training.diloco.executors import done_marker
from composer_replication.training.diloco.executors.done_marker import (
    read_marker,
    write_done,
    write_failure,
)
from composer_replication.training.diloco.executors.jobs import (
    Executor,
    JobStatus,
    ReplicaJob,
    local_folder,
)
from composer_replication.training.diloco.executors.local_jobs import LocalProcesses
from composer_replication.training.diloco.executors.modal_jobs import ModalSandboxes
from composer_replication.training.diloco.executors.monarch_jobs import MonarchHosts
from composer_replication.training.diloco.executors.ray_jobs import RayJobs
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup
from tests.executors.conformance import SLEEP, ExecutorConformance


class TestLocalProcesses(ExecutorConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Executor]:
        return lambda: LocalProcesses(tmp_path / "jobs")

    def visible(self, handle: str) -> str:
        return "".join(path.read_text() for path in Path(handle).iterdir())

    def unknown(self) -> str:
        return "/nowhere/0.abc"

    def test_what_a_job_started_ends_with_it(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        code = (
            "import subprocess; child = subprocess.Popen(['sleep', '120'])\n"
            f"(folder / 'child').write_text(str(child.pid)); {SLEEP}"
        )
        handle = executor.launch(self.job(tmp_path, code))
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            time.sleep(0.02)
        executor.cancel(handle)
        child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if child.read_text().rpartition(")")[2].split()[0] != "Z":
                    time.sleep(0.02)
                    continue
            return
        pytest.fail("the grandchild still runs")

    def test_a_process_id_of_somebody_else_is_never_signalled(
        self, executor: LocalProcesses, make: Callable[[], LocalProcesses], tmp_path: Path
    ) -> None:
        """The job ended and its id was given out again: here, to this test's own process."""
        handle = executor.launch(self.job(tmp_path, "write_done({})"))
        self.ended(executor, handle)
        record = Path(handle) / "job.json"
        text = record.read_text()
        pid = text.partition('"pid": ')[2].partition(",")[0]
        record.write_text(text.replace(f'"pid": {pid}', f'"pid": {os.getpid()}'))
        later = make()
        assert later.poll(handle).state == "ended"
        later.cancel(handle)
        later.kill(handle)

    def test_an_attempt_is_started_once(self, executor: LocalProcesses, tmp_path: Path) -> None:
        job = self.job(tmp_path, "write_done({})")
        executor.launch(job)
        with pytest.raises(ConfigError, match="has an attempt"):
            executor.launch(job)

    def test_a_finished_attempt_that_was_reported_lost_still_counts(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        """The provider loses sight of attempt 1, attempt 2 starts, then attempt 1 writes."""
        wait = "while not (folder / 'go').exists(): time.sleep(.05)\n"
        code = f"if num_starts == 1:\n    {wait}    write_done({{'first': True}})\n{SLEEP}"
        lossy = Lossy(executor)
        group = ReplicaGroup(lossy, max_attempts=2)
        group.launch([self.job(tmp_path, code)])
        lossy.lost = group.handles()[0]
        while len(self.pids(tmp_path)) < 2:
            with pytest.raises(ReplicaError, match="not done"):
                group.collect(timeout_s=0)
        (tmp_path / "go").touch()
        try:
            assert group.collect(timeout_s=self.start_s) == {0: {"first": True}}
        finally:
            group.cancel()

    def test_a_failure_that_the_next_attempt_would_meet_again_is_not_retried(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        heard: list[tuple[int, str]] = []
        group = ReplicaGroup(
            executor, max_attempts=3, on_restart=lambda slot, why: heard.append((slot, why))
        )
        refusal = "write_failure(ConfigError('other settings', fix='agree'), final=True)"
        code = f"from composer_replication.core.errors import ConfigError\n{refusal}; sys.exit(1)"
        dies_once = "write_done({}) if num_starts == 2 else sys.exit(5)"
        codes = (code, code, dies_once)
        group.launch(self.job(tmp_path, text, slot=slot) for slot, text in enumerate(codes))
        with pytest.raises(ReplicaError) as raised:
            group.collect(timeout_s=self.start_s)
        assert raised.value.what.endswith("\nreplicas 0, 1: other settings; agree")
        assert heard == [(2, "exit code 5")] and raised.value.results == {2: {}}
        assert len(self.pids(tmp_path)) == 1

    def test_jobs_outlive_their_driver_and_are_found(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        job = self.job(tmp_path, SLEEP)
        handle = executor.launch(job)
        over = executor.launch(self.job(tmp_path, "pass", slot=1))
        self.ended(executor, over)
        later = LocalProcesses(Path(handle).parent)
        assert later.running() == [(job, handle)]
        later.cancel(handle)
        assert later.running() == []

    def test_the_first_failure_ends_the_wait_of_replicas_that_need_each_other(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        group = ReplicaGroup(executor)
        error = "write_failure(ValueError('loss is nan')); sys.exit(1)"
        group.launch([self.job(tmp_path, SLEEP), self.job(tmp_path, error, slot=1)])
        begin = time.monotonic()
        with pytest.raises(ReplicaError, match="ValueError: loss is nan") as raised:
            group.collect(timeout_s=60, fail_fast=True)
        assert time.monotonic() - begin < 20 and raised.value.failures.keys() == {1}
        assert group.poll()[0].state == "cancelled"

    def test_the_survivors_results_come_with_the_failure(
        self, executor: LocalProcesses, tmp_path: Path
    ) -> None:
        group = ReplicaGroup(executor)
        group.launch(
            [self.job(tmp_path, "write_done({'n': 1})"), self.job(tmp_path, "1/0", slot=1)]
        )
        with pytest.raises(ReplicaError, match="ZeroDivisionError") as raised:
            group.collect(timeout_s=60)
        assert raised.value.results == {0: {"n": 1}}


class Lossy:
    """An executor that reports one job lost although it runs."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.lost = executor, ""
        self.name, self.poll_s = executor.name, executor.poll_s
        self.launch, self.logs, self.cancel = executor.launch, executor.logs, executor.cancel

    def poll(self, handle: str) -> JobStatus:
        return JobStatus(state="lost") if handle == self.lost else self.executor.poll(handle)


def marker_job(folder: Any, **fields: Any) -> ReplicaJob:
    return ReplicaJob(argv=("true",), slot=0, results=str(folder), **fields)


def test_a_marker_counts_for_its_own_attempt_only(tmp_path: Path) -> None:
    job = marker_job(tmp_path)
    assert read_marker(job) is None
    write_done({"n": 1}, env=job.environment())
    marker = read_marker(job)
    assert marker is not None and marker.result == {"n": 1}
    assert read_marker(job.next_attempt()) is None
    write_failure(ValueError("no"), env=job.environment())
    marker = read_marker(job)
    assert marker is not None and (marker.result, marker.error) == (None, "ValueError: no")


def test_a_marker_in_a_store_without_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_url = pytest.importorskip("obstore.store", reason="obstore is not installed").from_url
    monkeypatch.setattr(done_marker, "_store", lambda url: from_url(tmp_path.as_uri()))
    job = marker_job("s3://bucket/run")
    assert read_marker(job) is None
    write_done({"n": 2}, env=job.environment())
    marker = read_marker(job)
    assert marker is not None and marker.result == {"n": 2}


def test_a_marker_that_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    job = marker_job(tmp_path)
    write_done({}, env=job.environment())
    (path,) = (tmp_path / "done").iterdir()
    path.write_text('{"slot": 7}')
    with pytest.raises(DataError, match=r"done/0\."):
        read_marker(job)


def test_a_process_that_no_executor_started_writes_no_marker() -> None:
    write_done({"n": 1}, env={})


def test_urls_of_folders() -> None:
    assert local_folder("/tmp/x") == Path("/tmp/x") and local_folder("gs://b/x") is None
    with pytest.raises(ConfigError, match="names a host"):
        local_folder("file://data/x")


def test_two_replicas_of_one_slot_are_refused(tmp_path: Path) -> None:
    group = ReplicaGroup(LocalProcesses(tmp_path / "jobs"))
    job = ReplicaJob(argv=(sys.executable, "-c", ""), slot=0, results=str(tmp_path))
    group.launch([job])
    with pytest.raises(ReplicaError, match="slot 0 is launched already"):
        group.launch([job.next_attempt()])
    with pytest.raises(DataError, match="run at local, not at modal"):
        other = LocalProcesses(tmp_path / "jobs")
        other.name = "modal"
        ReplicaGroup.attach(other, group.to_json())
    group.cancel()


@pytest.mark.parametrize("executor", [ModalSandboxes(), RayJobs()], ids=["modal", "ray"])
def test_a_provider_whose_package_is_missing_says_how_to_install_it(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("modal", "ray", "ray.job_submission", "requests"):
        monkeypatch.setitem(sys.modules, module, None)
    job = ReplicaJob(argv=("true",), slot=0, results="s3://bucket/run")
    with pytest.raises(MissingExtraError, match=rf"pip install '?{executor.name}"):
        executor.launch(job)


def test_without_monarch_an_executor_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "monarch", None)
    monkeypatch.setitem(sys.modules, "monarch.actor", None)
    job = ReplicaJob(argv=("true",), slot=0, results=str(tmp_path))
    with pytest.raises(MissingExtraError, match="monarch"):
        MonarchHosts().launch(job)
