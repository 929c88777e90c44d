"""What a meeting of replicas costs: bytes against the ideal, requests, throughput against the raw
store, and the bytes of each codec, of one vector and in training. Ratios are of one run.

    python benchmarks/diloco.py [--megabytes 16] [--replicas 3] [--rounds 8] [--store file|s3]
                                [--seeds 2]

The raw store is measured twice: one client that does everything one after the other (`raw_s`), and
all replicas at once, like the sync itself (`raw_at_once_s`). Whether training converges is
benchmarks/diloco_convergence.py. The training with codecs (benchmarks/diloco_codecs.py) takes five
minutes a seed; `--seeds 0` leaves it out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from composer_replication.training.diloco.blob_store import ObjectStore, open_store
from composer_replication.training.diloco.codecs import CODECS, encode_delta
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import raw_bytes
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec
from composer_replication.training.diloco.simulated_world import (
    Link,
    SimulatedClock,
    SimulatedStore,
    Simulation,
)

LATE = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""By which shares of a round the last replica is late."""


def random_vector(seed: int, size: int, *, scale: float) -> torch.Tensor:
    """A vector of normal numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def take_part(
    slot: int, url: str, *, size: int, replicas: int, rounds: int, barrier: Barrier, answers: Any
) -> None:
    """One replica's process: put (its syncs, the seconds of the bare store after each)."""
    torch.set_num_threads(1)  # replicas of one machine share its cores
    spec = Spec(
        weights=[], schema_sha256="", replicas=replicas, quorum=replicas, anchor_every=10**6
    )
    start = random_vector(0, size, scale=0.02)
    timing, store = Timing(grace_s=600.0, poll_s=0.02), open_store(url)
    replica = Replica(Exchange.join(open_store(url), spec, start=start, slot=slot, timing=timing))
    syncs, raw = list[SyncResult](), list[float]()
    for number in range(rounds):
        data = random_vector(slot + 100 * number, size, scale=1e-4)
        local = replica.base - data
        barrier.wait()
        result = replica.sync(local, tokens=1, steps=1)
        syncs.append(dataclasses.replace(result, weights=torch.empty(0)))
        barrier.wait()
        began = time.perf_counter()
        store.create(f"raw/{number}.{slot}", bytes(raw_bytes(data)))
        wrote = time.perf_counter()
        barrier.wait()
        read = time.perf_counter()
        for other in range(replicas):
            if other != slot:
                store.get(f"raw/{number}.{other}")
        raw.append(wrote - began + time.perf_counter() - read)
    answers.put((syncs, raw[1:]))


