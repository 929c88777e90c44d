"""Codecs in training: the same run with each codec, its loss by round and the bytes that each sync
put into the store.

    python benchmarks/diloco_codecs.py [--seeds 2] [--write benchmarks/results/diloco.json]

Four replicas train the model of width 48 of benchmarks/diloco_convergence.py on arithmetic
sequences. benchmarks/diloco.py prints these numbers too.

- `usual`: from random weights, learning rate 3e-3, a meeting every 20 of 400 steps, `nesterov`
- `1e-06 bfloat16` and so on: from weights after 150 steps of training, at a learning rate of RL,
  a meeting every 8 of 240 steps, `average`. The optimiser's weights are float32 and the model
  computes with their bfloat16 values, as in PULSELoCo; `visible` sends those that change there
- `1e-06 float32`: the same, but the model computes with the float32 weights themselves, and so
  sees what `visible` keeps back

Bytes are those of the move, its offer and the commit; anchors are not due. `share_of_gain` is by
how much the loss fell, beside the run without a codec.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

from diloco_convergence import (
    EVERY,
    STEPS,
    Task,
    Trained,
    sequences,
    trained,
    with_replicas,
)

from composer_replication.training.diloco.outer import PRESETS

TRAINED_FOR = 150
RATES = (1e-6, 3e-6, 1e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that is repeated with each codec."""

    task: Task
    outer: str
    codecs: tuple[str, ...]
    every: int = EVERY
    steps: int = STEPS

    def run(self, codec: str, *, seed: int) -> Trained:
        """Train with one codec."""
        outer = PRESETS[self.outer]
        about = {"seed": seed, "every": self.every, "steps": self.steps}
        return with_replicas(self.task, outer=outer, codec=codec, **about)


def cases() -> dict[str, Case]:
    """The usual rate, and those of RL."""
    codecs = ("none", "int8", "int4", "visible")
    found = {"usual": Case(task=sequences(), outer="nesterov", codecs=codecs)}
    start = trained(sequences(), steps=TRAINED_FOR)
    for rate, seen_as in (*((rate, torch.bfloat16) for rate in RATES), (RATES[0], torch.float32)):
        task = replace(start, learning_rate=rate, seen_as=seen_as)
        name = f"{rate:.0e} {str(seen_as).removeprefix('torch.')}"
        case = Case(task=task, outer="average", codecs=("none", "visible"), every=8, steps=240)
        found[name] = case
    return found


def measure_codecs(*, seeds: int) -> dict[str, Any]:
    """Every case with each of its codecs, beside the one without."""
    return {name: measure(case, name=name, seeds=seeds) for name, case in cases().items()}


def measure(case: Case, *, name: str, seeds: int) -> dict[str, Any]:
    """One case: of each codec the curve, the bytes and what they are to those without a codec."""
    rows = dict[str, Any]()
    for seed in range(seeds):
        runs = {codec: case.run(codec, seed=seed) for codec in case.codecs}
        rows[str(seed)] = {codec: row_of(run, beside=runs["none"]) for codec, run in runs.items()}
        for codec, row in rows[str(seed)].items():
            facts = {key: value for key, value in row.items() if key != "loss_by_step"}
            print(name, seed, codec, json.dumps(facts), flush=True)
    about = {"learning_rate": case.task.learning_rate, "outer": case.outer}
    return {**about, "every": case.every, "steps": case.steps, "seeds": rows}


def row_of(run: Trained, *, beside: Trained) -> dict[str, Any]:
    """The numbers of one run, and its ratios to the one without a codec."""
    start, loss, plain = run.losses[0][1], run.losses[-1][1], beside.losses[-1][1]
    return {
        "bytes_per_sync": round(put(run)),
        "times_fewer_bytes": round(put(beside) / put(run), 2),
        "loss": round(loss, 5),
        "loss_to_none": round(loss / plain, 5),
        "share_of_gain": round((start - loss) / (start - plain), 4),
        "loss_by_step": {str(step): round(value, 5) for step, value in short(run.losses)},
    }


def put(run: Trained) -> float:
    """The mean bytes that a replica's sync put into the store."""
    return statistics.fmean(sync.traffic.bytes_up for sync in run.syncs)


def short(losses: Sequence[tuple[int, float]], points: int = 10) -> Sequence[tuple[int, float]]:
    """So many steps of a curve at most, from its first point to its last.

    >>> short([(step, 0.0) for step in range(5)], points=2)
    [(0, 0.0), (2, 0.0), (4, 0.0)]
    """
    stride = -(-(len(losses) - 1) // points)
    return [*losses[:-1:stride], losses[-1]]


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", type=Path, help="a JSON file, to which the result is added")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numbers = {"trained": measure_codecs(seeds=options.seeds)}
    print(json.dumps(numbers, indent=1))
    if options.write:
        old = json.loads(options.write.read_text()) if options.write.exists() else {}
        options.write.write_text(json.dumps({**old, **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
