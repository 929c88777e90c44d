"""What a run of many replicas would lose to its syncs, and cost: the real exchange in a simulated
world, beside the arithmetic of other ways to train.

    report = simulate(Scenario(replicas=64, trained=80.7e6, codec="int8"))
    report.sync_share, report.dollars

Simulated: requests, bytes, polling, grace, stragglers, deaths and replacements, by the code that
`recompose train --replicas` runs. A replica sends 256 numbers for all its weights, and their bytes
count as many times as it takes: codec, hashes and outer step run for real, on few numbers. Not
simulated: training itself (a step takes `step_s`, that of a straggler longer). Prices are list
prices of a large provider's store and its internet egress.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.blob_store import Traffic
from composer_replication.training.diloco.codecs import encode_delta
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import schema_sha256
from composer_replication.training.diloco.looks import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec
from composer_replication.training.diloco.simulated_world import (
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)

BYTES_PER_WEIGHT: Mapping[str, float] = {
    "none": 4.0,
    "bf16": 2.0,
    "int8": 1.0157,
    "int4": 0.532,
    "topk": 0.0625,
    "visible": 4.0 / 17,
}
"""What a codec sends per trained weight; "visible" as PULSELoCo reports at RL learning rates."""
_SIZE = 256
_PEER_LIMIT = 8
_RING_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per request, and per GB that leaves the store."""

    put: float = 5e-6
    get: float = 4e-7
    egress_gb: float = 0.09


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to simulate.

    `trained` weights are synced by `codec` every `inner_steps` steps of `step_s` seconds; a step
    takes a straggler (a `stragglers` share of the rounds) `slowdown` times as long. A replica dies
    `deaths_per_hour` times, and another one takes its slot `restart_s` later. Without a `gather`,
    up to eight replicas read each other's moves, and more add up in a tree.
    """

    replicas: int = 8
    trained: float = 80.7e6
    codec: str = "none"
    gather: str = ""
    fanout: int = 4
    inner_steps: int = 20
    step_s: float = 30.0
    rounds: int = 5
    stragglers: float = 0.0
    slowdown: float = 2.0
    deaths_per_hour: float = 0.0
    restart_s: float = 60.0
    grace_s: float = 120.0
    poll_s: float = 0.25
    max_poll_s: float = 4.0
    link: Link = field(default_factory=Link)
    prices: Prices = field(default_factory=Prices)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came out, per round: seconds lost to the sync (median over replicas and rounds), its
    share of the time, requests and bytes of one replica (mean over all; `..._most` of the replica
    that needs most), dollars of all."""

    replicas: int
    sync_s: float
    sync_share: float
    puts: float
    gets: float
    lists: float
    bytes_up: float
    bytes_down: float
    requests_most: int
    bytes_most: int
    dollars: float
    participation: float
    missed: int


class _DeadError(Exception):
    """The simulated death of a replica."""


def simulate(scenario: Scenario) -> Simulated:
    """Run a scenario; the same scenario gives the same numbers."""
    if scenario.replicas < 1 or scenario.codec not in BYTES_PER_WEIGHT:
        raise ConfigError(
            f"{scenario.replicas} replicas with codec {scenario.codec!r}",
            fix=f"use one replica or more, and one of {', '.join(BYTES_PER_WEIGHT)}",
        )
    link = scenario.link
    least = min(link.up_bytes_s, link.down_bytes_s, scenario.trained, scenario.rounds)
    if not (least > 0 and 0 <= link.failure < 1 and 0 <= scenario.stragglers <= 1):
        raise ConfigError(
            f"{scenario.rounds} rounds of {scenario.trained:g} weights, {link.down_bytes_s:g} bytes"
            f" a second, failure {link.failure}, stragglers {scenario.stragglers}",
            fix="use more than nothing, a failure from 0 to below 1, and stragglers from 0 to 1",
        )
    world, results, traffic = Simulation(), [], Traffic()
    spec = _spec(scenario)
    plain = len(encode_delta(torch.zeros(_SIZE), torch.zeros(_SIZE), codec="none"))
    scale = scenario.trained / plain
    for slot in range(scenario.replicas):
        life = _Life(scenario, spec, slot=slot, scale=scale, results=results, traffic=traffic)
        world.start(lambda clock, life=life: life.run(clock))
    world.run()
    return _summary(scenario, results, traffic)


