"""Speed of sampling: episodes and tokens per CPU-second, and where the time goes.

    python benchmarks/rollouts.py                       the tiny student with random weights, one thread
    python benchmarks/rollouts.py --batches 1 32 --turns 12 --tokens 24

The environment here only talks: it answers every message with a tool-sized text and costs nothing, so what is measured is the sampler.
A student with random weights does not end its messages: each is ended by force after --tokens, which makes the work the same every time.

model     the forward passes, with the cache        choose    from logits to tokens and log-probs
render    the ids behind each message               python    the sampler's own lists and objects
kept      tokens fed with the cache kept across turns, against feeding every context anew each turn

Prints a table and writes it as JSON with --json FILE; exits with 1 where more than --max-python of the time is Python.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.trace import HUMAN, Text, ToolSpec, Turn
from composer_replication.models.tiny import make_tiny
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.meter import Meter
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer

SOURCE = Path(__file__).resolve().parent.parent / "src" / "composer_replication"
TOOLS = tuple(ToolSpec(name=name, description=f"{name} a file.") for name in ("Read", "Search", "Edit", "Test"))
ANSWER = "def area(width, height):\n    return width + height\n"


class Talk:
    """Answers with the same few lines, `turns` times."""

    def __init__(self, number: int, *, turns: int) -> None:
        self.task_id, self.max_turns, self.left = f"task-{number}", turns, turns

    def open(self) -> Opening:
        return Opening(turns=(Turn(role="user", author=HUMAN, blocks=(Text(f"Fix the failing test. ({self.task_id})"),)),), tools=TOOLS)

    def reply(self, turn: Turn) -> Reply:
        self.left -= 1
        return Reply(turns=(Turn(role="user", author=HUMAN, blocks=(Text(ANSWER),)),), done=self.left == 0)

    def reward(self) -> float:
        return 0.0

    def measures(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        pass


def measure(model: Any, renderer: Renderer, *, batch: int, episodes: int, turns: int, tokens: int) -> dict[str, float]:
    """One row of the table."""
    meter = Meter()
    settings = Sampling(max_new_tokens=tokens, max_context_tokens=8192, batch_episodes=batch)
    begun = time.process_time()
    envs = [Talk(number, turns=turns) for number in range(episodes)]
    rollouts = sample_rollouts(model, envs, renderer=renderer, settings=settings, author="tiny", meter=meter)
    cpu = time.process_time() - begun
    anew = sum(t.context_tokens + len(t.sampled.ids) for r in rollouts for t in r.session.turns if t.sampled is not None)
    total = meter.seconds["total"]
    parts = {part: meter.seconds[part] / total for part in ("model", "choose", "render", "environment")}
    return {
        "batch": batch,
        "episodes_per_cpu_s": meter.num_episodes / cpu,
        "sampled_per_cpu_s": meter.num_sampled / cpu,
        "tokens_per_cpu_s": sum(len(r.ids) for r in rollouts) / cpu,
        **parts,
        "python": 1 - sum(parts.values()),
        "kept": meter.num_fed / anew,
    }


def table(rows: Sequence[dict[str, float]]) -> str:
    """The rows as text."""
    shares = ("model", "choose", "render", "environment", "python", "kept")
    lines = [f"{'batch':>5} {'episodes/s':>10} {'sampled/s':>10} {'tokens/s':>10} " + " ".join(f"{s:>11}" for s in shares)]
    for row in rows:
        rates = f"{row['batch']:>5} {row['episodes_per_cpu_s']:>10.1f} {row['sampled_per_cpu_s']:>10.0f} {row['tokens_per_cpu_s']:>10.0f} "
        lines.append(rates + " ".join(f"{row[s]:>11.1%}" for s in shares))
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and compare with the limit; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--max-python", type=float, default=0.25)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = train_tiny_tokenizer([path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))], vocab_size=2048)
    model, renderer = make_tiny(tokenizer, seed=0), Renderer.for_tokenizer(tokenizer)
    shape = {"turns": options.turns, "tokens": options.tokens}
    measure(model, renderer, batch=4, episodes=4, **shape)  # the first call pays for imports and caches
    rows = [measure(model, renderer, batch=b, episodes=max(8, min(options.episodes, 8 * b)), **shape) for b in options.batches]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", "utf-8")
    worst = max(row["python"] for row in rows)
    if worst > options.max_python:
        print(f"python takes {worst:.1%} of the time, the limit is {options.max_python:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
