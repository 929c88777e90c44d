"""What a step is doing, in words: which of its passes over the micro-batches, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from composer_replication.core.time_left import WorkLeft, eta

Part = TypeVar("Part")

FORWARD, WITH_BACKWARD = 1.0, 3.0
"""The cost of a part without and with the backward, which takes twice the forward's time."""


@dataclass(frozen=True, slots=True)
class StepPass:
    """One pass over a step's micro-batches: what it is for, and the cost of a part.

    Example: StepPass("first norms", cost=FORWARD)
    """

    name: str
    cost: float = WITH_BACKWARD


class StepProgress:
    """Counts the parts of a step over all its passes, so the count only goes forward.

    >>> norms = StepPass("first norms", cost=FORWARD)
    >>> progress = StepProgress([norms, StepPass("backward")], parts=2)
    >>> for part in progress.parts_of(norms, ["a", "b"]):
    ...     progress()
    'part 1 of 4, first norms, eta measuring'
    'part 2 of 4, first norms, eta 0s'
    """

    def __init__(
        self,
        passes: Sequence[StepPass],
        *,
        parts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._pass, self._part = clock, StepPass(""), 0
        self._total = len(passes) * parts
        cost = sum(each.cost for each in passes) * parts
        self._work = WorkLeft(total=cost, began=clock())

    def parts_of(self, of: StepPass, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the parts of a pass, and count each: it has ended when the next is asked for."""
        self._pass = of
        for part in parts:
            self._part += 1
            yield part
            self._work.add(of.cost, now=self._clock())

    def __call__(self) -> str:
        """The phase, e.g. "part 3 of 8, backward, eta 12s"."""
        left = eta(self._work.seconds(now=self._clock()))
        return f"part {self._part} of {self._total}, {self._pass.name}, eta {left}"
