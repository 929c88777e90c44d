"""What a forward needs beside what a card has: the numbers of cli/memory_text.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.training.memory.memory_fit import CardMemory, Change
from composer_replication.training.memory.memory_model import MemoryNeed, StepSize

HOW_KNOWN = "computed, checked against peaks on a CPU, not measured on a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a forward of this size needs, the card that it is for, and what would change that:
    `remedy` is the first change, with those before it, after which this forward fits."""

    card: CardMemory
    name: str
    size: StepSize
    need: MemoryNeed
    window: int
    changes: Sequence[Change]
    remedy: Change | None

    @property
    def fits(self) -> bool:
        """Whether the forward fits what can be used of the card."""
        return self.need.total <= self.card.usable

    def as_json(self) -> dict[str, Any]:
        """The numbers, in bytes and tokens."""
        return {
            "card_bytes": round(self.card.total),
            "usable_bytes": round(self.card.usable),
            "device": self.card.device,
            "cards": self.card.cards,
            "tokens": self.size.tokens,
            "bytes": round(self.need.total),
            "moment": self.need.moment,
            "terms": {name: round(value) for name, value in self.need.terms.items()},
            "host_bytes": round(self.need.host),
            "fits": self.fits,
            "longest_window": self.window,
            "changes": {change.setting: change.window for change in self.changes},
            "how_known": HOW_KNOWN,
        }
