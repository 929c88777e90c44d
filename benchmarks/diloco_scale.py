"""Replicas over a store from 8 to 1,024, simulated beside data-parallel training, torchft's DiLoCo
and PULSELoCo; and the simulation beside real replicas on a throttled store.

    python benchmarks/diloco_scale.py             both anew, about 15 minutes
    python benchmarks/diloco_scale.py --measure   the second alone; needs moto
    python benchmarks/diloco_scale.py --simulate  the first alone
    python benchmarks/diloco_scale.py --page      write the tables of docs/replicas.md again

The numbers stand in benchmarks/results/diloco_scale.json. Assumptions are in its first lines, the
same for all ways: 20 steps of 30 s a round, 10 Gbit/s and 30 ms (median) to the store or to the
neighbour in the ring, one request in a thousand fails, 0.9 GB/s to pack and hash.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

import marked_part
from page import about

from composer_replication.training.diloco.blob_store import (
    BlobStore,
    ObjectStore,
    Traffic,
    open_store,
)
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import schema_sha256
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.replica import Replica
from composer_replication.training.diloco.round_records import Spec
from composer_replication.training.diloco.simulate import Scenario, ring, simulate
from composer_replication.training.diloco.simulated_world import Link

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "benchmarks/results/diloco_scale.json", ROOT / "docs/replicas.md"
SIZES: Mapping[str, float] = {
    "LoRA of 7B": 80.7e6,
    "0.1B": 1e8,
    "1B": 1e9,
    "7B": 7e9,
    "70B": 7e10,
}
REPLICAS = (8, 32, 128, 512, 1024)
MOST_FLAT = 128
"""A simulation with one publisher grows with the square."""
LINK = Link(latency_s=0.03, up_bytes_s=1.25e9, down_bytes_s=1.25e9, failure=0.001, work_bytes_s=9e8)
BASE = Scenario(rounds=2, codec="int8", link=LINK)
WAYS = {
    "tree": "tree, int8",
    "pulse": "tree, PULSELoCo",
    "publisher": "one publisher, int8",
    "torchft": "torchft DiLoCo",
    "parallel": "data-parallel",
}
BEGIN, END = (
    "<!-- benchmarks/diloco_scale.py: begin -->",
    "<!-- benchmarks/diloco_scale.py: end -->",
)


def rows_of(size: str, replicas: int) -> list[dict[str, Any]]:
    """Every way with so many replicas."""
    trained = SIZES[size]
    dense_s = 4 * trained * (1 / LINK.down_bytes_s + 1 / LINK.work_bytes_s)
    scenario = replace(
        BASE,
        replicas=replicas,
        trained=trained,
        gather="tree",
        grace_s=120.0 + 10 * dense_s,
        max_poll_s=max(4.0, dense_s / 20),
    )
    rows = {"tree": asdict(simulate(scenario))}
    rows["pulse"] = asdict(simulate(replace(scenario, codec="visible")))
    if replicas <= MOST_FLAT:
        patient = replace(scenario, gather="publisher", grace_s=1e7)
        rows["publisher"] = asdict(simulate(patient))
    rows["torchft"] = asdict(ring(scenario, syncs=1))
    rows["parallel"] = asdict(ring(scenario, syncs=scenario.inner_steps))
    return [{"size": size, "way": way} | row | {"replicas": replicas} for way, row in rows.items()]


@dataclass
class ThrottledStore:
    """A real store behind a link that sleeps for each request's latency and bytes."""

    inner: ObjectStore
    link: Link
    traffic: Traffic = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = self.inner.traffic

    def _wait(self, size: int, bytes_s: float) -> None:
        time.sleep(self.link.latency_s + size / bytes_s)

    def create(self, key: str, data: bytes) -> bool:
        """Sleep for the upload, then write."""
        self._wait(len(data), self.link.up_bytes_s)
        return self.inner.create(key, data)

    def get(self, key: str) -> bytes | None:
        """Read, and sleep for the download."""
        data = self.inner.get(key)
        self._wait(len(data or b""), self.link.down_bytes_s)
        return data

    def list(self, prefix: str) -> Sequence[str]:
        """List, and sleep for a request."""
        keys = self.inner.list(prefix)
        self._wait(0, self.link.up_bytes_s)
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        """Remove at once."""
        self.inner.delete(keys)


