"""What a meeting of replicas costs: bytes against the ideal, requests, throughput against the raw
store, and the bytes of each codec. Ratios are of one run.

    python benchmarks/diloco.py [--megabytes 16] [--replicas 3] [--rounds 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from composer_replication.training.diloco.blob_store import ObjectStore, open_store
from composer_replication.training.diloco.codecs import CODECS, encode_delta
from composer_replication.training.diloco.exchange import Exchange, Timing
from composer_replication.training.diloco.replica import Replica, SyncResult
from composer_replication.training.diloco.round_records import Spec


def random_vector(seed: int, size: int, *, scale: float) -> torch.Tensor:
    """A vector of normal numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def meet(url: str, *, size: int, replicas: int, rounds: int) -> list[list[SyncResult]]:
    """The syncs of each replica, in threads that meet without training in between."""
    spec = Spec(
        weights=[], schema_sha256="", replicas=replicas, quorum=replicas, anchor_every=10**6
    )
    start = random_vector(0, size, scale=0.02)
    results: list[list[SyncResult]] = [[] for _ in range(replicas)]
    barrier = threading.Barrier(replicas)

    def run(slot: int) -> None:
        timing = Timing(grace_s=600.0, poll_s=0.02)
        replica = Replica(
            Exchange.join(open_store(url), spec, start=start, slot=slot, timing=timing)
        )
        for number in range(rounds):
            local = replica.base - random_vector(slot + 100 * number, size, scale=1e-4)
            barrier.wait()
            results[slot].append(replica.sync(local, tokens=1, steps=1))

    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def raw_seconds(store: ObjectStore, *, size: int, replicas: int) -> float:
    """Seconds that the bare store takes for what all replicas of a round write and read."""
    data = bytes(4 * size)
    began = time.perf_counter()
    for slot in range(replicas):
        store.create(f"raw/{time.monotonic_ns()}.{slot}", data)
    keys = store.list("raw")[-replicas:]
    for _ in range(replicas - 1):
        for key in keys:
            store.get(key)
    return time.perf_counter() - began


def measure(megabytes: int, *, replicas: int, rounds: int, folder: Path) -> dict[str, Any]:
    """All numbers of one run."""
    size = megabytes * (1 << 20) // 4
    url = f"file://{folder}/meeting"
    syncs = [
        result for one in meet(url, size=size, replicas=replicas, rounds=rounds) for result in one
    ]
    ideal = 4 * size * replicas  # one up, N - 1 down
    seconds = statistics.median(result.seconds for result in syncs[rounds // 2 :])
    raw = statistics.median(
        raw_seconds(open_store(f"file://{folder}/raw"), size=size, replicas=replicas)
        for _ in range(3)
    )
    traffic = [result.traffic for result in syncs]
    base, delta = random_vector(0, size, scale=0.02), random_vector(1, size, scale=1e-6)
    plain = len(encode_delta(delta, base, codec="none"))
    return {
        "megabytes": megabytes,
        "replicas": replicas,
        "bytes_to_ideal": max((t.bytes_up + t.bytes_down) / ideal for t in traffic),
        "puts": max(t.puts for t in traffic),
        "gets": max(t.gets for t in traffic),
        "gets_allowed": 2 * replicas + 2,
        "lists": statistics.median(t.lists for t in traffic),
        "lists_most": max(t.lists for t in traffic),
        "sync_s": round(seconds, 4),
        "raw_s": round(raw, 4),
        "throughput_to_raw": round(raw / seconds, 3),
        "codecs": {
            name: round(plain / len(encode_delta(delta, base, codec=name)), 2) for name in CODECS
        },
    }


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = measure(
            given.megabytes, replicas=given.replicas, rounds=given.rounds, folder=Path(folder)
        )
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
