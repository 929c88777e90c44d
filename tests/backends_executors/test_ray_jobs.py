"""Ray jobs: a real Ray head on loopback, whose jobs are processes of this machine."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.executors.jobs import Executor, ReplicaJob
from composer_replication.training.diloco.executors.ray_jobs import RayJobs, submit_keywords
from tests.executors.conformance import ExecutorConformance

pytestmark = [pytest.mark.backend, pytest.mark.xdist_group("ray"), pytest.mark.timeout(240)]
pytest.importorskip("ray", reason="ray is not installed (make backends)")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head with a folder and ports of its own; it ends with its own session only."""
    port = free_port()
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_AUTH_MODE": "disabled",  # else a token in the home folder decides who may ask
    }
    # short, because the path of a Unix socket in it may have 107 bytes
    folder = Path("/tmp") / f"ray-{os.getpid()}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--node-ip-address=127.0.0.1", f"--port={free_port()}", "--num-cpus=4"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={port}", "--include-dashboard=1"]
    command += ["--object-store-memory=80000000", f"--temp-dir={folder}", "--disable-usage-stats"]
    command += [
        f"--dashboard-agent-listen-port={free_port()}",
        f"--ray-client-server-port={free_port()}",
    ]
    log = tmp_path_factory.mktemp("ray") / "head.log"
    with log.open("wb") as stream:
        head = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, head, log)
        yield address
    finally:
        os.killpg(head.pid, 15)
        try:
            head.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, 9)
            head.wait()


def wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    import time

    import requests

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert head.poll() is None, log.read_text()[-2000:]
        try:
            if requests.get(f"{address}/api/jobs/", timeout=5).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.3)
    pytest.fail(f"no dashboard at {address}: {log.read_text()[-2000:]}")


class TestRayJobs(ExecutorConformance):
    secret_store = False
    start_s = 90.0

    @pytest.fixture(autouse=True)
    def serving(self, dashboard: str) -> None:
        self.dashboard = dashboard

    @pytest.fixture
    def make(self, dashboard: str, tmp_path: Path) -> Callable[[], Executor]:
        def executor() -> Executor:
            made = RayJobs(dashboard, shared=str(tmp_path), num_cpus=0.5)
            made.poll_s = 0.2
            return made

        return executor

    def visible(self, handle: str) -> str:
        return json.dumps(str(RayJobs(self.dashboard)._client().get_job_info(handle)))

    def unknown(self) -> str:
        return "recompose-0-never"

    def test_a_dashboard_that_is_away_is_no_lost_job(self) -> None:
        assert RayJobs(f"http://127.0.0.1:{free_port()}").poll("any").state == "unknown"


def test_every_keyword_is_one_of_the_sdk() -> None:
    from ray.job_submission import JobSubmissionClient

    job = ReplicaJob(argv=("python", "-c", "print('a b')"), slot=0, results="s3://b/r")
    keywords = submit_keywords(job, num_cpus=1)
    assert set(keywords) <= set(inspect.signature(JobSubmissionClient.submit_job).parameters)
    assert keywords["entrypoint"] == """python -c 'print('"'"'a b'"'"')'"""
    with pytest.raises(ConfigError, match="no number of GPUs"):
        submit_keywords(ReplicaJob(argv=("a",), slot=0, results="", hardware="A100"), num_cpus=1)
