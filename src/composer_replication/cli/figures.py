"""Format numbers: a number that may be missing, a curve of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

BARS = "▁▂▃▄▅▆▇█"


def finite(value: Any) -> list[float]:
    """[value], or [] if the value is missing or not a finite number."""
    return [float(value)] if isinstance(value, (int, float)) and math.isfinite(value) else []


def format_number(value: Any, form: str) -> str:
    """Format a number; "-" if it is missing or not finite.

    >>> format_number(0.5, ".2f"), format_number(float("nan"), ".2f"), format_number(None, ".2f")
    ('0.50', '-', '-')
    """
    return format(value, form) if finite(value) else "-"


def spark(values: Sequence[float], *, columns: int) -> str:
    """Draw shares between 0 and 1 as bars; neighbours are averaged to fit into `columns`.

    >>> spark([0.0, 0.5, 1.0], columns=24), spark([0.0, 0.0, 1.0, 1.0], columns=2)
    ('▁▅█', '▁█')
    """
    width = min(len(values), columns)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return "".join(BARS[min(len(BARS) - 1, max(0, int(mean * len(BARS))))] for mean in means)
