"""The layout of one forward over several branches; tokens/tree.py builds such plans from rows.

    trunk     t t t t t t t       Chain(ForwardSpan(0, 7, 0), ())
    branch          b b           Chain(ForwardSpan(7, 9, 3), (ForwardSpan(0, 3, 0),))
                                  it forks behind the third token of the trunk

Shapes: Q tokens of the forward, K tokens that it can see (those of the cache below, then its own).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardSpan:
    """Tokens [start, end) of a forward, at positions `depth` and on of a row.

    If `cached`, they are tokens of the forward whose cache this one uses.
    """

    start: int
    end: int
    depth: int
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Tokens that are consecutive in the forward and in a row.

    `above` are the spans above them, root first.
    """

    span: ForwardSpan
    above: tuple[ForwardSpan, ...]


class TreePlan(Protocol):
    """One forward: its tokens, their positions in their rows, their chains and their intervals.

    A token is below another one if its interval's start lies in the other's interval. `seen` holds
    positions and intervals of the K tokens; the first `offset` of them belong to `cached`.
    """

    @property
    def size(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def chains(self) -> tuple[Chain, ...]: ...
    @property
    def ids_Q(self) -> Tensor: ...
    @property
    def position_Q(self) -> Tensor: ...
    @property
    def interval_Q2(self) -> Tensor: ...
    @property
    def seen(self) -> tuple[Tensor, Tensor]: ...
    @property
    def cached(self) -> TreePlan | None: ...


def dense_mask(plan: TreePlan, *, window: int | None = None) -> Tensor:
    """The mask (Q, K) of visible tokens, from the intervals and not from the chains.

    `window` counts the token itself. Example: two rows (1, 2) and (1, 3) in one forward give [[1,
    0, 0], [1, 1, 0], [1, 0, 1]].
    """
    position_K, interval_K2 = plan.seen
    enter_Q, position_Q = plan.interval_Q2[:, :1], plan.position_Q[:, None]
    mask = (
        (interval_K2[:, 0] <= enter_Q) & (enter_Q < interval_K2[:, 1]) & (position_K <= position_Q)
    )
    return mask if window is None else mask & (position_Q - position_K < window)
