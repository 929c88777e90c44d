"""Chaos for replicas: 200 rounds of real processes with a fault in each; exits with 1 if one
diverged.

    python scripts/diloco_chaos.py [--rounds 200] [--seed 0] [--store file|s3] [--write FILE]

`s3` is a real S3 server on this machine (moto), behind a proxy that answers 503, 409 and not at
all. The faults are those of tests/training/diloco/chaos.py; the result of a run stands in
benchmarks/results/diloco_chaos.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.training.diloco.chaos import Chaos, draw_faults
from tests.training.diloco.s3_server import (
    BUCKET,
    FlakyProxy,
    s3_environment,
    s3_server,
)


@contextlib.contextmanager
def chaos_on(kind: str, *, folder: Path, seed: int) -> Iterator[Chaos]:
    """The replicas on a store of this kind."""
    if kind == "file":
        with Chaos(f"file://{folder}/run", folder=folder, seed=seed) as chaos:
            yield chaos
        return
    with s3_server() as port, contextlib.closing(FlakyProxy(port, seed=seed)) as proxy:
        environment = s3_environment(proxy.port)
        with (
            mock.patch.dict(os.environ, s3_environment(port)),
            Chaos(
                f"s3://{BUCKET}/run",
                folder=folder,
                seed=seed,
                grace_s=1.5,
                environment=environment,
                proxy=proxy,
            ) as chaos,
        ):
            yield chaos


def play(kind: str, *, rounds: int, seed: int) -> dict[str, Any]:
    """Play and print the rounds; returns the summary."""
    records: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        chaos_on(kind, folder=Path(folder), seed=seed) as chaos,
    ):
        for fault in draw_faults(rounds, seed=seed):
            record = chaos.play_round(fault)
            records.append(record)
            outcome = "; ".join(record["diverged"]) or "agreed"
            note = "" if record["injected"] else " (the fault had no effect)"
            print(
                f"round {record['round']:4d}  {fault:18s} slots {record['slots']!s:14s}"
                f" {record['seconds']:6.2f} s  {outcome}{note}",
                flush=True,
            )
        return {"store": kind, "seed": seed, **chaos.summary(records)}


def main() -> int:
    """Returns 1 if a round diverged or had more or less than one commit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["file", "s3"], default="file")
    parser.add_argument("--write", type=Path, help="a JSON file, to which the result is added")
    options = parser.parse_args()
    result = play(options.store, rounds=options.rounds, seed=options.seed)
    print(json.dumps(result, indent=1))
    if options.write:
        old = json.loads(options.write.read_text()) if options.write.exists() else {}
        options.write.write_text(json.dumps({**old, options.store: result}, indent=1) + "\n")
    once = set(result["commits_per_round"].values()) == {1}
    return 0 if once and not result["diverged_rounds"] else 1


if __name__ == "__main__":
    sys.exit(main())
