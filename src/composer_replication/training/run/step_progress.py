"""What a step is doing, in words: which of its passes over the micro-batches, which part of other
work that is counted, and the time left."""

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


class CountedPhase:
    """The phase of work whose parts are counted; `ended` says how many have ended by now.

    >>> phase = CountedPhase("monitor tasks", total=4, ended=lambda: 1)
    >>> phase().split(", eta ")[0]
    'monitor tasks: 1 of 4'
    """

    def __init__(
        self,
        name: str,
        *,
        total: int,
        ended: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._ended, self._clock = name, ended, clock
        self._work = WorkLeft(total=total, began=clock())

    def __call__(self) -> str:
        """The phase, e.g. "monitor tasks: 3 of 8, eta 12s"."""
        now, ended = self._clock(), self._ended()
        if ended > self._work.done:
            self._work.add(ended - self._work.done, now=now)
        left = eta(self._work.seconds(now=now))
        return f"{self._name}: {ended} of {self._work.total}, eta {left}"


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
