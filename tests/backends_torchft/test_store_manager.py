"""torchft's own DiLoCo over a store, with ObjectStoreManager in the place of its manager."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import ComposerError, ConfigError
from composer_replication.training.diloco.blob_store import ObjectStore, open_store
from composer_replication.training.diloco.flat_weights import vector_sha256
from composer_replication.training.diloco.guide_allreduce import ObjectStoreAllReduce
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.store_manager import MockManager, ObjectStoreManager
from composer_replication.training.diloco.torchft import StoreDiLoCo, TorchFTSettings
from tests.backends_torchft.test_torchft_engine import Child, by_round
from tests.training.diloco.toy_replicas import INNER_STEPS, ToyModel, reference_hashes

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
pytest.importorskip("torchft", reason="torchft is not installed (make backends)")
PATIENT = Timing(grace_s=60.0, stall_s=60.0, poll_s=0.005, max_poll_s=0.05)


def train_together(
    stores: list[ObjectStore], rounds: int, **changes: Any
) -> tuple[list[ToyModel], dict[int, list[str]]]:
    """Threads, one per store: the models at the end, and the weights after each round."""
    size = len(stores)
    toys = [ToyModel(slot) for slot in range(size)]  # one after the other: they share a generator
    hashes: dict[int, list[str]] = defaultdict(list)
    errors: list[BaseException] = []

    def run(slot: int) -> None:
        settings = TorchFTSettings(slot=slot, **{"sync_every": INNER_STEPS, **changes})
        toy = toys[slot]
        try:
            with StoreDiLoCo(
                toy.net,
                toy.adam,
                settings=settings,
                store=stores[slot],
                replicas=size,
                timing=PATIENT,
            ) as diloco:
                while diloco.round < rounds:
                    before = diloco.round
                    toy.train(1)
                    if diloco.round > before:
                        hashes[diloco.round].append(vector_sha256(toy.flat.read()))
        except (ComposerError, RuntimeError, AssertionError) as error:
            errors.append(error)

    join(run, size)
    assert not errors, errors
    return toys, hashes


def join(run: Callable[[int], None], size: int) -> None:
    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_are_the_single_process_bit_by_bit(size: int, tmp_path: Path) -> None:
    """For three too, where gloo is not: the exchange adds in the order of the slots."""
    stores = [open_store(tmp_path.as_uri()) for _ in range(size)]
    _, hashes = train_together(stores, 4)
    expected = reference_hashes(range(size), 4)
    assert hashes == {n + 1: [sha256] * size for n, sha256 in enumerate(expected)}
    assert len(list((tmp_path / "snapshots").iterdir())) <= 4, "older snapshots are removed"


def test_fragments_with_a_delay_end_equal_on_all_replicas(tmp_path: Path) -> None:
    stores = [open_store(tmp_path.as_uri()) for _ in range(2)]
    toys, _ = train_together(stores, 6, fragments=2, sync_every=6, fragment_delay=1)
    first, second = (dict(toy.net.named_parameters()) for toy in toys)
    last = list(first)[-1]  # the fragment of round 6, with no inner step after it
    assert torch.equal(first[last], second[last])
    assert not torch.equal(first[last], ToyModel(0).net.state_dict()[last])


def test_a_killed_replica_is_replaced_over_the_store(tmp_path: Path) -> None:
    settings = [TorchFTSettings(slot=slot, sync_every=INNER_STEPS) for slot in range(3)]
    url = (tmp_path / "store").as_uri()

    def start(name: str, slot: int) -> Child:
        return Child(tmp_path, name, settings[slot], rounds=100_000, start=0.0, url=url)

    first, second, third = (start(f"r{slot}", slot) for slot in range(3))
    children = [first, second, third]
    try:
        first.wait_for(3, n=3)
        os.kill(second.process.pid, signal.SIGKILL)
        second.process.wait()
        killed_at = first.lines()[-1]["round"]
        first.wait_for(killed_at + 2, n=2)
        children.append(newcomer := start("r1b", 1))
        newcomer.wait_for(killed_at + 3, n=3)
        newcomer.wait_for(newcomer.lines()[-1]["round"] + 3)
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()
    hashes = by_round(*children)
    assert not {number: found for number, found in hashes.items() if len(found) > 1}
    survivors = {line["sha256"] for child in (first, third) for line in child.lines()}
    assert len({line["sha256"] for line in newcomer.lines()} & survivors) >= 2


def test_the_guides_manager_drives_torchfts_diloco(tmp_path: Path) -> None:
    from torchft.local_sgd import DiLoCo

    toys, hashes = [ToyModel(slot) for slot in range(2)], [""] * 2

    def run(slot: int) -> None:
        manager = MockManager(ObjectStoreAllReduce(tmp_path, slot, 2, timeout_s=60))
        toy = toys[slot]
        outer = torch.optim.SGD(toy.net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [toy.net], toy.adam, outer, sync_every=INNER_STEPS):  # pyright: ignore
            for _ in range(3):
                toy.train()
        hashes[slot] = vector_sha256(toy.flat.read())

    join(run, 2)
    assert hashes == [reference_hashes((0, 1), 3)[-1]] * 2


def test_what_torchft_would_ignore_is_refused(tmp_path: Path) -> None:
    manager = ObjectStoreManager(open_store(tmp_path.as_uri()))
    with pytest.raises(ConfigError, match="codec='int8'"):
        manager.allreduce(torch.zeros(1), should_quantize=True)
    with pytest.raises(ConfigError, match="no fragment is registered"):
        manager.start()
