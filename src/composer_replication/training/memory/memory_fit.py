"""What fits a card: the longest window, what each setting would give, and the disk that a run
takes. No torch.

    card = CardMemory.of_gigabytes(24)
    longest_window(shape, config, card)            # tokens of one forward
    for change in changes(shape, config, card): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from composer_replication.core.config.root import Config
from composer_replication.models.model_shape import ModelShape
from composer_replication.training.memory.memory_model import (
    Device,
    StepSize,
    memory_need,
)

GB = 1e9
_LONGEST = 1 << 20  # tokens; no model here reads more
TILE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """The memory of a card, or of the machine if it trains on the CPU, in bytes; one of `cards`
    equal ones."""

    total: float
    device: Device = "cuda"
    cards: int = 1

    @classmethod
    def of_gigabytes(cls, gigabytes: float, *, cards: int = 1) -> Self:
        """A CUDA card of so many GB, e.g. 24."""
        return cls(total=gigabytes * GB, cards=cards)

    @property
    def usable(self) -> float:
        """Without the CUDA context and what the allocator cannot hand out: .94 of the card less
        0.6 GB, an assumption; of a CPU's memory .9 less 1 GB for the process itself."""
        if self.device == "cuda":
            return max(0.0, 0.94 * self.total - 0.6 * GB)
        return max(0.0, 0.9 * self.total - GB)


def longest_window(
    shape: ModelShape, config: Config, card: CardMemory, *, context: int | None = None
) -> int:
    """Tokens of the longest session that fits in one forward, every token of it trained and a hint
    at its end; 0 if not even a short one does. `context` is the most that the model reads.

    Example: Qwen3-4B with adapters, train.checkpoint and train.tile on 24 GB: about 49,000.
    """

    def fits(tokens: int) -> bool:
        size = StepSize.full_window(tokens)
        need = memory_need(shape, config, size, device=card.device, ranks=card.cards)
        return need.total <= card.usable

    low, high = 0, min(context or _LONGEST, _LONGEST)
    if fits(high):
        return high
    while high - low > 1:  # low fits (0 tokens are none), high does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that is not set, with all those before it, and the longest window then."""

    setting: str
    window: int
    config: Config


def with_train(config: Config, **values: Any) -> Config:
    """The settings with others in [train]. Example: with_train(config, checkpoint="layers")"""
    return config.model_copy(update={"train": config.train.model_copy(update=values)})


def with_student(config: Config, **values: Any) -> Config:
    """The settings with others in [student]. Example: with_student(config, dtype="bfloat16")"""
    return config.model_copy(update={"student": config.student.model_copy(update=values)})


def changes(
    shape: ModelShape, config: Config, card: CardMemory, *, context: int | None = None
) -> Iterator[Change]:
    """What would let more fit, one after another, each on top of those before it: first what
    changes no result, then other precisions and adapters. What the settings would refuse beside the
    others is left out."""
    train, student = config.train, config.student
    lora = student.lora.model_copy(update={"rank": 16})
    steps = (
        ('train.layout = "tree"', train.layout == "rows", {"layout": "tree"}),
        ('train.checkpoint = "layers"', train.checkpoint == "none", {"checkpoint": "layers"}),
        (f"train.tile = {TILE}", not train.tile, {"tile": TILE}),
        ("train.offload = true", card.device == "cuda" and not train.offload, {"offload": True}),
        ("train.fsdp = true", card.cards > 1 and not train.fsdp, {"fsdp": True}),
        ('student.dtype = "bfloat16"', student.dtype == "float32", {"dtype": "bfloat16"}),
        ("student.lora.rank = 16", not student.lora.rank, {"lora": lora}),
        (
            "student.load_in_4bit = true",
            card.device == "cuda" and card.cards == 1 and not student.load_in_4bit,
            {"load_in_4bit": True},
        ),
    )
    for setting, is_open, values in steps:
        if not is_open:
            continue
        change = with_train if setting.startswith("train.") else with_student
        changed = change(config, **values)
        if not _is_accepted(changed):
            continue
        config = changed
        window = longest_window(shape, config, card, context=context)
        yield Change(setting=setting, window=window, config=config)


def _is_accepted(config: Config) -> bool:
    """Whether a settings file could hold these: a copy with other values is not validated."""
    try:
        Config.model_validate(config.model_dump())
    except ValueError:
        return False
    return True


def disk_bytes(shape: ModelShape, config: Config) -> dict[str, float]:
    """What a run writes and reads on the disk: the model as it is published, in bfloat16, and the
    checkpoints, of which one more is being written.

    Example: disk_bytes(QWEN3["4B"], config)["model"] == 2 * 4_022_468_096
    """
    held = memory_need(shape, config, StepSize(tokens=1)).held
    of_base = held["weights"] if not config.student.lora.rank else held["gradients"]
    checkpoint = of_base + held["optimiser"] + held["slow average"]
    return {
        "model": 2.0 * shape.num_parameters,
        "checkpoints": (config.train.keep_checkpoints + 1) * checkpoint,
    }


def work(shape: ModelShape, config: Config, tokens: int) -> float:
    """Floating-point operations for a token of a window of so many: products alone.

    Counted: 2 for each weight in a forward, once more if layers run again, 2 for the gradient of
    its input and 2 for its own if it is trained; attention half of every window on average; a
    teacher of other weights reads the window once.
    """
    again = config.train.checkpoint == "layers"
    trained = not config.student.lora.rank
    hint = config.train.hint
    reads = hint.weight > 0 and hint.teacher != "live"
    attention = 2.0 * shape.layers * shape.query * tokens
    forwards = 1 + again + reads
    return (
        2.0 * shape.matrix_parameters * (forwards + 1 + trained)
        + 2.0 * shape.vocab * shape.hidden * (2 + trained)
        + attention * (forwards + 2.5)
    )
