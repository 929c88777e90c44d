"""Replicas on machines of Monarch: real workers and actors of this machine, real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.executors.jobs import Executor
from composer_replication.training.diloco.executors.monarch_jobs import MonarchHosts
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup
from tests.executors.conformance import SLEEP, ExecutorConformance

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]

WAIT = "while not (folder / 'go').exists(): time.sleep(.05)\n"
WORKER = (
    "import sys; from monarch.actor import run_worker_loop_forever as run\n"
    "run(address=sys.argv[1], ca='trust_all_connections')"
)
DRIVER = """
import os, sys
from pathlib import Path
from composer_replication.training.diloco.executors.monarch_jobs import MonarchHosts
from composer_replication.training.diloco.executors.replica_group import ReplicaGroup
from tests.backends_monarch.test_monarch_jobs import WAIT
from tests.executors.conformance import ExecutorConformance

folder = Path(sys.argv[2])
group = ReplicaGroup(MonarchHosts([sys.argv[1]], shared=str(folder)))
code = WAIT + "write_done({'late': True})"
group.launch([ExecutorConformance().job(folder, code)])
(folder / "group.json").write_text(group.to_json())
os.kill(os.getpid(), 9)
"""


class TestMonarchHosts(ExecutorConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Callable[[], Executor]]:
        made: list[MonarchHosts] = []

        def executor() -> Executor:
            made.append(MonarchHosts(folder=tmp_path / "jobs"))
            made[-1].poll_s = 0.05
            return made[-1]

        yield executor
        for one in made:
            one.close()

    def visible(self, handle: str) -> str:
        return (Path(handle.partition(" ")[2]) / "job.json").read_text()

    def unknown(self) -> str:
        return "here /nowhere/0.never"

    def test_a_job_outlives_its_actor(self, executor: MonarchHosts, tmp_path: Path) -> None:
        group = ReplicaGroup(executor)
        group.launch([self.job(tmp_path, WAIT + "write_done({'pid': os.getppid()})")])
        (pid,) = self.pids(tmp_path)
        os.kill(parent(parent(pid)), signal.SIGKILL)  # job < shell < actor
        assert group.poll()[0].state == "running"
        (tmp_path / "go").touch()
        assert group.collect(timeout_s=self.start_s)[0].keys() == {"pid"}

    def test_the_cards_are_those_of_hardware(self, executor: Executor, tmp_path: Path) -> None:
        group = ReplicaGroup(executor)
        code = "write_done({'cards': os.environ['CUDA_VISIBLE_DEVICES']})"
        group.launch([self.job(tmp_path, code, hardware="0,1")])
        assert group.collect(timeout_s=self.start_s) == {0: {"cards": "0,1"}}


def test_a_killed_driver_is_followed_by_another_at_the_same_worker(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, address], env=environment, start_new_session=True
    )
    try:
        driver = [sys.executable, "-c", DRIVER, address, str(tmp_path)]
        subprocess.run(driver, env=environment, timeout=120, check=False)
        record = (tmp_path / "group.json").read_text()
        with MonarchHosts([address], shared=str(tmp_path)) as executor:
            group = ReplicaGroup.attach(executor, record)
            assert group.poll()[0].state == "running"
            (tmp_path / "go").touch()
            assert group.collect(timeout_s=60) == {0: {"late": True}}
            assert "slot 0 start 1" in group.logs(0)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def test_a_folder_of_this_machine_and_another_worker_are_refused(tmp_path: Path) -> None:
    executor = MonarchHosts(["tcp://node1:26600"])
    with pytest.raises(ConfigError, match="a folder of this machine"):
        executor.launch(ExecutorConformance().job(tmp_path, SLEEP))
    with pytest.raises(ConfigError, match="runs at here, which is none of tcp://node1"):
        executor.poll("here /nowhere")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def parent(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])
