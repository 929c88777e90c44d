"""Composer 2's length penalty: what an episode cost, on a concave scale.

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),  at q = 1: ln(1 + k x) / k
    x    = weighted sum of thinking, tool-calling, tool-output and message tokens, of calls and of turns

It grows with x and ever more slowly, so an easy task is pressed to be short and a hard one may be
long. The formula is that of Cursor's Composer 2 report; its k, q and weights were not published, so
the defaults (core/config/train_settings.py) are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from composer_replication.core.config.train_settings import LengthSettings
from composer_replication.core.trace import Session, Text, Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What an episode took, e.g. Effort(thinking=0, calling=60, output=41, message=9, calls=4,
    turns=5): tokens, then counts."""

    thinking: int
    calling: int
    output: int
    message: int
    calls: int
    turns: int


def penalty(x: float, *, k: float, q: float) -> float:
    """C(x); raises ValueError for a negative x or q, or a k that is not positive.

    >>> penalty(3.0, k=1.0, q=0.5), penalty(3.0, k=1.0, q=0.0), round(penalty(3.0, k=1.0, q=1.0), 4)
    (2.0, 3.0, 1.3863)
    """
    if x < 0 or k <= 0 or q < 0:
        raise ValueError(f"x and q must be at least 0 and k above 0, not x={x}, q={q}, k={k}")
    if abs(1.0 - q) < 1e-9:
        return math.log1p(k * x) / k
    return math.expm1((1.0 - q) * math.log1p(k * x)) / (k * (1.0 - q))


def effort(session: Session, *, count: Callable[[str], int]) -> Effort:
    """The effort of a session that our student sampled; `count` gives the tokens of a text, e.g.
    renderer.codec.count.

    The tokens of a sampled message are shared out: thinking and text by their own count, the rest
    is tool-calling, or message where there is no call. Nothing sampled is lost or counted twice.
    """
    found = dict.fromkeys(("thinking", "calling", "output", "message", "calls", "turns"), 0)
    for turn in session.turns:
        found["output"] += sum(count(result.text) for result in turn.results)
        if turn.sampled is None:
            continue
        left = len(turn.sampled.ids)
        thinking = min(
            left, sum(count(block.text) for block in turn.blocks if isinstance(block, Thinking))
        )
        text = min(
            left - thinking,
            sum(count(block.text) for block in turn.blocks if isinstance(block, Text)),
        )
        rest = left - thinking - text
        found["thinking"] += thinking
        found["calling"] += rest if turn.calls else 0
        found["message"] += text if turn.calls else text + rest
        found["calls"] += len(turn.calls)
        found["turns"] += 1
    return Effort(**found)


def weighed(effort: Effort, settings: LengthSettings) -> float:
    """x: the effort under the weights of the settings."""
    tokens = (
        settings.thinking * effort.thinking
        + settings.calling * effort.calling
        + settings.output * effort.output
    )
    return (
        tokens
        + settings.message * effort.message
        + settings.call * effort.calls
        + settings.turn * effort.turns
    )


def length_penalty(
    session: Session, settings: LengthSettings, *, count: Callable[[str], int]
) -> float:
    """What is taken off the reward of a session: weight * C(x), 0 or more."""
    return settings.weight * penalty(
        weighed(effort(session, count=count), settings), k=settings.k, q=settings.q
    )
