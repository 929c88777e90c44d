"""Modal sandboxes: the real SDK against a loopback control plane whose sandboxes are processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from composer_replication.training.diloco.executors.jobs import Executor, ReplicaJob
from composer_replication.training.diloco.executors.modal_jobs import (
    ModalSandboxes,
    sandbox_keywords,
)
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup
from tests.executors.conformance import ExecutorConformance

pytestmark = pytest.mark.backend
pytest.importorskip("modal", reason="modal is not installed (make backends)")

from tests.backends_executors.modal_server import ModalServer  # noqa: E402 - needs modal


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    """One for the module: the SDK keeps its connection for the life of the process."""
    with ModalServer() as running:
        settings = {
            "MODAL_SERVER_URL": running.url,
            "MODAL_TOKEN_ID": "ak-none",
            "MODAL_TOKEN_SECRET": "as-none",
            "MODAL_CONFIG_PATH": str(tmp_path_factory.mktemp("modal") / "modal.toml"),
        }
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        yield running
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class TestModalSandboxes(ExecutorConformance):
    cancelled = "failed"  # Modal reports 137, as for a killed sandbox

    @pytest.fixture(autouse=True)
    def serving(self, server: ModalServer) -> Iterator[None]:
        self.server = server
        server.unimplemented.clear()
        yield
        assert server.unimplemented == []

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Executor]:
        def executor() -> Executor:
            made = ModalSandboxes(shared=str(tmp_path))
            made.poll_s = 0.1
            return made

        return executor

    def visible(self, handle: str) -> str:
        request = self.server.requests[-1]
        return str(request.definition) + str(request.tags)

    def unknown(self) -> str:
        return "sb-0123456789abcdef012345"

    def test_a_control_plane_that_stumbles_is_no_lost_sandbox(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        group = ReplicaGroup(executor, max_attempts=3)
        group.launch([self.job(tmp_path, "time.sleep(1); write_done({})")])
        before = len(self.server.sandboxes)
        self.server.unavailable = 50  # more than the SDK tries by itself
        assert group.poll()[0].state == "unknown"
        self.server.unavailable = 0
        assert group.collect(timeout_s=self.start_s) == {0: {}}
        assert len(self.server.sandboxes) == before


class TestModalSandboxesWithGpu(TestModalSandboxes):
    """Sandboxes with a GPU go through other calls of the SDK."""

    def fields(self) -> Mapping[str, Any]:
        return {"hardware": "A100", "image": "modal:python3.11"}

    def test_the_gpu_is_asked_for(self, executor: Executor, tmp_path: Path) -> None:
        executor.launch(self.job(tmp_path, ""))
        assert self.server.requests[-1].definition.resources.gpu_config.gpu_type == "A100"
        assert self.server.requests[-1].definition.timeout_secs == 86_400


def test_every_keyword_is_one_of_the_sdk() -> None:
    import modal

    job = ReplicaJob(argv=("true",), slot=0, results="s3://b/r")
    assert set(sandbox_keywords(job)) <= set(inspect.signature(modal.Sandbox.create).parameters)