def meet(
    url: str, *, size: int, replicas: int, rounds: int
) -> tuple[list[list[SyncResult]], list[float]]:
    """The syncs of each replica, in processes that meet without training in between; and after
    each, the seconds in which each replica writes and reads as much from the bare store, at
    once."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(replicas), context.Queue()
    about = {"size": size, "replicas": replicas, "rounds": rounds}
    about |= {"barrier": barrier, "answers": answers}
    processes = [
        context.Process(target=take_part, args=(slot, url), kwargs=about, daemon=True)
        for slot in range(replicas)
    ]
    for process in processes:
        process.start()
    answered = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return [syncs for syncs, _ in answered], [seconds for _, raw in answered for seconds in raw]


def raw_seconds(store: ObjectStore, *, size: int, replicas: int) -> float:
    """Seconds that one client of the bare store takes for what all replicas of a round write and
    read, one after the other."""
    data = bytes(4 * size)
    began = time.perf_counter()
    for slot in range(replicas):
        store.create(f"raw/{time.monotonic_ns()}.{slot}", data)
    keys = store.list("raw")[-replicas:]
    for _ in range(replicas - 1):
        for key in keys:
            store.get(key)
    return time.perf_counter() - began


def requests(syncs: Sequence[SyncResult]) -> dict[str, Any]:
    """The most requests of a sync, and the usual number of LISTs."""
    traffic = [result.traffic for result in syncs]
    return {
        "puts": max(t.puts for t in traffic),
        "gets": max(t.gets for t in traffic),
        "lists": statistics.median(t.lists for t in traffic),
        "lists_most": max(t.lists for t in traffic),
    }


def requests_when_late(
    share: float, *, replicas: int, round_s: float = 600.0, rounds: int = 4
) -> dict[str, Any]:
    """The most requests of a sync if the last replica comes later than the others by a share of the
    round, in each second round; and the seconds that looking too late lost, as a share of the
    round. By the simulated clock, with 30 ms a request."""
    spec = Spec(weights=[], schema_sha256="", replicas=replicas, quorum=1, anchor_every=10**6)
    world, results = Simulation(), list[SyncResult]()

    def run(clock: SimulatedClock, slot: int) -> None:
        store, start = SimulatedStore(world, Link(), slot), torch.zeros(64)
        timing = Timing(grace_s=round_s, stall_s=1e6, poll_s=0.25)
        replica = Replica(
            Exchange.join(store, spec, start=start, slot=slot, clock=clock, timing=timing)
        )
        for number in range(1, rounds + 1):
            is_late = number % 2 == 0 and slot == replicas - 1
            clock.sleep(number * round_s + is_late * share * round_s - clock.monotonic())
            local = replica.base - random_vector(slot, 64, scale=1e-4)
            result = replica.sync(local, tokens=1, steps=1)
            if number % 2 == 0:
                results.append(result)

    for slot in range(replicas):
        world.start(lambda clock, slot=slot: run(clock, slot))
    world.run()
    lost = max(result.wait_s for result in results) / round_s - share
    return {
        "late": share,
        **requests(results),
        "lost": round(max(0.0, lost), 4),
        "in_time": all(result.contributed for result in results),
    }


def measure(megabytes: int, *, replicas: int, rounds: int, url: str) -> dict[str, Any]:
    """All numbers of one run; the first round also reads the claims, and stands apart."""
    size = megabytes * (1 << 20) // 4
    by_slot, at_once = meet(f"{url}/meeting", size=size, replicas=replicas, rounds=rounds)
    syncs = [result for results in by_slot for result in results[1:]]
    ideal = 4 * size * replicas  # one up, N - 1 down
    seconds = statistics.median(result.seconds for result in syncs)
    store = open_store(f"{url}/raw")
    raw = statistics.median(raw_seconds(store, size=size, replicas=replicas) for _ in range(3))
    at_once_s = statistics.median(at_once)
    base, delta = random_vector(0, size, scale=0.02), random_vector(1, size, scale=1e-6)
    plain = len(encode_delta(delta, base, codec="none"))
    moved = (result.traffic.bytes_up + result.traffic.bytes_down for result in syncs)
    return {
        "megabytes": megabytes,
        "replicas": replicas,
        "rounds": rounds,
        "load_of_cores": [round(os.getloadavg()[0], 1), os.cpu_count()],
        "bytes_to_ideal": round(max(moved) / ideal, 5),
        **requests(syncs),
        "gets_allowed": 2 * replicas + 2,
        "first_round": requests([results[0] for results in by_slot]),
        "sync_s": round(seconds, 4),
        "raw_s": round(raw, 4),
        "throughput_to_raw": round(raw / seconds, 3),
        "raw_at_once_s": round(at_once_s, 4),
        "throughput_to_raw_at_once": round(at_once_s / seconds, 3),
        "late": [requests_when_late(share, replicas=replicas) for share in LATE],
        "codecs": {
            name: round(plain / len(encode_delta(delta, base, codec=name)), 2) for name in CODECS
        },
    }


@contextlib.contextmanager
def opened(kind: str) -> Iterator[str]:
    """The URL of an empty store: a folder, or a bucket of an S3 server on this machine (moto)."""
    with contextlib.ExitStack() as stack:
        if kind == "file":
            yield "file://" + stack.enter_context(tempfile.TemporaryDirectory())
            return
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from tests.training.diloco.s3_server import s3_bucket

        yield stack.enter_context(s3_bucket())


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--store", choices=["file", "s3"], default="file")
    parser.add_argument("--seeds", type=int, default=2, help="of the training with each codec")
    parser.add_argument("--write", type=Path, help="a JSON file, to which the result is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with opened(options.store) as url:
        numbers = measure(
            options.megabytes, replicas=options.replicas, rounds=options.rounds, url=url
        )
    result: dict[str, Any] = {options.store: numbers}
    if options.seeds:
        sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmark beside this file
        from diloco_codecs import measure_codecs

        result["trained"] = measure_codecs(seeds=options.seeds)
    print(json.dumps(result, indent=1))
    if options.write:
        old = json.loads(options.write.read_text()) if options.write.exists() else {}
        new = {**old, **result}
        options.write.write_text(json.dumps(new, indent=1) + "\n")


if __name__ == "__main__":
    main()
