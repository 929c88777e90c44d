"""The simulated world: the same exchange, the same bits for the same seed, and times that a real,
throttled store confirms."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.blob_store import ObjectStore, Traffic
from composer_replication.training.diloco.exchange import Exchange, Timing
from composer_replication.training.diloco.flat_weights import schema_sha256
from composer_replication.training.diloco.replica import Replica
from composer_replication.training.diloco.round_records import Spec
from composer_replication.training.diloco.simulate import Scenario, ring, simulate
from composer_replication.training.diloco.simulated_world import (
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)
from tests.cli.workspace import recompose

pytestmark = pytest.mark.train
CALM = Link(latency_s=0.1, latency_spread=0.0, up_bytes_s=1e6, down_bytes_s=2e6)
SMALL = Scenario(replicas=2, trained=1e6, rounds=3, step_s=1.0, inner_steps=5, link=CALM)


def test_threads_take_turns_by_their_time() -> None:
    world, seen = Simulation(), []

    def body(name: str, pause: float) -> None:
        for _ in range(3):
            world.sleep(pause)
            seen.append((name, world.now))

    world.start(lambda clock: body("slow", 2.0))
    world.start(lambda clock: body("fast", 0.75))
    world.run()
    assert seen == [
        ("fast", 0.75),
        ("fast", 1.5),
        ("slow", 2.0),
        ("fast", 2.25),
        ("slow", 4.0),
        ("slow", 6.0),
    ]


def test_an_error_of_a_thread_reaches_run() -> None:
    world = Simulation()
    world.start(lambda clock: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.run()


def test_a_request_takes_its_latency_and_its_bytes() -> None:
    world, times = Simulation(), list[float]()

    def body(clock: SimulatedClock) -> None:
        store = SimulatedStore(world, CALM, seed=0, scale=10.0)
        assert store.create("rounds/000000/delta/0000.a", b"x" * 50_000)
        times.append(clock.monotonic())  # 0.1 s, and 500 kB at 1 MB/s
        assert store.get("rounds/000000/delta/0000.a") == b"x" * 50_000
        times.append(clock.monotonic())
        assert list(store.list("rounds")) == ["rounds/000000/delta/0000.a"]
        assert not store.create("rounds/000000/delta/0000.a", b"y")
        assert store.get("spec.json") is None
        assert (store.traffic.bytes_up, store.traffic.bytes_down) == (500_010, 500_000)

    world.start(body)
    world.run()
    assert times == pytest.approx([0.6, 0.95])


def test_the_first_upload_that_ends_wins() -> None:
    world, winners = Simulation(), list[str]()

    def body(name: str, link: Link) -> None:
        if SimulatedStore(world, link, seed=0).create("commit.json", name.encode()):
            winners.append(name)

    world.start(lambda clock: body("far", replace(CALM, latency_s=2.0)))
    world.start(lambda clock: body("near", CALM), at=1.0)
    world.run()
    assert winners == ["near"]


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    stormy = replace(
        SMALL,
        replicas=6,
        link=Link(failure=0.05),
        stragglers=0.3,
        deaths_per_hour=60.0,
        restart_s=5.0,
        grace_s=8.0,
        rounds=6,
    )
    first = simulate(stormy)
    assert first == simulate(stormy) != simulate(replace(stormy, seed=1))
    assert first.participation < 1.0


def test_more_replicas_and_more_weights_cost_more() -> None:
    small, many = simulate(SMALL), simulate(replace(SMALL, replicas=6))
    assert many.sync_s > small.sync_s and many.dollars > small.dollars
    assert many.bytes_down == pytest.approx(5 * small.bytes_down, rel=0.02)
    half = simulate(replace(SMALL, codec="int8"))
    assert half.bytes_up == pytest.approx(small.bytes_up / 3.94, rel=0.05)
    assert small.bytes_up == pytest.approx(4e6, rel=0.2)  # 4 bytes a weight, and the header
    with pytest.raises(ConfigError, match="one replica or more"):
        simulate(replace(SMALL, replicas=0))


def test_the_ring_by_hand() -> None:
    """Four replicas: 2 * 3 / 4 of 4 MB at 1 MB/s, and six latencies; per round, or per step."""
    one = ring(replace(SMALL, replicas=4), syncs=1)
    assert one.sync_s == pytest.approx(6.0 + 0.6) and one.bytes_up == pytest.approx(6e6)
    assert one.dollars == pytest.approx(0.09 * 4 * 6e6 / 1e9)
    assert ring(replace(SMALL, replicas=4), syncs=5).sync_s == pytest.approx(33.0)


@dataclass
class ThrottledStore:
    """A real store behind a link that sleeps for each request's latency and bytes."""

    inner: ObjectStore
    link: Link

    @property
    def traffic(self) -> Traffic:
        return self.inner.traffic

    def _wait(self, size: int, bytes_s: float) -> None:
        time.sleep(self.link.latency_s + size / bytes_s)

    def create(self, key: str, data: bytes) -> bool:
        self._wait(len(data), self.link.up_bytes_s)
        return self.inner.create(key, data)

    def get(self, key: str) -> bytes | None:
        data = self.inner.get(key)
        self._wait(len(data or b""), self.link.down_bytes_s)
        return data

    def list(self, prefix: str) -> Sequence[str]:
        keys = self.inner.list(prefix)
        self._wait(0, self.link.up_bytes_s)
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


