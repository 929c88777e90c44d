"""Memory and time of a training step that keeps less for its backward, next to the plain step and
to TRL's losses, in one run.

    python benchmarks/context.py
        a session of 2048 tokens, about 2 minutes on one core
    python benchmarks/context.py --length 4096 --only plain checkpoint

The session, the three channels and the measurement are those of benchmarks/step.py (4 sites, 4
pairs, VmHWM above the inputs, CPU-seconds of one thread, a fresh process each). The model has the
widths of half a Qwen3-0.6B (hidden 512, feed-forward 1536), 4 layers, V = 1024 so that the head
does not decide, random weights, float32, all of them trained. Off CUDA, train.offload copies
nothing and is not measured.

plain              layout tree, as it is
checkpoint         train.checkpoint = "layers"
checkpoint_tile    train.tile = 512 beside it
trl                TRL's own losses, one after another, with transformers' gradient checkpointing

The last column is how far the gradient's norm is from that of the plain step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# For the benchmarks beside this file, even if this one is imported.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import step as whole
from page import markdown

from composer_replication.models.activations import checkpoint_layers
from composer_replication.tokens.example import PreferencePair, TrainingExample

TILE = 512
CHECKPOINT: dict[str, Any] = {"checkpoint": "layers"}


def checkpointed_trl(
    model: Any, example: TrainingExample, pairs: list[PreferencePair]
) -> whole.Step:
    """TRL's losses of benchmarks/step.py on a model with checkpointed layers."""
    checkpoint_layers(model)
    return whole.trl(model, example, pairs)


VARIANTS: dict[str, Callable[..., whole.Step]] = {
    "plain": whole.tree,
    "checkpoint": partial(whole.tree, **CHECKPOINT),
    "checkpoint_tile": partial(whole.tree, **CHECKPOINT, tile=TILE),
    "trl": checkpointed_trl,
}


def table(lines: list[dict[str, Any]]) -> str:
    """The measurements, each divided by that of the plain step of the same run."""
    heads = ["variant", "MiB", "/ plain", "CPU-s", "/ plain", "gradient"]
    plain = next((n for n in lines if n["variant"] == "plain" and "problem" not in n), None)
    cells = []
    for line in lines:
        if "problem" in line:
            cells.append([line["variant"], line["problem"], "", "", "", ""])
            continue
        row = [line["variant"]]
        for name, form in (("peak_mib", "{:.0f}"), ("cpu_s", "{:.1f}")):
            ratio = f"{line[name] / plain[name]:.2f}" if plain else ""
            row += [form.format(line[name]), ratio]
        norm = line["gradient_norm"]
        row.append(f"{abs(norm / plain['gradient_norm'] - 1):.0e}" if plain else "")
        cells.append(row)
    return markdown(heads, cells)


def main(arguments: list[str] | None = None) -> int:
    """Read the options and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--pairs", type=int, nargs=1, default=[4])
    shape = {"length": 2048, "sites": 4, "layers": 4, "hidden": 512, "vocab": 1024, "repeats": 1}
    for name, value in shape.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        whole.VARIANTS.update(VARIANTS)
        print(json.dumps(whole.measure(options.child, options)))
        return 0
    lines = [
        whole.run(variant, options.pairs[0], options, script=__file__) for variant in options.only
    ]
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
