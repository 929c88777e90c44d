"""The outer optimiser: one step of SGD with Nesterov momentum on the mean pseudo-gradient.

    pseudo-gradient = theta_initial - theta_local

so plain SGD, which subtracts, moves towards the replicas; nothing is negated anywhere. The
arithmetic is that of torch.optim.SGD, operation by operation, so that N replicas end a round with
the bits of one process that runs it. Source: Douillard et al. 2023, DiLoCo (2311.08105), Alg. 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSettings:
    """Learning rate and momentum of the outer step; `nesterov` is published DiLoCo's."""

    learning_rate: float = 0.7
    momentum: float = 0.9


PRESETS = {
    "nesterov": OuterSettings(),
    "average": OuterSettings(learning_rate=1.0, momentum=0.0),
}
"""`average` takes the mean of the replicas' weights: no momentum moves the policy on its own."""
_BLOCK = 1 << 18
"""Numbers of a vector that stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class OuterState:
    """The global weights at the start of a round, and the momentum (zeros at the first)."""

    theta: Tensor
    momentum: Tensor

    @classmethod
    def start(cls, theta: Tensor) -> OuterState:
        """The state before the first round."""
        return cls(theta, torch.zeros_like(theta))


def mean_gradient(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of pseudo-gradients, summed in the order given.

    Equal weights are a sum and one division, which is what a single process would do.

    >>> mean_gradient([torch.tensor([1.0]), torch.tensor([4.0])], [1, 2]).item()
    3.0
    """
    if not deltas or len(deltas) != len(weights):
        raise DataError(f"{len(deltas)} pseudo-gradients with {len(weights)} weights")
    if len(set(weights)) == 1:
        return sum_gradients(deltas, ()).div_(len(deltas))
    return sum_gradients(deltas, weights).div_(sum(weights))


def sum_gradients(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The sum in the order given, in memory of its own; () for weights of one.

    >>> sum_gradients([torch.tensor([1.0]), torch.tensor([4.0])], [1, 2]).item()
    9.0
    """
    if not weights and len(deltas) > 1:
        total, done = deltas[0] + deltas[1], 2  # one pass over memory less than a copy
    else:
        total, done = deltas[0] * weights[0] if weights else deltas[0].clone(), 1
    for at, delta in enumerate(deltas[done:], start=done):
        total.add_(delta * weights[at] if weights else delta)
    return total


def outer_step(
    state: OuterState, gradient: Tensor, *, settings: OuterSettings, part: slice = slice(None)
) -> OuterState:
    """The state after one outer step on `part` of the weights; `state` is left as it is.

    >>> plain = PRESETS["average"]
    >>> state = OuterState.start(torch.tensor([2.0, 2.0]))
    >>> outer_step(state, torch.tensor([0.5, -0.5]), settings=plain).theta.tolist()
    [1.5, 2.5]
    """
    momentum, step = state.momentum, gradient
    if settings.momentum:
        momentum = _with_part(momentum, momentum[part].mul(settings.momentum).add_(gradient), part)
        step = gradient.add(momentum[part], alpha=settings.momentum)
    moved = state.theta[part].add(step, alpha=-settings.learning_rate)
    return OuterState(_with_part(state.theta, moved, part), momentum)


def _with_part(vector: Tensor, part_of_it: Tensor, part: slice) -> Tensor:
    """The vector with one part replaced; the part itself if it is all there is."""
    if part_of_it.numel() == vector.numel():
        return part_of_it
    changed = vector.clone()
    changed[part] = part_of_it
    return changed


def distance(a: Tensor, b: Tensor) -> float:
    """The Euclidean distance of two vectors, a block at a time: no third vector is made.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0]))
    5.0
    """
    pairs = zip(a.split(_BLOCK), b.split(_BLOCK), strict=True)
    return math.sqrt(sum(float((x - y).norm()) ** 2 for x, y in pairs))