def measured(scenario: Scenario, timing: Timing) -> float:
    """The median seconds of a sync of real replicas, in threads over one throttled store."""
    from obstore.store import MemoryStore

    blobs, size = MemoryStore(), int(scenario.trained)
    weights = [("flat", [size], "float32")]
    spec = Spec(
        weights=weights,
        schema_sha256=schema_sha256(weights),
        replicas=scenario.replicas,
        quorum=max(1, scenario.replicas // 2),
    )
    seconds: list[float] = []
    start = threading.Barrier(scenario.replicas)

    def run(slot: int) -> None:
        store = ThrottledStore(ObjectStore(blobs), scenario.link)
        start.wait()
        exchange = Exchange.join(store, spec, start=torch.zeros(size), slot=slot, timing=timing)
        replica = Replica(exchange)
        for number in range(scenario.rounds):
            time.sleep(scenario.inner_steps * scenario.step_s)
            noise = torch.Generator().manual_seed(100 * slot + number)
            local = replica.base - torch.randn(size, generator=noise) * 1e-3
            seconds.append(replica.sync(local, tokens=1, steps=1).seconds)

    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(scenario.replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(seconds)


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_prediction_is_within_15_percent_of_real_replicas(replicas: int) -> None:
    """The throttle is most of the time, so that a busy machine does not decide."""
    link = Link(latency_s=0.15, latency_spread=0.0, up_bytes_s=4e5, down_bytes_s=4e5)
    scenario = Scenario(
        replicas=replicas,
        trained=1e5,
        rounds=3,
        inner_steps=1,
        step_s=1.0,
        link=link,
        poll_s=0.05,
        max_poll_s=0.5,
    )
    timing = Timing(grace_s=120.0, stall_s=120.0, poll_s=0.05, max_poll_s=0.5)
    real, predicted = measured(scenario, timing), simulate(scenario).sync_s
    assert predicted == pytest.approx(real, rel=0.15), f"{predicted:.2f} s, measured {real:.2f} s"


def test_the_verb_prints_the_ways_beside_each_other(tmp_path: Path) -> None:
    asked = ("diloco", "simulate", "--replicas", "2", "--replicas", "4", "--rounds", "2")
    rows = recompose(*asked, "--json", cwd=tmp_path).value["rows"]
    assert [row["replicas"] for row in rows] == [2] * 4 + [4] * 4
    ways = {row["way"]: row for row in rows[4:]}
    dense, sparse = ways["over a store, int8"], ways["over a store, PULSELoCo"]
    assert sparse["bytes_up"] < dense["bytes_up"] < ways["data-parallel"]["bytes_up"]
    assert ways["torchft DiLoCo"]["sync_s"] < ways["data-parallel"]["sync_s"]
    printed = recompose(*asked, cwd=tmp_path).out
    assert "lost to sync" in printed and "data-parallel" in printed
    assert recompose("diloco", "simulate", "--replicas", "1", cwd=tmp_path).code == 1