def _spec(scenario: Scenario) -> Spec:
    weights = [("flat", [_SIZE], "float32")]
    gather = scenario.gather or ("peer" if scenario.replicas <= _PEER_LIMIT else "tree")
    return Spec(
        weights=weights,
        schema_sha256=schema_sha256(weights),
        gather=gather,
        fanout=scenario.fanout,
        replicas=scenario.replicas,
        quorum=max(1, scenario.replicas // 2),
        anchor_every=max(8, scenario.rounds),
    )


class _Life:
    """One slot of a scenario: a replica, and those that replace it when it dies."""

    def __init__(
        self,
        scenario: Scenario,
        spec: Spec,
        *,
        slot: int,
        scale: float,
        results: list[SyncResult],
        traffic: Traffic,
    ) -> None:
        self.scenario, self.spec, self.slot, self.scale = scenario, spec, slot, scale
        self.results, self.traffic = results, traffic
        self.random = random.Random(scenario.seed * 1_000_003 + slot)

    def run(self, clock: SimulatedClock) -> None:
        """Live until the last round."""
        lives = 0
        while True:
            try:
                self._replica(clock, takeover=lives > 0)
                return
            except _DeadError:
                lives += 1
                clock.sleep(self.scenario.restart_s)

    def _replica(self, clock: SimulatedClock, *, takeover: bool) -> None:
        scenario = self.scenario
        seed = self.random.randrange(1 << 30)
        store = SimulatedStore(
            clock.world,
            scenario.link,
            seed,
            scale=self.scale * BYTES_PER_WEIGHT[scenario.codec],
            dense_scale=self.scale * BYTES_PER_WEIGHT["none"],
        )
        timing = Timing(
            grace_s=scenario.grace_s,
            stall_s=1e9,
            poll_s=scenario.poll_s,
            max_poll_s=scenario.max_poll_s,
        )
        exchange = Exchange.join(
            store,
            self.spec,
            start=torch.zeros(_SIZE),
            slot=self.slot,
            takeover=takeover,
            clock=clock,
            timing=timing,
            uuid=f"{self.slot:06d}{seed:08x}",
        )
        joined = Traffic() if takeover else store.traffic.copy()  # a replacement's join is a cost
        try:
            self._rounds(clock, Replica(exchange))
        finally:  # whoever dies has paid too
            spent = store.traffic.since(joined)
            for name in ("puts", "gets", "lists", "deletes", "bytes_up", "bytes_down"):
                setattr(self.traffic, name, getattr(self.traffic, name) + getattr(spent, name))

    def _rounds(self, clock: SimulatedClock, replica: Replica) -> None:
        scenario, local = self.scenario, replica.base.clone()
        while replica.exchange.round < scenario.rounds:
            self._train(clock)
            noise = torch.Generator().manual_seed(self.random.randrange(1 << 30))
            local = local - torch.randn(_SIZE, generator=noise) * 1e-3
            result = replica.sync(local, tokens=1, steps=scenario.inner_steps)
            local = result.weights
            self.results.append(result)

    def _train(self, clock: SimulatedClock) -> None:
        scenario = self.scenario
        seconds = scenario.inner_steps * scenario.step_s
        if self.random.random() < scenario.stragglers:
            seconds *= scenario.slowdown
        if scenario.deaths_per_hour:
            dies_after = self.random.expovariate(scenario.deaths_per_hour / 3600.0)
            if dies_after < seconds:
                clock.sleep(dies_after)
                raise _DeadError
        clock.sleep(seconds)


def _summary(scenario: Scenario, results: list[SyncResult], traffic: Traffic) -> Simulated:
    count, prices = len(results), scenario.prices
    rounds = max(1, scenario.rounds)
    seconds = sorted(result.seconds for result in results)
    sync_s = seconds[count // 2]
    train_s = scenario.inner_steps * scenario.step_s
    dollars = prices.put * (traffic.puts + traffic.lists) + prices.get * traffic.gets
    dollars += prices.egress_gb * traffic.bytes_down / 1e9
    synced = [result.traffic for result in results]
    return Simulated(
        replicas=scenario.replicas,
        sync_s=sync_s,
        sync_share=sync_s / (sync_s + train_s),
        puts=traffic.puts / count,
        gets=traffic.gets / count,
        lists=traffic.lists / count,
        bytes_up=traffic.bytes_up / count,
        bytes_down=traffic.bytes_down / count,
        requests_most=max(t.puts + t.gets + t.lists for t in synced),
        bytes_most=max(t.bytes_up + t.bytes_down for t in synced),
        dollars=dollars / rounds,
        participation=sum(result.contributed for result in results) / (rounds * scenario.replicas),
        missed=sum(result.missed for result in results),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A way to train by ring all-reduce, per round of the same steps: by arithmetic."""

    sync_s: float
    sync_share: float
    bytes_up: float
    dollars: float


def ring(scenario: Scenario, *, syncs: int) -> Ring:
    """A ring all-reduce of float32 over the same links, `syncs` times per round of steps: once for
    torchft's DiLoCo, `inner_steps` times for data-parallel training. Each of 2 (N - 1) parts takes
    a latency; a part leaves a machine at the egress price (Patarasuk and Yuan 2009)."""
    n, link = scenario.replicas, scenario.link
    size = 2 * (n - 1) / n * scenario.trained * _RING_BYTES
    slowest = min(link.up_bytes_s, link.down_bytes_s)
    sync_s = syncs * (size / slowest + 2 * (n - 1) * link.latency_s)
    train_s = scenario.inner_steps * scenario.step_s
    dollars = scenario.prices.egress_gb * syncs * size * n / 1e9
    return Ring(
        sync_s=sync_s,
        sync_share=sync_s / (sync_s + train_s),
        bytes_up=syncs * size,
        dollars=dollars,
    )
