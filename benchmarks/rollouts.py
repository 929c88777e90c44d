"""Speed of rollouts in the workshop: episodes and trained tokens per CPU-second, and the shares of
time.

    python benchmarks/rollouts.py
        the student of the demo, as it ships; one thread
    python benchmarks/rollouts.py --batches 1 8 48 --episodes 192
    python benchmarks/rollouts.py --student FOLDER

episodes, trained     per CPU-second of this process and of the sandbox. trained = tokens the
                      student wrote, on all of which the policy channel trains (the training step
                      itself is not in this number)
model      forward passes, with the cache         choose     from logits to tokens and log-probs
render     the ids after each message             sandbox    waiting for test runs
rules      the environment's own Python           python     the sampler's own lists and objects
kept       tokens fed with the cache kept across turns, over those of feeding every context again
           each turn

With --beside, TRL's GRPOTrainer is measured on the same environment in the same run
(benchmarks/beside_trl.py; "not installed" without TRL). Prints a table and writes it as JSON with
--json FILE; exits with 1 if the sampler's Python takes more than --max-python of the time. For test
runs of the sandbox alone see benchmarks/sandbox.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

from beside_trl import STUDENT, compare
from beside_trl import table as beside_table
from page import about
from resident import ended_children_cpu_s

from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.sandbox import Sandbox, SandboxRun
from composer_replication.workshop.tasks import make_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv


class TimedSandbox(Sandbox):
    """A sandbox that counts its runs and the wall seconds that the caller waits for them."""

    runs = 0
    seconds = 0.0

    def run(self, files: Mapping[str, str], calls: Sequence[tuple[str, str]]) -> SandboxRun:
        begun = time.perf_counter()
        try:
            return super().run(files, calls)
        finally:
            self.runs += 1
            self.seconds += time.perf_counter() - begun


def cpu_s() -> float:
    """CPU-seconds of this process and of all its children that have ended."""
    return time.process_time() + ended_children_cpu_s()


def measure(model: Any, renderer: Renderer, *, batch: int, episodes: int) -> dict[str, float]:
    """One row of the table."""
    tasks = make_tasks(episodes, seed=0)
    stats = SamplingStats()
    settings = Sampling(max_new_tokens=96, max_context_tokens=1536, batch_episodes=batch)
    begun = cpu_s()
    sandbox = TimedSandbox()
    with sandbox:
        sandbox.start()
        envs = [WorkshopEnv(task, sandbox=sandbox) for task in tasks]
        rollouts = sample_rollouts(
            model, envs, renderer=renderer, settings=settings, author="tiny", stats=stats
        )
    cpu = cpu_s() - begun
    fed_without_cache = sum(
        t.context_tokens + len(t.sampled.ids)
        for r in rollouts
        for t in r.session.turns
        if t.sampled is not None
    )
    total = stats.seconds["total"]
    parts = {part: stats.seconds[part] / total for part in ("model", "choose", "render")}
    parts["sandbox"] = sandbox.seconds / total
    parts["rules"] = stats.seconds["environment"] / total - parts["sandbox"]
    return {
        "batch": batch,
        "episodes": len(rollouts),
        "turns": stats.num_turns / len(rollouts),
        "success": sum(r.reward for r in rollouts) / len(rollouts),
        "episodes_per_cpu_s": stats.num_episodes / cpu,
        "trained_per_cpu_s": stats.num_sampled / cpu,
        "sandbox_ms_per_run": 1000 * sandbox.seconds / max(1, sandbox.runs),
        **parts,
        "python": 1 - sum(parts.values()),
        "kept": stats.num_fed / fed_without_cache,
    }


def table(rows: Sequence[dict[str, float]]) -> str:
    """The rows as text."""
    shares = ("model", "choose", "render", "sandbox", "rules", "python", "kept")
    head = (
        f"{'batch':>5} {'turns':>6} {'success':>8} {'episodes/s':>10} {'trained/s':>10}"
        f" {'ms/test run':>11} "
    )
    lines = [head + " ".join(f"{s:>8}" for s in shares)]
    for row in rows:
        rates = (
            f"{row['batch']:>5} {row['turns']:>6.2f} {row['success']:>8.2f}"
            f" {row['episodes_per_cpu_s']:>10.1f} "
        )
        rates += f"{row['trained_per_cpu_s']:>10.0f} {row['sandbox_ms_per_run']:>11.2f} "
        lines.append(rates + " ".join(f"{row[s]:>8.1%}" for s in shares))
    return "\n".join(lines)


def player(folder: str) -> tuple[Any, Renderer]:
    """The student of a folder."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder), Renderer.for_tokenizer(
        load_tokenizer(folder)
    )


def main() -> int:
    """Measure, print, and compare with the limit; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 48])
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--student", default=STUDENT)
    parser.add_argument("--max-python", type=float, default=0.25)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, renderer = player(options.student)
    measure(model, renderer, batch=4, episodes=4)  # the first call pays for imports and caches
    rows = [
        measure(model, renderer, batch=b, episodes=max(8, min(options.episodes, 8 * b)))
        for b in options.batches
    ]
    print(table(rows))
    measured = {"about": about(sys.argv), "rows": rows}
    if options.beside:
        measured["beside"] = compare(options.student, groups=8, size=6, steps=3)
        print(beside_table(measured["beside"]))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")
    worst = max(row["python"] for row in rows)
    if worst > options.max_python:
        print(f"python takes {worst:.1%} of the time, the limit is {options.max_python:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