# The throttle is most of the time, so that a busy machine does not decide.
THROTTLED = Scenario(
    trained=1e5,
    rounds=3,
    inner_steps=1,
    step_s=1.0,
    link=Link(latency_s=0.15, latency_spread=0.0, up_bytes_s=4e5, down_bytes_s=4e5),
    poll_s=0.05,
    max_poll_s=0.5,
)

COMPARED = ((2, "peer"), (3, "peer"), (4, "peer"), (4, "publisher"), (4, "tree"))


def throttled(replicas: int, gather: str, link: Link = THROTTLED.link) -> Scenario:
    """So many replicas on the throttled store, whose rounds are both measured and predicted."""
    return replace(THROTTLED, replicas=replicas, gather=gather, fanout=2, link=link)


def syncs(store: BlobStore, scenario: Scenario, slot: int) -> list[float]:
    """The seconds of each sync of one real replica."""
    size = int(scenario.trained)
    weights = [("flat", [size], "float32")]
    spec = Spec(
        weights=weights,
        schema_sha256=schema_sha256(weights),
        replicas=scenario.replicas,
        quorum=max(1, scenario.replicas // 2),
        gather=scenario.gather or "peer",
        fanout=scenario.fanout,
    )
    timing = Timing(
        grace_s=scenario.grace_s,
        stall_s=240.0,
        poll_s=scenario.poll_s,
        max_poll_s=scenario.max_poll_s,
    )
    replica = Replica(Exchange.join(store, spec, start=torch.zeros(size), slot=slot, timing=timing))
    seconds: list[float] = []
    for number in range(scenario.rounds):
        time.sleep(scenario.inner_steps * scenario.step_s)
        noise = torch.Generator().manual_seed(100 * slot + number)
        local = replica.base - torch.randn(size, generator=noise) * 1e-3
        seconds.append(replica.sync(local, tokens=1, steps=1).seconds)
    return seconds


def measured(scenario: Scenario) -> float:
    """The median seconds of a sync of real replicas, in threads over one throttled store in memory:
    what a test can afford."""
    from obstore.store import MemoryStore

    blobs, seconds = MemoryStore(), list[float]()
    start = threading.Barrier(scenario.replicas)

    def run(slot: int) -> None:
        store = ThrottledStore(ObjectStore(blobs), scenario.link)
        start.wait()
        seconds.extend(syncs(store, scenario, slot))

    threads = [threading.Thread(target=run, args=(slot,)) for slot in range(scenario.replicas)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(seconds)


def take_part(slot: int, url: str, scenario: Scenario, barrier: Barrier, answers: Any) -> None:
    """One replica's process: put the seconds of its syncs."""
    torch.set_num_threads(1)
    store = open_store(url)
    store.list("warm")  # the connection is there, as it is in a run
    barrier.wait()
    answers.put(syncs(store, scenario, slot))


def measured_in_processes(url: str, scenario: Scenario) -> float:
    """The median seconds of a sync of real replicas, each a process of its own."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(scenario.replicas), context.Queue()
    processes = [
        context.Process(target=take_part, args=(slot, url, scenario, barrier, answers), daemon=True)
        for slot in range(scenario.replicas)
    ]
    for process in processes:
        process.start()
    seconds = [s for _ in processes for s in answers.get(timeout=240)]
    for process in processes:
        process.join()
    return statistics.median(seconds)


def probed(url: str, *, size: int = 800_000, times: int = 5) -> Link:
    """What a lone client measures of a store: blobs of a few bytes, and of `size`, there and back;
    their difference is the bandwidth."""
    store = open_store(url)
    store.list("warm")
    spent: dict[tuple[str, int], list[float]] = {}
    for number in range(times):
        for length in (16, size):
            key = f"{length}.{number}"
            for verb, ask in (
                ("up", lambda key=key, length=length: store.create(key, bytes(length))),
                ("down", lambda key=key: store.get(key)),
            ):
                began = time.perf_counter()
                ask()
                spent.setdefault((verb, length), []).append(time.perf_counter() - began)
    small = spent["up", 16] + spent["down", 16]
    up, down = (
        statistics.median(spent[verb, size]) - statistics.median(spent[verb, 16])
        for verb in ("up", "down")
    )
    return Link(
        latency_s=statistics.median(small),
        latency_spread=statistics.pstdev(math.log(s) for s in small),
        up_bytes_s=size / up,
        down_bytes_s=size / down,
    )


@contextlib.contextmanager
def throttled_bucket(*, wait_s: float, bytes_s: float) -> Iterator[str]:
    """The URL of a bucket on an S3 server of this machine (moto), behind a slow proxy: it holds
    each request up, and each byte of a request or an answer."""
    sys.path.insert(0, str(ROOT))
    from tests.training.diloco.s3_server import BUCKET, FlakyProxy, s3_environment, s3_server

    class SlowProxy(FlakyProxy):
        def answer(self, request: BaseHTTPRequestHandler) -> None:
            time.sleep(wait_s + int(request.headers.get("Content-Length") or 0) / bytes_s)
            super().answer(request)

        def _reply(self, request: BaseHTTPRequestHandler, *, body: bytes, **about: Any) -> None:
            time.sleep(len(body) / bytes_s)
            super()._reply(request, body=body, **about)

    with (
        s3_server() as port,
        contextlib.closing(SlowProxy(port)) as proxy,
        mock.patch.dict(os.environ, s3_environment(proxy.port)),
    ):
        yield f"s3://{BUCKET}"


def compared() -> dict[str, Any]:
    """The prediction, from what a probe measured of the store, beside two to four real
    replicas."""
    rows: list[dict[str, Any]] = []
    with throttled_bucket(wait_s=0.15, bytes_s=4e5) as url:
        link = probed(f"{url}/probe")
        print(link, flush=True)
        for replicas, gather in COMPARED:
            scenario = throttled(replicas, gather, link)
            rows.append(_beside(f"{url}/{gather}{replicas}", scenario))
            print(rows[-1], flush=True)
    measured_of_link = ("latency_s", "latency_spread", "up_bytes_s", "down_bytes_s")
    return {"compared": rows, "probed": {name: getattr(link, name) for name in measured_of_link}}


def _beside(url: str, scenario: Scenario) -> dict[str, Any]:
    real, predicted = measured_in_processes(url, scenario), simulate(scenario).sync_s
    return {
        "replicas": scenario.replicas,
        "gather": scenario.gather,
        "measured_s": round(real, 3),
        "predicted_s": round(predicted, 3),
        "error": round(predicted / real - 1, 4),
    }


def render(result: Mapping[str, Any]) -> str:
    """Both tables of the page."""
    head = ["trained", "way", *(f"{n:,}" for n in REPLICAS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    found = {(row["size"], row["way"], row["replicas"]): row for row in result["rows"]}
    for size in SIZES:
        for way, name in WAYS.items():
            cells = [_cell(found.get((size, way, n))) for n in REPLICAS]
            lines.append("| " + " | ".join([size, name, *cells]) + " |")
    lines += [
        "",
        "| replicas | gather | measured s | predicted s | error |",
        "|---|---|---|---|---|",
    ]
    for row in result["compared"]:
        seconds = f"{row['measured_s']:.2f} | {row['predicted_s']:.2f} | {row['error']:+.1%}"
        lines.append(f"| {row['replicas']} | {row['gather']} | {seconds} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    seconds = f"{row['sync_s']:,.0f}" if row["sync_s"] >= 10 else f"{row['sync_s']:.1f}"
    return f"{seconds} s, {row['sync_share']:.0%}, ${row['dollars']:,.2f}"


def write_page(result: Mapping[str, Any]) -> None:
    """Put the tables between the marks of docs/replicas.md."""
    marked_part.write(PAGE, BEGIN, END, render(result))


def main() -> None:
    """Write the numbers and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    old = RESULT.read_text("utf-8") if RESULT.exists() else '{"rows": []}'
    result: dict[str, Any] = json.loads(old)
    if not (given.page or given.simulate):
        result |= compared()
        result["about"] = about(["benchmarks/diloco_scale.py"])
    if not (given.page or given.measure):
        began = time.perf_counter()
        result["rows"] = []
        for size, n in ((size, n) for size in SIZES for n in REPLICAS):
            result["rows"] += rows_of(size, n)
            print(f"{size}, {n} replicas: {time.perf_counter() - began:.0f} s", flush=True)
        result["seconds"] = round(time.perf_counter() - began)
        result["scenario"] = asdict(BASE)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    write_page(result)
    print(render(result))


if __name__ == "__main__":
    main()
