"""Write the memory of the examples into examples/README.md: `python examples/memory.py`; a test
fails if the table is stale.

The numbers are those of the memory model (docs/memory.md), for the largest forward that each
example's settings allow; nothing is loaded.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from composer_replication.core.config.root import Config
from composer_replication.models.student_shape import student_shape
from composer_replication.training.memory.memory_fit import GB, CardMemory, longest_window
from composer_replication.training.memory.memory_model import StepSize, memory_need

HERE = Path(__file__).parent
BEGIN, END = "<!-- memory: written by examples/memory.py -->", "<!-- end of memory -->"
CARD = CardMemory.of_gigabytes(24)
EXAMPLES = (
    ("small_instruct/recompose.toml",),
    ("small_instruct/recompose.toml", "small_instruct/lora.toml"),
    ("small_instruct/recompose.toml", "small_instruct/fork.toml"),
    ("small_instruct/recompose.toml", "small_instruct/live.toml"),
    ("lora_4b_24gb/recompose.toml",),
    ("lora_4b_24gb/recompose.toml", "lora_4b_24gb/fork.toml"),
    ("lora_4b_24gb/recompose.toml", "lora_4b_24gb/live.toml"),
)
HEAD = (
    "settings",
    "weights",
    "trained",
    "tokens in a forward",
    "weights, GB",
    "start's copy, GB",
    "gradient and AdamW, GB",
    "one forward and backward, GB",
    "or keys and values, GB",
    "sum, GB",
    "longest window that fits",
)


def settings_of(names: tuple[str, ...]) -> Config:
    """The settings of several files, later ones over earlier ones."""
    settings: dict[str, Any] = {}
    for name in names:
        for group, values in tomllib.loads((HERE / name).read_text("utf-8")).items():
            settings[group] = (
                {**settings.get(group, {}), **values} if isinstance(values, dict) else values
            )
    return Config.model_validate(settings)


def row(names: tuple[str, ...]) -> str:
    """One line of the table."""
    config = settings_of(names)
    shape = student_shape(config.student).shape
    assert shape is not None, config.student.model
    rank, tokens = config.student.lora.rank, config.train.micro_tokens
    adapters = shape.lora_parameters(rank)
    need = memory_need(shape, config, StepSize.full_window(tokens))
    held = need.held
    # where the student writes, the keys and values of its contexts are held meanwhile
    writes = config.train.fork or bool(config.rollouts.env)
    bytes_per_token = (
        2 * shape.key * shape.layers * (2 if config.student.dtype == "bfloat16" else 4)
    )
    key_values = bytes_per_token * tokens * config.rollouts.batch_episodes * writes
    moving = need.total - sum(held.values())
    sums = (
        held["weights"],
        held["copy of the start"],
        held["gradients"] + held["optimiser"],
        moving,
        key_values,
        sum(held.values()) + max(moving, key_values),
    )
    cells = [
        f"{(shape.num_parameters + adapters) / 1e6:,.0f} M",
        f"{(adapters if rank else shape.num_parameters) / 1e6:,.0f} M",
        f"{tokens:,}",
        *(f"{value / GB:.1f}" for value in sums),
        f"{longest_window(shape, config, CARD):,}",
    ]
    return f"| {' + '.join(names)} | {' | '.join(cells)} |"


def table() -> str:
    """The table in examples/README.md."""
    head = f"| {' | '.join(HEAD)} |"
    return "\n".join([head, f"| --- |{' ---: |' * (len(HEAD) - 1)}", *map(row, EXAMPLES)])


def main() -> int:
    path = HERE / "README.md"
    before, after = path.read_text("utf-8").split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after.split(END)[1]}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
