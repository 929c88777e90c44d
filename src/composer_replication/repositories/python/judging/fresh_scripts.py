"""New scripts of steps, derived from those of the tests (handle_recorder.py).

    fresh_scripts(["[(1, 'at', 'shop.cart', 'Cart'), (2, 'call', 1j, '', (), {}), ...]"],
                  seed="shop-1a2b", most=40)

A call is made once more or left out, and plain arguments become those of other calls in the same
place, or neighbours of them (fresh_arguments.py). What counts the items of the visible test meets
more of them here, and fewer.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from typing import Any

from composer_replication.repositories.python.judging.fresh_arguments import varied_value

Step = tuple[Any, ...]
LONGEST_SCRIPT, MOST_STEPS = 20_000, 60
REPEATED = 0.85
"""The share of fresh scripts in which calls are repeated or left out, where that is possible."""


def fresh_scripts(scripts: Sequence[str], *, seed: str, most: int) -> list[str]:
    """Scripts that are not among the recorded ones, the same for the same seed."""
    draw = random.Random(seed)
    recorded = [ast.literal_eval(text) for text in scripts]
    pools = _pools(recorded)
    known, fresh = set(scripts), list[str]()
    for _ in range(6 * most if recorded else 0):
        if len(fresh) == most:
            break
        steps = draw.choice(recorded)
        if draw.random() < REPEATED:
            for _ in range(draw.choice((1, 1, 2, 3))):
                steps = _repeated(draw, steps)
        text = repr([_moved(draw, step, pools) for step in steps])
        if text not in known and len(text) <= LONGEST_SCRIPT and len(steps) <= MOST_STEPS:
            known.add(text)
            fresh.append(text)
    return fresh


def handles_in(value: Any) -> Iterator[int]:
    """The handles in a part of a step: its imaginary numbers."""
    match value:
        case complex():
            yield int(value.imag)
        case list() | tuple():
            for item in value:
                yield from handles_in(item)
        case dict():
            for pair in value.items():
                yield from handles_in(pair)
        case _:
            pass


def _pools(scripts: Sequence[Sequence[Step]]) -> dict[Any, list[Any]]:
    """The plain arguments of all calls, by what is called, the place and the type."""
    pools: dict[Any, list[Any]] = {}
    for steps in scripts:
        for step in steps:
            for place, value in _places(step):
                pools.setdefault((_called(step), place, type(value)), []).append(value)
    return pools


def _called(step: Step) -> str:
    return step[3] if step[1] == "call" else ""


def _places(step: Step) -> Iterator[tuple[Any, Any]]:
    """The plain arguments of a call, by position or name."""
    if step[1] == "call":
        for place, value in (*enumerate(step[4]), *step[5].items()):
            if not any(True for _ in handles_in(value)):
                yield place, value


def _repeated(draw: random.Random, steps: Sequence[Step]) -> Sequence[Step]:
    """A script in which one method is called once more, or once less."""
    used = {number for step in steps for number in handles_in(step[2:])}
    calls = [n for n, step in enumerate(steps) if step[1] == "call" and step[3]]
    if not calls:
        return steps
    place = draw.choice(calls)
    step = steps[place]
    if step[0] not in used and draw.random() < 0.4:
        return [*steps[:place], *steps[place + 1 :]]
    again = (max(other[0] for other in steps) + 1, *step[1:])
    after = place + 1 if draw.random() < 0.5 else draw.randint(place + 1, len(steps))
    return [*steps[:after], again, *steps[after:]]


def _moved(draw: random.Random, step: Step, pools: dict[Any, list[Any]]) -> Step:
    """A step with neighbours of its plain arguments."""
    chosen = {
        place: varied_value(draw, value, draw.choice(pools[_called(step), place, type(value)]))
        for place, value in _places(step)
        if draw.random() < 0.6
    }
    if not chosen:
        return step
    positional = tuple(chosen.get(n, value) for n, value in enumerate(step[4]))
    return (*step[:4], positional, {name: chosen.get(name, v) for name, v in step[5].items()})
