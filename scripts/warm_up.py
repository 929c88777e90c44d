"""Make the student of the workshop from random weights, and measure it: the student that ships in
examples/workshop_student.

    python scripts/warm_up.py --level 1 --seed 7 --out examples/workshop_student

Takes about seven CPU-minutes on one core. On level 1 each habit is visible to one channel only; on
level 2 the habits are mixed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from composer_replication.workshop.warmup.make import make_student

EVERY = 50


def main() -> None:
    """Warm up, save, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--level", type=int, default=1, choices=(1, 2))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    losses: list[float] = []

    def on_step(step: int, loss: float, model: object) -> None:
        losses.append(loss)
        if step % EVERY == 0:
            print(
                f"step={step} loss={sum(losses[-EVERY:]) / EVERY:.4f}"
                f" cpu_s={time.process_time():.0f}",
                flush=True,
            )

    about = make_student(options.out, level=options.level, seed=options.seed, on_step=on_step)
    print(json.dumps(about["measured"], indent=1))


if __name__ == "__main__":
    main()
