"""SkyPilot's SDK against a loopback API server whose clusters are local processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_replication.training.diloco.executors.jobs import Executor, ReplicaJob
from composer_replication.training.diloco.executors.skypilot_jobs import SkyClusters
from tests.executors.conformance import SLEEP, ExecutorConformance

pytestmark = [pytest.mark.backend, pytest.mark.xdist_group("sky"), pytest.mark.timeout(240)]
pytest.importorskip("sky", reason="skypilot is not installed (make backends)")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from tests.backends_skypilot.skypilot_server import SkyServer

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    with SkyServer() as serving:
        use(serving.url, monkeypatch)
        yield serving


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the SDK to this server: it remembers the first address that it read."""
    from sky.server import common

    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", url)
    for remembered in (common.get_server_url, common.is_api_server_local):
        remembered.cache_clear()


class TestSkyClusters(ExecutorConformance):
    exit_codes = False

    @pytest.fixture(autouse=True)
    def serving(self, server: Any) -> None:
        self.server = server

    @pytest.fixture
    def make(self, server: Any, tmp_path: Path) -> Callable[[], Executor]:
        def executor() -> Executor:
            made = SkyClusters(shared=str(tmp_path))
            made.poll_s = 0.2
            return made

        return executor

    def visible(self, handle: str) -> str:
        import sky

        payloads = sky.api_status(request_ids=[handle.partition("/")[2]])
        return json.dumps([payload.model_dump() for payload in payloads])

    def unknown(self) -> str:
        return "recompose-0-never/no-such-request"

    def test_a_cluster_in_the_making_is_cancelled(self, executor: Executor, tmp_path: Path) -> None:
        self.server.making_s = 3.0
        handle = executor.launch(self.job(tmp_path, SLEEP))
        assert executor.poll(handle).state == "pending"
        assert executor.logs(handle) == ""
        executor.cancel(handle)
        executor.cancel(handle)
        assert executor.poll(handle).state == "cancelled"
        time.sleep(self.server.making_s + 0.5)
        assert not (tmp_path / "starts.0").exists() and not self.server.clusters

    def test_a_cluster_that_nobody_has_is_a_failure(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        self.server.no_capacity = True
        status = executor.poll(executor.launch(self.job(tmp_path, SLEEP, hardware="H100:2")))
        assert status.state == "failed" and "no H100 anywhere" in status.reason

    def test_a_cluster_that_was_taken_away_is_lost(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        handle = executor.launch(self.job(tmp_path, SLEEP))
        self.pids(tmp_path)
        self.server.down({"cluster_name": handle.partition("/")[0]})
        assert executor.poll(handle).state == "lost"
        assert executor.logs(handle) == ""

    def test_the_cluster_takes_itself_down(self, executor: Executor, tmp_path: Path) -> None:
        job = self.job(tmp_path, "sys.exit(0)", hardware="H100:2", image="docker:python:3.11")
        executor.launch(job)
        (task,) = [cluster.task for cluster in self.server.clusters.values()]
        assert task["resources"]["autostop"] == {"idle_minutes": 5, "down": True}
        assert task["resources"]["accelerators"] == {"H100": 2}
        assert task["resources"]["image_id"] == {None: "docker:python:3.11"}


def test_a_server_that_is_away_is_no_lost_job(monkeypatch: pytest.MonkeyPatch) -> None:
    use("http://127.0.0.1:9", monkeypatch)
    assert SkyClusters().poll("cluster/request").state == "unknown"


def test_a_folder_of_this_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="a folder of this machine"):
        SkyClusters().launch(ReplicaJob(argv=("true",), slot=0, results="/tmp/run"))
