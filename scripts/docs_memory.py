"""Write docs/memory.md: what fits which card, by the memory model, and what each preset needs.

python scripts/docs_memory.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from composer_replication.cli.presets import PRESETS, TERA_PER_S, Preset
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.models.model_shape import QWEN3
from composer_replication.training.memory.memory_fit import (
    GB,
    TILE,
    CardMemory,
    disk_bytes,
    longest_window,
    with_train,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "memory.md"
CARDS = (12, 24, 48, 80)
HEAD = """# What fits which card

<!-- written by `python scripts/docs_memory.py`; a test fails if it is stale -->

These numbers are **computed** from the widths of a model and the settings (`memory/memory_model.py`). They were **checked against the peaks of runs on a CPU**
(`python benchmarks/memory_model.py`; the table is in [benchmarks.md](benchmarks.md)), but **not measured on a GPU**. It is assumed that .94 of a card, less
0.6 GB, can be used.

To see what your own model, card and data need, term by term, and which setting would make more fit:

```
recompose doctor --memory-gb 24               # a session of build.max_tokens, before anything is built
recompose train --dry-run --memory-gb 24      # the largest forward that your examples make
recompose doctor --memory-gb 80 --cards 8     # cards that share the weights (train.fsdp)
```

Without `--memory-gb`, the GPU that PyTorch sees is used, or else this machine's memory. `train` warns before it begins if the largest forward does not fit.
"""
WINDOWS = f"""## The longest window, in thousands of tokens

One session in one forward: every token of it is trained, and there is a hint at its end. The settings are `train.checkpoint = "layers"` and `train.tile = {TILE}`. The second number of
each cell is with `train.offload = true` as well. "-" means that not even a short session fits.

- **All weights**: bfloat16, AdamW's states in the weights' precision, a live teacher. (A
frozen teacher is a second copy of the weights; with adapters it is the model without them.) float32 weights need twice as much and train better, because AdamW's small updates are lost in bfloat16.
- **LoRA**: rank 16 on
a bfloat16 base.
- **QLoRA**: the same on a base in 4 bits (`student.load_in_4bit`).

Most Qwen3 models have a context of 40,960 tokens, the 2507 ones 262,144. Anything above that
is room for more sessions in a forward (`train.micro_tokens`).
"""
FIRST_DAY = f"""## Presets and the first day

`recompose init --from NAME` writes these settings, with the memory by term as comments. None of them was run here. The column "minutes" is the time for a million tokens through
the layers, in windows of that length. It is computed from the matrix products, if a card sustains {TERA_PER_S:.0f} TFLOP/s (an assumption; use your card's number instead).
"""
CLOSING = """
- **Before you train**: `hints --audit` says whether a hint changes this model at all. `evaluate --logs` says how small a change your held-out sites can
  show. `train --dry-run` says whether the longest session fits. Each takes minutes, and each can save you a day.
- **Time**: steps x batch_examples x the tokens of a session go through the layers. The first steps print the time that is left. Expect hours. Continue a run
  that was interrupted with `train --resume latest`.
- **Disk**: the model once, and `train.keep_checkpoints` + 1 checkpoints. With all weights a checkpoint is three times the weights (AdamW's states); with
  adapters it is small. `export` writes the model once more.
- **Evidence**: a loss that falls is no evidence. Train the same again with `--train.placebo shuffled_hints` and compare with `evaluate`.
- **If memory runs out**: lower `train.micro_tokens` and `build.max_tokens` together, and build again. A longer session then becomes windows; none of it is cut.

The shapes are those of the models' published config.json (huggingface.co/Qwen/Qwen3-0.6B, -1.7B, -4B, -8B, -14B, -32B); a test compares the sums of weights
with the published sizes.
"""


def settings_of(way: str) -> Config:
    """The settings of a column of the table."""
    lora = {"rank": 0 if way == "all weights" else 16}
    student = {"dtype": "bfloat16", "lora": lora, "load_in_4bit": way == "QLoRA"}
    teacher = "live" if way == "all weights" else "frozen"
    train = {"checkpoint": "layers", "tile": TILE, "hint": {"teacher": teacher}}
    return Config.model_validate({"student": student, "train": train})


def window_rows() -> Iterator[str]:
    """A line for each model and way of training it."""
    for size, shape in QWEN3.items():
        for way in ("all weights", "LoRA", "QLoRA"):
            config = settings_of(way)
            cells = []
            for gigabytes in CARDS:
                card = CardMemory.of_gigabytes(gigabytes)
                both = (config, with_train(config, offload=True))
                windows = [longest_window(shape, each, card) // 1000 for each in both]
                cells.append(" / ".join(f"{w}" if w else "-" for w in windows))
            yield f"| Qwen3-{size} | {way} | {' | '.join(cells)} |"


def preset_row(preset: Preset) -> str:
    """A line for a preset, or why it cannot be written."""
    card = f"{preset.cards} x " * (preset.cards > 1) + f"{preset.card_gb:.0f} GB"
    try:
        config = preset.config
    except ConfigError as error:
        return f"| {preset.name} | {card} | {error.what} |  |  |  |  |"
    need, disk = preset.need, disk_bytes(preset.shape, config)
    cells = (
        f"{need.total / GB:.1f} of {preset.card.usable / GB:.1f}",
        f"{config.train.micro_tokens:,}",
        f"{preset.window:,}",
        f"{disk['model'] / GB:.1f} + {disk['checkpoints'] / GB:.1f}",
        f"{preset.minutes:.0f}",
    )
    return f"| {preset.name} | {card} | {' | '.join(cells)} |"


def page() -> str:
    """The whole page."""
    cards = " | ".join(f"{gigabytes} GB" for gigabytes in CARDS)
    windows = [f"| model | trained | {cards} |", "| --- | --- |" + " ---: |" * len(CARDS)]
    heads = ("preset", "card", "GB needed", "window", "longest", "disk, GB", "minutes")
    presets = [f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    parts = (
        HEAD,
        WINDOWS,
        "\n".join([*windows, *window_rows()]) + "\n",
        FIRST_DAY,
        "\n".join([*presets, *map(preset_row, PRESETS.values())]),
    )
    return "\n".join(parts) + "\n" + CLOSING


def main(arguments: list[str]) -> int:
    """Write the page, or check it; returns the exit code."""
    text = page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text("utf-8") == text:
            return 0
        print("docs_memory: docs/memory.md is stale; run: python scripts/docs_memory.py")
        return 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
