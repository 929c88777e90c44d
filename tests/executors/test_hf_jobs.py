"""Hugging Face Jobs: the real SDK against a loopback server whose jobs are local processes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.executors.hf_jobs import HfJobs, run_keywords
from composer_replication.training.diloco.executors.jobs import Executor, ReplicaJob
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup
from tests.executors.conformance import ExecutorConformance
from tests.executors.hf_jobs_server import HubServer

pytestmark = pytest.mark.train


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the server is this machine
    with HubServer() as server:
        yield server


class TestHfJobs(ExecutorConformance):
    exit_codes = False

    @pytest.fixture(autouse=True)
    def serving(self, hub: HubServer) -> None:
        self.hub = hub

    @pytest.fixture
    def make(self, hub: HubServer, tmp_path: Path) -> Callable[[], Executor]:
        def executor() -> Executor:
            made = HfJobs(endpoint=hub.url, token="hf_none", shared=str(tmp_path))
            made.poll_s = 0.05
            return made

        return executor

    def visible(self, handle: str) -> str:
        return json.dumps(self.hub.jobs[handle.rpartition("/")[2]].view("me"))

    def unknown(self) -> str:
        return "me/0123456789abcdef01234567"

    def test_an_overloaded_hub_is_no_lost_job(self, executor: Executor, tmp_path: Path) -> None:
        """503 while polling: the attempt goes on, and no second one is started."""
        group = ReplicaGroup(executor, max_attempts=3)
        group.launch([self.job(tmp_path, "time.sleep(.5); write_done({})")])
        self.hub.refuse = 2
        assert group.poll()[0].state == "unknown"
        assert group.collect(timeout_s=self.start_s) == {0: {}} and len(self.hub.jobs) == 1

    def test_the_hub_is_told_not_to_retry_and_gets_secrets_as_secrets(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        job = self.job(tmp_path, "", secrets={"TOKEN": "t"}, hardware="a10g-large", image="own:1")
        executor.launch(job)
        (spec,) = self.hub.specs
        assert spec["secrets"] == {"TOKEN": "t"} and "TOKEN" not in spec["environment"]
        assert (spec["flavor"], spec["dockerImage"]) == ("a10g-large", "own:1")
        assert spec.get("attempts", spec.get("retry", 1)) in (1, None, {"maxAttempts": 1})


def test_every_keyword_is_one_of_the_sdk(tmp_path: Path) -> None:
    from huggingface_hub import HfApi

    job = ReplicaJob(argv=("true",), slot=0, results="s3://b/r")
    assert set(run_keywords(job)) <= set(inspect.signature(HfApi.run_job).parameters)


def test_a_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        HfJobs().launch(ReplicaJob(argv=("true",), slot=0, results=str(tmp_path)))
