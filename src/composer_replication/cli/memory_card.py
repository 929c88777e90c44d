"""The card that memory is computed for: the one asked about, or the one that is found."""

from __future__ import annotations

import importlib
import os
from typing import Any

from composer_replication.core.errors import ConfigError
from composer_replication.training.memory.memory_fit import GB, CardMemory


def found_card(gigabytes: float, *, cards: int = 0) -> tuple[CardMemory, str]:
    """The card asked about, else the GPU, else the machine's memory; 0 cards = this launch's."""
    if gigabytes < 0 or cards < 0:
        problem = f"no card has {gigabytes:g} GB" if gigabytes < 0 else f"{cards} cards"
        raise ConfigError(problem, where="--memory-gb, --cards", fix="e.g. --memory-gb 24")
    cards = cards or int(os.environ.get("WORLD_SIZE", "1"))
    each = f"each of {cards} cards" if cards > 1 else "a card"
    if gigabytes:
        card = CardMemory.of_gigabytes(gigabytes, cards=cards)
        return card, f"{each} of {gigabytes:g} GB"
    try:
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(0)
            name = f"{found.name}, {found.total_memory / GB:.0f} GB"
            if cards > 1:
                name = f"{each} like this {name}"
            return CardMemory(total=found.total_memory, cards=cards), name
    except (ImportError, OSError):
        pass
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return CardMemory(
        total=total, device="cpu", cards=cards
    ), f"this machine's {total / GB:.0f} GB, no GPU"
