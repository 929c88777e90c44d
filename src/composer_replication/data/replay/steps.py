"""Choose the turns to ask the teachers about: the mistaken ones, a random sample, or all.

    steps = choose_steps(session, sites={3, 19}, sampled=4, seed=7)
    [(step.turn, step.why) for step in steps]       # [(3, "site"), (8, "sampled"), ...]

A turn right after an error is left out, even if it is a mistake itself: the environment has just
told the student what was wrong, so no pair is made there. Never asked about: copied messages, those
without text or calls, those that a human interrupted.
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
    """One turn to ask about, and why, e.g. ReplayStep(turn=7, why="site")."""

    turn: int
    why: Why


def choose_steps(
    session: Session, *, sites: Collection[int] = (), sampled: int = 0, seed: int = 0
) -> tuple[ReplayStep, ...]:
    """Return the turns at `sites` and `sampled` others, in order.

    The draw depends on the seed and the session's id alone.
    """
    askable = [step.turn for step in all_steps(session) if not follows_error(session, step.turn)]
    others = [number for number in askable if number not in sites]
    drawn = set(random.Random(f"{seed}:{session.id}").sample(others, min(sampled, len(others))))
    return tuple(
        ReplayStep(turn, "site" if turn in sites else "sampled")
        for turn in askable
        if turn in sites or turn in drawn
    )


def all_steps(session: Session) -> tuple[ReplayStep, ...]:
    """Return every turn that can be asked about, in order."""
    return tuple(
        ReplayStep(number, "all")
        for number, turn in enumerate(session.turns)
        if turn.role == "assistant" and not why_not_asked(session, number)
    )
