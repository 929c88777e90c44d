"""Inside a sandbox, on the original: notice that code draws random numbers.

A file by itself. What follows a draw is chance, also where it came out the same twice: a right
answer may draw in another order, so nothing of it is compared (call_player.py, handle_player.py).

    draws_from = note_draws()       # before the package is imported
    drawn = draws_from()            # from here on
    drawn()                         # True once a number was drawn
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

DRAWN = "drawn"
"""The first word of an outcome that was not written, because it followed a draw."""


def note_draws() -> Callable[[], Callable[[], bool]]:
    """Note draws from the generators of `random`, its own instances', the system's, NumPy's."""
    draws: list[None] = []

    def noted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            draws.append(None)
            return function(*arguments, **options)

        return call

    for owner, name in (
        (random.Random, "random"),
        (random.Random, "getrandbits"),
        (random, "_urandom"),  # of SystemRandom, and of `secrets`
        (os, "urandom"),
    ):
        setattr(owner, name, noted(getattr(owner, name)))

    def draws_from() -> Callable[[], bool]:
        before, states = len(draws), _states()
        return lambda: len(draws) > before or _states() != states

    return draws_from


def _states() -> list[str]:
    """The states of the shared generators, some of whose functions cannot be replaced."""
    states = [repr(random.getstate())]
    if numpy := sys.modules.get("numpy.random"):
        states.append(repr([str(part) for part in numpy.get_state()]))
    return states
