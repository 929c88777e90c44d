"""The three-channel demo on two replicas beside the demo in one process: success on unseen tasks.

    python benchmarks/diloco_demo.py [--seeds 11] [--write FILE]

Per seed: logs and data as the demo makes them, then two runs of the same settings and 20 steps, one
in one process, one by `recompose train --replicas 2` that meets every 4 steps and takes the mean of
the weights (`average`); then both are played on the same tasks. Every replica plays its own
rollouts, so two replicas play twice as many. "reached": the replicas' success is not below the
95 % interval of the single process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from workshop_evidence.training import Work, prepare

ROOT = Path(__file__).resolve().parent.parent
EVERY, OUTER, REPLICAS = 4, "average", 2
SINGLE, TOGETHER = "single", "replicas"
JUDGED = "after"
"""The name that `recompose evaluate` gives to the run that is judged."""
_NUMBERS = ("n", "success", "success_low", "success_high")


def recompose(work: Work, *words: str) -> None:
    """Run a verb on the data of a seed; raises on a failure."""
    command = [sys.executable, "-m", "composer_replication.cli", *words, "-c", str(work.config)]
    with (work.folder / f"{words[0]}.log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True, cwd=ROOT)


def train(work: Work, name: str, *words: str) -> None:
    """Train a run, unless it is there."""
    if not (work.folder / "runs" / name).exists():
        recompose(work, "train", "--name", name, *words)


def measure(work: Work) -> dict[str, Any]:
    """One seed: both runs, and their success on the same tasks."""
    prepare(work)
    train(work, SINGLE)
    meeting = work.folder / "meeting"
    train(
        work,
        TOGETHER,
        *("--replicas", str(REPLICAS), "--sync", f"file://{meeting.absolute()}"),
        *("--train.sync.every", str(EVERY), "--train.sync.outer", OUTER),
    )
    run, single = (work.folder / "runs" / name for name in (TOGETHER, SINGLE))
    if not (run / "evaluation.json").exists():
        recompose(work, "evaluate", str(run), "--against", f"{SINGLE}={single}")
    table = json.loads((run / "evaluation.json").read_text("utf-8"))
    rows = {
        row["name"].replace(JUDGED, TOGETHER): {key: row[key] for key in _NUMBERS}
        for row in table["rows"]
    }
    paired = [
        {key: entry[key] for key in ("difference", "low", "high")}
        for entry in table["paired"]
        if (entry["a"], entry["b"]) == (JUDGED, SINGLE)
    ]
    return {
        "rows": rows,
        "replicas_less_single": paired[0],
        "reached": rows[TOGETHER]["success"] >= rows[SINGLE]["success_low"],
        "rounds": [
            {key: event[key] for key in ("round", "slots", "drift", "kl")}
            for event in rounds_of_run(run)
        ],
    }


def rounds_of_run(run: Path) -> list[dict[str, Any]]:
    """The rounds that replica 0 has written down."""
    lines = (run / "replicas" / "0" / "events.jsonl").read_text("utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "sync"]


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "diloco_demo")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    student = ROOT / "examples" / "workshop_student"
    seeds: dict[str, Any] = {}
    for seed in options.seeds:
        work = Work(root=options.work, level=1, seed=seed, student=student)
        seeds[str(seed)] = measure(work)
        print(seed, json.dumps(seeds[str(seed)]["rows"]), flush=True)
    result = {
        "replicas": REPLICAS,
        "every": EVERY,
        "outer": OUTER,
        "seeds": seeds,
        "reached": all(entry["reached"] for entry in seeds.values()),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.write:
        options.write.write_text(text + "\n")


if __name__ == "__main__":
    main()
