"""Which messages the teachers are asked about: the mistaken ones, some others drawn at random, or
all.

    ask_about = choose_steps(session, sites={3, 19}, sampled=4, seed=7)
    [(step.turn, step.why) for step in ask_about]       # [(3, "site"), (8, "sampled"), (19, "site"), ...]

A message right after an error is left out, also where it is a mistake itself: there the environment
has just told the student what was wrong, and no pair is made of it. Never asked about: copied
messages, those that say and do nothing, those that a human cut off.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from composer_replication.core.trace import Session
from composer_replication.data.replay.ask import follows_error, why_not_asked

Why = Literal["site", "sampled", "all"]


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One message that is asked about, and why, e.g. ReplayStep(turn=7, why="site")."""

    turn: int
    why: Why


def choose_steps(
    session: Session, *, sites: Collection[int] = (), sampled: int = 0, seed: int = 0
) -> tuple[ReplayStep, ...]:
    """The messages at `sites` and `sampled` others, in order. The draw depends on the seed and the
    session's id alone."""
    open_to = [step.turn for step in all_steps(session) if not follows_error(session, step.turn)]
    others = [number for number in open_to if number not in sites]
    drawn = set(random.Random(f"{seed}:{session.id}").sample(others, min(sampled, len(others))))
    return tuple(
        ReplayStep(n, "site" if n in sites else "sampled")
        for n in open_to
        if n in sites or n in drawn
    )


def all_steps(session: Session) -> tuple[ReplayStep, ...]:
    """Every message that can be asked about, in order."""
    return tuple(
        ReplayStep(n, "all")
        for n, turn in enumerate(session.turns)
        if turn.role == "assistant" and not why_not_asked(session, n)
    )
