"""Composer 2's length penalty: the cost of an episode on a concave scale.

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),  at q = 1: ln(1 + k x) / k
    x    = weighted sum of thinking, tool-calling, tool-output and message tokens, calls and turns

It grows with x, ever more slowly, so easy tasks are pushed to be short and hard ones may be long.
The formula is from Cursor's Composer 2 report; its k, q and weights were not published, so the
defaults (core/config/train_settings.py) are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from composer_replication.core.config.train_settings import LengthSettings
from composer_replication.core.trace import Session, Text, Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The effort of an episode: tokens by kind, then numbers of calls and turns.

    Example: Effort(thinking=0, calling=60, output=41, message=9, calls=4, turns=5)
    """

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
    """The effort of a session that our student sampled.

    `count` gives the tokens of a text, e.g. renderer.codec.count. The tokens of a sampled message
    are split up: thinking and text by their own count; the rest is tool-calling, or message if
    there is no call. No sampled token is lost or counted twice.
    """
    totals = dict.fromkeys(("thinking", "calling", "output", "message", "calls", "turns"), 0)
    for turn in session.turns:
        totals["output"] += sum(count(result.text) for result in turn.results)
        if turn.sampled is None:
            continue
        num_sampled = len(turn.sampled.ids)
        thinking = min(
            num_sampled,
            sum(count(block.text) for block in turn.blocks if isinstance(block, Thinking)),
        )
        text = min(
            num_sampled - thinking,
            sum(count(block.text) for block in turn.blocks if isinstance(block, Text)),
        )
        remaining = num_sampled - thinking - text
        totals["thinking"] += thinking
        totals["calling"] += remaining if turn.calls else 0
        totals["message"] += text if turn.calls else text + remaining
        totals["calls"] += len(turn.calls)
        totals["turns"] += 1
    return Effort(**totals)


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
    """The deduction from a session's reward: weight * C(x), 0 or more."""
    return settings.weight * penalty(
        weighed(effort(session, count=count), settings), k=settings.k, q=settings.q
    )
