"""The time that a run of many replicas would lose to its syncs, and their cost in dollars: the real
exchange code in a discrete-event simulation of stores, networks and failures.

    report = simulate(Scenario(replicas=64, trained=80.7e6, codec="int8"))
    report.sync_share, report.dollars

Simulated: requests, bytes, polling, grace, stragglers, deaths and replacements, leaves and joins,
by the code that `recompose train --replicas` runs. What happens is drawn by a seed: the time of a
request from a log-normal distribution, whether it fails and whether a round is a straggler's from a
coin, the time to a death, to a leave and to the next join from an exponential distribution. A
replica sends 256 numbers for all its weights, and their bytes count as many times as it takes:
codec, hashes and outer step run for real, on few numbers. Not simulated: training itself (a step
takes `step_s`, that of a straggler longer). Prices are list prices of a large provider's store and
its internet egress.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.blob_store import Traffic
from composer_replication.training.diloco.codecs import encode_delta
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import schema_sha256
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec, commit_key
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
    `deaths_per_hour` times, and another one takes its slot `restart_s` later. It leaves for good,
    and releases its slot, `leaves_per_hour` times, unless no quorum would be left; the run is
    joined by a new replica, in the lowest free slot, `joins_per_hour` times. Without a `gather`, up
    to eight replicas read each other's pseudo-gradients, and more add up in a tree.
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
    leaves_per_hour: float = 0.0
    joins_per_hour: float = 0.0
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
    that needs most), dollars of all, and pseudo-gradients that counted over replicas that began."""

    replicas: int
    sync_s: float
    sync_most_s: float
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
    joined: int
    left: int


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
    rates = (scenario.deaths_per_hour, scenario.leaves_per_hour, scenario.joins_per_hour)
    if not all(0 <= rate < math.inf for rate in rates):
        raise ConfigError(
            f"{rates[0]} deaths, {rates[1]} leaves and {rates[2]} joins an hour",
            fix="use numbers from 0 on",
        )
    world, tally = Simulation(), _Tally(present=scenario.replicas)
    for slot in range(scenario.replicas):
        life = _Life(scenario, tally, number=slot, slot=slot)
        world.start(lambda clock, life=life: life.run(clock))
    if scenario.joins_per_hour:
        world.start(lambda clock: _let_join(clock, scenario, tally))
    world.run()
    return _summary(scenario, tally)


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
    )


@dataclass(slots=True)
class _Tally:
    """What all replicas of a run add up to; `present` are those that have not left."""

    present: int
    joined: int = 0
    left: int = 0
    results: list[SyncResult] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)


def _let_join(clock: SimulatedClock, scenario: Scenario, tally: _Tally) -> None:
    """Start a new replica now and then, until the last round has its outcome."""
    pauses = random.Random(f"joins {scenario.seed}")
    while True:
        clock.sleep(pauses.expovariate(scenario.joins_per_hour / 3600.0))
        if commit_key(scenario.rounds - 1) in clock.world.blobs:
            return
        life = _Life(scenario, tally, number=scenario.replicas + tally.joined, slot=None)
        tally.joined += 1
        tally.present += 1
        clock.world.start(lambda clock, life=life: life.run(clock), at=clock.monotonic())


@cache
def _plain_bytes() -> int:
    """The bytes of the move that a replica really sends."""
    return len(encode_delta(torch.zeros(_SIZE), torch.zeros(_SIZE), codec="none"))


class _Life:
    """A replica of a scenario, and those that replace it when it dies.

    Without a `slot` it comes when the run is under way, and takes the lowest that is free.
    """

    def __init__(self, scenario: Scenario, tally: _Tally, *, number: int, slot: int | None) -> None:
        self.scenario, self.tally, self.number, self.slot = scenario, tally, number, slot
        self.spec = _spec(scenario)
        self.random = random.Random(scenario.seed * 1_000_003 + number)

    def run(self, clock: SimulatedClock) -> None:
        """Live until the last round."""
        starts_the_run, takeover = self.slot is not None, False
        while True:
            try:
                self._replica(clock, is_new=not starts_the_run, takeover=takeover)
                return
            except _DeadError:
                starts_the_run, takeover = False, True
                clock.sleep(self.scenario.restart_s)

    def _replica(self, clock: SimulatedClock, *, is_new: bool, takeover: bool) -> None:
        scenario = self.scenario
        seed = self.random.randrange(1 << 30)
        scale = scenario.trained / _plain_bytes()
        store = SimulatedStore(
            clock.world,
            scenario.link,
            seed,
            scale=scale * BYTES_PER_WEIGHT[scenario.codec],
            dense_scale=scale * BYTES_PER_WEIGHT["none"],
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
            uuid=f"{self.number:06d}{seed:08x}",
        )
        self.slot = exchange.claim.slot
        free = Traffic() if is_new else store.traffic.copy()  # who comes later pays for the state
        try:
            self._rounds(clock, Replica(exchange))
        finally:  # whoever dies has paid too
            spent, total = store.traffic.since(free), self.tally.traffic
            for name in ("puts", "gets", "lists", "deletes", "bytes_up", "bytes_down"):
                setattr(total, name, getattr(total, name) + getattr(spent, name))

    def _rounds(self, clock: SimulatedClock, replica: Replica) -> None:
        scenario, local, late = self.scenario, replica.base.clone(), 0
        while replica.exchange.round < scenario.rounds:
            steps = max(1, scenario.inner_steps >> late)  # as in training
            if not self._train(clock, steps):
                replica.exchange.leave()
                return
            noise = torch.Generator().manual_seed(self.random.randrange(1 << 30))
            local = local - torch.randn(_SIZE, generator=noise) * 1e-3
            result = replica.sync(local, tokens=1, steps=steps)
            local, late = result.weights, 0 if result.contributed else late + 1
            self.tally.results.append(result)

    def _train(self, clock: SimulatedClock, steps: int) -> bool:
        """Take so many steps; False if the replica leaves in the middle of them."""
        scenario = self.scenario
        seconds = steps * scenario.step_s
        if self.random.random() < scenario.stragglers:
            seconds *= scenario.slowdown
        dies_after = self._drawn(scenario.deaths_per_hour)
        leaves_after = self._drawn(scenario.leaves_per_hour)
        clock.sleep(min(seconds, dies_after, leaves_after))
        if dies_after < min(seconds, leaves_after):
            raise _DeadError
        if seconds <= leaves_after:
            return True
        if self.tally.present <= self.spec.quorum:
            clock.sleep(seconds - leaves_after)
            return True
        self.tally.present -= 1
        self.tally.left += 1
        return False

    def _drawn(self, per_hour: float) -> float:
        """Seconds until something that happens so often."""
        return self.random.expovariate(per_hour / 3600.0) if per_hour else math.inf


def _summary(scenario: Scenario, tally: _Tally) -> Simulated:
    results, traffic = tally.results, tally.traffic
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
        sync_most_s=seconds[-1],
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
        joined=tally.joined,
        left=tally.left,
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
