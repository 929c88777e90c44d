"""The guide's executors, rendezvous and outer loop, with real processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import ConfigError, DataError, ReplicaError, SyncError
from composer_replication.training.diloco.executors.guide_executors import (
    HFJobsExecutor,
    LocalProcessExecutor,
    ModalExecutor,
)
from composer_replication.training.diloco.executors.hf_jobs import HfJobs
from composer_replication.training.diloco.executors.modal_jobs import ModalSandboxes
from composer_replication.training.diloco.executors.run_entrypoint import entrypoint_named
from composer_replication.training.diloco.guide_allreduce import (
    ObjectStoreAllReduce,
    make_diloco_outer_loop,
)

pytestmark = pytest.mark.train
OWN = "tests.executors.test_guide_executors"


def echo(rank_env: str, text: str) -> dict[str, Any]:
    import os

    return {"rank": os.environ[rank_env], "of": os.environ["REPLICA_WORLD_SIZE"], "text": text}


def fails_on_rank_1(rendezvous_uri: str) -> int:
    import os
    import time

    if os.environ["REPLICA_RANK"] == "1":
        raise ValueError("the loss is nan")
    time.sleep(60)
    return 0


def test_replicas_of_a_function_meet_and_return(tmp_path: Path) -> None:
    executor = LocalProcessExecutor()
    handles = executor.launch_replicas(
        2, f"{OWN}.echo", {"rank_env": "MY_RANK", "text": "it's fine"}
    )
    results = executor.collect(handles, timeout=120)
    expected = [{"rank": str(rank), "of": "2", "text": "it's fine"} for rank in range(2)]
    assert results == expected


def test_a_childs_failure_reaches_collect_and_ends_the_others(tmp_path: Path) -> None:
    executor = LocalProcessExecutor(results_uri=str(tmp_path))
    handles = executor.launch_replicas(2, f"{OWN}.fails_on_rank_1", {"rendezvous_uri": "x"})
    with pytest.raises(ReplicaError, match="replica 1: ValueError: the loss is nan"):
        executor.collect(handles, timeout=50)
    assert executor.poll(handles[0]).state == "cancelled"
    assert "Traceback" in executor.logs(handles[1])


def test_an_unknown_entrypoint_fails_by_name() -> None:
    executor = LocalProcessExecutor()
    handles = executor.launch_replicas(1, "composer_replication.nothing")
    with pytest.raises(ReplicaError, match="neither a function nor a module"):
        executor.collect(handles, timeout=60)
    with pytest.raises(ConfigError, match="n_replicas = 0"):
        executor.launch_replicas(0, "a.b")
    assert entrypoint_named("tests.executors.test_guide_executors.echo").__name__ == "echo"


def test_cloud_executors_hand_their_words_on() -> None:
    modal = ModalExecutor(image="modal:python3.11", gpu="A100")
    hub = HFJobsExecutor(hardware="a10g-large")
    assert isinstance(modal.executor, ModalSandboxes) and isinstance(hub.executor, HfJobs)
    for executor in (modal, hub):
        with pytest.raises(ConfigError, match="no place for their results"):
            executor.launch_replicas(1, "a.b")
        with pytest.raises(ConfigError, match="cannot write"):
            executor.launch_replicas(1, "a.b", {"rendezvous_uri": "/tmp/run"})


@pytest.mark.parametrize(("rank", "world_size"), [(4, 4), (-1, 4), (0, 0)])
def test_a_rank_out_of_bounds_raises(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} of {world_size} does not exist"):
        ObjectStoreAllReduce("/tmp/x", rank=rank, world_size=world_size)


def test_one_rank_alone_gets_its_tensor_back(tmp_path: Path) -> None:
    tensor = torch.randn(3)
    assert ObjectStoreAllReduce(tmp_path / "run", 0, 1).allreduce(tensor) is tensor
    assert not (tmp_path / "run").exists()


def means(folder: Path, tensors: list[torch.Tensor], rounds: int = 1) -> list[torch.Tensor]:
    """What each rank of a world of threads gets in its last round."""
    results: list[Any] = [None] * len(tensors)

    def run(rank: int) -> None:
        rendezvous = ObjectStoreAllReduce(folder, rank, len(tensors), timeout_s=30)
        for _ in range(rounds):
            results[rank] = rendezvous.allreduce(tensors[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(tensors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_mean_is_the_same_on_every_rank(tmp_path: Path) -> None:
    """Summed in rank order whoever came first: equal bits, although floats do not commute."""
    tensors = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    results = means(tmp_path, tensors, rounds=4)
    expected = (tensors[0].clone().add_(tensors[1]).add_(tensors[2])).div_(3)
    assert all(torch.equal(result, expected) for result in results)
    assert len(list((tmp_path / "allreduce").rglob("0*/0*"))) <= 6, "older parts are removed"


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    rendezvous = ObjectStoreAllReduce(tmp_path, rank=1, world_size=3, timeout_s=0.1)
    with pytest.raises(SyncError, match=r"the ranks \[0, 2\] of 3 have not written"):
        rendezvous.allreduce(torch.zeros(2))


def test_a_second_process_with_a_rank_and_another_model_are_refused(tmp_path: Path) -> None:
    def rank(number: int, size: int = 2) -> ObjectStoreAllReduce:
        return ObjectStoreAllReduce(tmp_path, number, size, timeout_s=0.05)

    with pytest.raises(SyncError, match="have not written"):
        rank(0).allreduce(torch.zeros(2))
    with pytest.raises(SyncError, match="rank 0 has written its part 0 already"):
        rank(0).allreduce(torch.ones(2))
    with pytest.raises(DataError, match=r"rank 0 wrote \[2\] of 2 ranks, this one has \[5\]"):
        rank(1).allreduce(torch.zeros(5))


def test_the_outer_loop_is_torchs_nesterov_on_the_mean(tmp_path: Path) -> None:
    """Two ranks that drift by known steps, beside torch.optim.SGD on the mean of the drifts."""
    start = torch.tensor([1.0, -2.0])
    drifts = [torch.tensor([0.5, 0.25]), torch.tensor([-0.125, 1.0])]
    ends: list[Any] = [None, None]

    def run(rank: int) -> None:
        model = torch.nn.Linear(2, 1, bias=False)
        frozen = torch.nn.Linear(2, 1).requires_grad_(False)
        before = frozen.weight.clone()
        model.weight.data.copy_(start)
        both = torch.nn.ModuleList([model, frozen])
        rendezvous = ObjectStoreAllReduce(tmp_path, rank, 2, timeout_s=30)
        loop = make_diloco_outer_loop(both, rendezvous=rendezvous, sync_every=2)
        for _ in range(6):
            model.weight.data.sub_(drifts[rank] / 2)
            loop.step()
        assert loop.num_rounds == 3 and torch.equal(frozen.weight, before)
        ends[rank] = model.weight.detach().view(-1)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    weight = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(3):
        weight.grad = (drifts[0] + drifts[1]) / 2
        sgd.step()
    assert torch.equal(ends[0], ends[1]) and torch.allclose(ends[0], weight.data, atol=1e-6)
    with pytest.raises(ConfigError, match="never syncs"):
        rendezvous = ObjectStoreAllReduce("x", 0, 1)
        make_diloco_outer_loop(torch.nn.Linear(1, 1), rendezvous=rendezvous, sync_every=0)
