"""The plan of one forward over a prefix tree: which token is where, and what it may attend to.

tokens/tree.py builds such plans from rows; models/tree_forward.py runs them. The forward is one
packed sequence of chains, here the row t t t t t t t and a row that shares its first three tokens:

    index in the forward    0 1 2 3 4 5 6   7 8
    token                   t t t t t t t   b b
    position in its row     0 1 2 3 4 5 6   3 4

    Chain(ForwardSpan(start=0, end=7, depth=0), above=())
    Chain(ForwardSpan(start=7, end=9, depth=3), above=(ForwardSpan(0, 3, 0),))

Shapes: Q tokens of the forward, K tokens that they can attend to: those of the cache, if there is
one, then the Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardSpan:
    """Tokens [start, end) of a forward; the first is at position `depth` of its row.

    If `cached`, they are tokens of the forward whose keys and values this one reuses.
    """

    start: int
    end: int
    depth: int
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A span of tokens that are consecutive in the forward and in their row.

    `above` are the spans of the row's earlier tokens, from its beginning on: with them and its own
    earlier tokens, all that the span attends to.
    """

    span: ForwardSpan
    above: tuple[ForwardSpan, ...]


class TreePlan(Protocol):
    """One forward over a prefix tree.

    Visibility is given twice: by `chains`, which the fast attention uses, and by intervals. Each
    token has the interval [enter, exit) of its tree node, numbered in depth-first order: a token
    descends from another one if its `enter` lies in the other's interval.
    """

    @property
    def size(self) -> int:
        """Q."""
        ...

    @property
    def offset(self) -> int:
        """The number of tokens in the cache; 0 without one."""
        ...

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The chains, in the order of the forward."""
        ...

    @property
    def ids_Q(self) -> Tensor:
        """Token ids."""
        ...

    @property
    def position_Q(self) -> Tensor:
        """The position of each token in its rows."""
        ...

    @property
    def interval_Q2(self) -> Tensor:
        """[enter, exit) of each token's node."""
        ...

    @property
    def seen(self) -> tuple[Tensor, Tensor]:
        """(position_K, interval_K2), the cache's `offset` tokens first."""
        ...

    @property
    def cached(self) -> TreePlan | None:
        """The plan of the forward that filled the cache."""
        ...


def dense_mask(plan: TreePlan, *, window: int | None = None) -> Tensor:
    """The attention mask (Q, K), True where a token is visible; from intervals, not from chains.

    `window` is the size of a sliding window, the token itself included. For example, the rows (1,
    2) and (1, 3) in one forward give [[1, 0, 0], [1, 1, 0], [1, 0, 1]].
    """
    position_K, interval_K2 = plan.seen
    enter_Q, position_Q = plan.interval_Q2[:, :1], plan.position_Q[:, None]
    mask = (
        (interval_K2[:, 0] <= enter_Q) & (enter_Q < interval_K2[:, 1]) & (position_K <= position_Q)
    )
    return mask if window is None else mask & (position_Q - position_K < window)
