"""TAID's schedule: how far the mixture of losses/taid.py has moved from student to teacher.

    first update:  only the loss is stored
    then           change = (previous - loss) / (previous + 1e-15)
                   momentum = beta momentum + (1 - beta) change
                   floor = t_start + (t_end - t_start) step / steps
                   t = min(t_end, max(floor, t + alpha sigmoid(momentum) (1 - t)))

As in SakanaAI/TAID. sigmoid(0) = 1/2, so the adaptive part adds at most alpha (1 - t) a step: with
the default 5e-4 and fewer than about a thousand steps the linear floor decides. One rule is added:
**a step without a site is not an update.** Its loss is 0 because nothing was measured; counted as a
measurement, it would make the next change about -1e15, and the momentum would freeze t for
thousands of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class TaidSchedule:
    """TAID's t and its state; feed it the step's global mean of `taid`, a cross-entropy, not a KL.

    >>> schedule = TaidSchedule(num_steps=1000)
    >>> schedule.update(2.0, step=0, tokens=40), schedule.update(1.9, step=1, tokens=40)
    (0.4, 0.4006)
    >>> schedule.update(0.0, step=2, tokens=0)
    0.4006

    `adaptive=False` is the linear part alone; as published it is not cut at t_end, and `taid`
    refuses a t above 1. All fields are plain numbers, so a checkpoint can hold them. Raises
    ValueError for settings outside the published bounds.
    """

    num_steps: int
    t_start: float = 0.4
    t_end: float = 1.0
    alpha: float = 5e-4
    beta: float = 0.99
    adaptive: bool = True
    t: float = -1.0
    previous_loss: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, not {self.num_steps}")
        if not (
            0.0 <= self.t_start < 1.0
            and 0.0 < self.t_end <= 1.0
            and 0.0 <= self.alpha <= 1.0
            and 0.0 <= self.beta < 1.0
        ):
            raise ValueError(
                f"out of bounds: t_start {self.t_start}, t_end {self.t_end}, alpha {self.alpha},"
                f" beta {self.beta}"
            )
        if self.t < 0.0:
            self.t = self.t_start

    def update(self, loss: float, *, step: int, tokens: int) -> float:
        """Record one step's loss and return the new t.

        `tokens` is the step's global count of loss tokens; with 0 nothing changes. `step` counts
        from 0. Raises ValueError for a loss that is not finite.
        """
        if tokens == 0:
            return self.t
        if not math.isfinite(loss):
            raise ValueError(f"TAID's schedule needs a finite loss, not {loss}")
        if self.previous_loss is None:
            self.previous_loss = loss
            return self.t
        change = (self.previous_loss - loss) / (self.previous_loss + 1e-15)
        self.momentum = self.beta * self.momentum + (1.0 - self.beta) * change
        self.previous_loss = loss
        floor = self.t_start + (self.t_end - self.t_start) * step / self.num_steps
        gain = self.alpha * _sigmoid(self.momentum) * (1.0 - self.t)
        self.t = min(self.t_end, max(floor, self.t + gain)) if self.adaptive else floor
        return self.t

    def state(self) -> dict[str, float | None]:
        """The values that change, for a checkpoint; the settings are the run's."""
        return {"t": self.t, "previous_loss": self.previous_loss, "momentum": self.momentum}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.t, self.previous_loss, self.momentum = (
            state["t"],
            state["previous_loss"],
            state["momentum"],
        )


def _sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
