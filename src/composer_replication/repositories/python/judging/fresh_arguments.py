"""New arguments for a function, derived from those that its tests use.

    fresh_calls(["(([1, 2],), {})", "(([5],), {})"], seed="shop-1a2b", most=40)
    # ["(([2, 1],), {})", "(([1, 2, 5],), {})", ...]

Values of one position are exchanged between calls, numbers moved a little, lists and texts
lengthened, cut, put in another order. No value changes its type: what a function does with a type
that it never gets is nobody's business.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from typing import Any

LONGEST_FRESH = 4000


def fresh_calls(calls: Sequence[str], *, seed: str, most: int) -> list[str]:
    """Calls that are not among the recorded ones, the same for the same seed."""
    draw = random.Random(seed)
    recorded = [ast.literal_eval(text) for text in calls]
    known, fresh = set(calls), list[str]()
    for _ in range(8 * most if recorded else 0):
        if len(fresh) == most:
            break
        arguments, options = draw.choice(recorded)
        pool = [a for a, _ in recorded if len(a) == len(arguments)]
        moved = tuple(
            varied_value(draw, value, _like(draw, value, [other[n] for other in pool]))
            for n, value in enumerate(arguments)
        )
        named = {
            name: varied_value(
                draw, value, _like(draw, value, [o[name] for _, o in recorded if name in o])
            )
            for name, value in options.items()
        }
        text = repr((moved, named))
        if text not in known and len(text) <= LONGEST_FRESH:
            known.add(text)
            fresh.append(text)
    return fresh


def _like(draw: random.Random, value: Any, others: Sequence[Any]) -> Any:
    """A value of the same type that another call has in this place."""
    return draw.choice([other for other in others if type(other) is type(value)])


def varied_value(draw: random.Random, value: Any, other: Any) -> Any:
    """A neighbour of a value: the other call's, or the two put together."""
    if draw.random() < 0.3:
        return value
    match value:
        case bool() | None:
            return other
        case int():
            return draw.choice([other, value + 1, value - 1, value + other, 2 * value])
        case float():
            return draw.choice([other, value + other, value / 2, value * 3])
        case str() | bytes():
            cut = draw.randrange(len(value) + 1)
            return draw.choice([other, value + other, value[:cut] + other[cut:], value[cut:]])
        case list() | tuple():
            return _varied_items(draw, value, other)
        case dict():
            return draw.choice([other, {**value, **other}])
        case set():
            return draw.choice([other, value | other])
        case _:
            return value


def _varied_items(draw: random.Random, value: Any, other: Any) -> Any:
    items, more = list(value), list(other)
    mixed = draw.sample(items, len(items))
    chosen = draw.choice([mixed, mixed + more, more + items, mixed[: len(items) // 2 + 1]])
    moved = [
        varied_value(draw, item, item) if type(item) in (int, float) else item for item in chosen
    ]
    return type(value)(moved if draw.random() < 0.6 else chosen)
