"""The workshop in actors: does the reward rise while rollouts overlap training, and what does a
killed generator cost?

    python benchmarks/monarch_workshop.py          (in an environment with torchmonarch)
    python benchmarks/monarch_workshop.py --steps 20 --generators 2 --kill 5 --json FILE

Trains the student of the demo in the workshop with `train.backend = "monarch"` and
`rollouts.overlap = 1`, on hints and policy. While the generators play the rollouts of step --kill,
the first of them is killed with SIGKILL (0 = nobody is).

success    mean reward of the step's rollouts      age     steps between their weights and the step
kl         policy/sampler_kl: how far the policy has moved from what sampled its tokens
wait       seconds from one step's end to the next, the step itself included

Exits with 1 if the mean success of the last quarter is not above that of the first, if a step is
missing, or if an age is above rollouts.max_staleness.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

from page import about

from composer_replication.core.config.root import Config
from composer_replication.core.rundir import RunDir, create_run
from composer_replication.models.load_student import load_student
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.training.backends import monarch_run
from composer_replication.training.backends.monarch_workers import RunParts, TrainerLaunch

STUDENT = Path(__file__).resolve().parent.parent / "examples" / "workshop_student"


def config_of(options: argparse.Namespace) -> Config:
    """The demo's settings without pairs, for fewer and smaller steps."""
    health = {"max_kl": 2.0, "max_unresolvable": 1.0, "monitor_tasks": 0}
    return Config.model_validate(
        {
            "student": {"model": str(STUDENT)},
            "rollouts": {"env": "workshop", "groups": 8, "group_size": 6, "overlap": 1},
            "train": {
                "backend": "monarch",
                "steps": options.steps,
                "checkpoint_every": options.steps,
                "learning_rate": 5e-4,
                "warmup_steps": 4,
                "policy": {"weight": 1.0},
                "hint": {"weight": 1.0},
                "lm_ce": {"weight": 0.0},
                "preference": {"weight": 0.0},
                "health": health,
            },
            "monarch": {"generators": options.generators},
        }
    )


def kill_at(step: int) -> None:
    """Have the first generator that is asked for rollouts of this step killed."""
    generators: Any = monarch_run._Generator
    play = generators.play
    killed: list[int] = []

    def killing_play(generator: Any, share: Any) -> Any:
        if share.step == step and not killed:
            killed.append(generator.process())
            os.kill(killed[0], signal.SIGKILL)
        return play(generator, share)

    generators.play = killing_play


def run_workshop(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and the rows of the table."""
    config = config_of(options)
    tokenizer = load_tokenizer(str(STUDENT))
    make_student = partial(load_student, config.student, tokenizer=tokenizer, seed=config.seed)
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run: RunDir = create_run(
            Path(folder),
            resolved=config.model_dump(mode="json"),
            command="benchmarks/monarch_workshop.py",
            seed=config.seed,
            inputs=[],
        )
        if options.kill:
            kill_at(options.kill)
        started = time.monotonic()
        monarch_run.train_with_monarch(
            RunParts.of(config, make_student=make_student),
            launch=TrainerLaunch(run=run.path),
            on_step=lambda line: ends.append(time.monotonic() - started),
        )
        waits = [round(b - a, 1) for a, b in itertools.pairwise(ends)]
        rows = [
            {
                "step": line["step"],
                "success": round(line["rollouts/success"], 4),
                "age": line["rollouts/age"],
                "kl": line.get("policy/sampler_kl"),
                "wait": wait,
            }
            for line, wait in zip(run.metrics(), [None, *waits], strict=True)
        ]
        lost = [event for event in run.events() if event["kind"].startswith("generator_")]
        events = [{k: e[k] for k in ("kind", "step", "generator")} for e in lost]
    return {"about": about(sys.argv), "steps": rows, "events": events}


def problems(result: dict[str, Any], *, config: Config) -> list[str]:
    """What the run should have shown and did not."""
    rows = result["steps"]
    quarter = max(1, len(rows) // 4)
    success = [row["success"] for row in rows]
    found = []
    if sum(success[-quarter:]) <= sum(success[:quarter]):
        found.append("the reward does not rise")
    if [row["step"] for row in rows] != list(range(1, config.train.steps + 1)):
        found.append("a step is missing")
    if max(row["age"] for row in rows) > config.rollouts.max_staleness:
        found.append("rollouts are too old")
    return found


def main() -> int:
    """Run, print the table, and judge it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--kill", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    result = run_workshop(options)
    print("step  success  age      kl   wait")
    for row in result["steps"]:
        kl = "-" if row["kl"] is None else f"{row['kl']:.5f}"
        wait = row["wait"] or "-"
        print(f"{row['step']:4}  {row['success']:7.3f}  {row['age']:3.0f}  {kl:>7}  {wait}")
    for event in result["events"]:
        print(f"step {event['step']}: {event['kind']}, generator {event['generator']}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    found = problems(result, config=config_of(options))
    print("; ".join(found) or "ok: the reward rises, no step is missing, no rollout is too old")
    monarch_run.shutdown_monarch()
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
