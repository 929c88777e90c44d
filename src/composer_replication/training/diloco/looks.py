"""When a replica that waits looks at the store, and at what: a look costs a request.

    looks = Looks(timing=timing, since=clock.monotonic())
    first, pause = looks.begin(clock.monotonic())    # seconds until the first look, and after it

The pause is a share of the round's own length, and grows by three quarters each time. So the
number of looks grows with the logarithm of how late the others are, and looking too late loses at
most three quarters of what was waited anyway, and that share. The first look comes when most of the
last rounds' wait is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_SHARE_OF_ROUND = 0.0025
_FIRST_LOOK = 0.75
_SECOND_LOOK = 1.2
_GROWTH = 1.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a replica waits, in its own monotonic seconds.

    `grace_s` from the moment a quorum has offered, `stall_s` for any outcome at all; between two
    looks `poll_s` or more. In a tree the pauses grow to `max_poll_s`, else to `grace_s`.
    """

    grace_s: float = 60.0
    stall_s: float = 3600.0
    poll_s: float = 0.02
    max_poll_s: float = 2.0


class Look(Enum):
    """What a look asks for; offers and the commit have names, and need no LIST."""

    ALL = "all keys of the round"
    OFFER = "the next offer"
    COMMIT = "the commit"


TURNS = (Look.ALL, Look.OFFER, Look.COMMIT)
"""Looks in turn. By name, what nobody expected is not seen: hence all keys every third time."""


@dataclass(slots=True, kw_only=True)
class Looks:
    """The pauses of one replica, from the length of its rounds and from how long it waited last."""

    timing: Timing
    since: float
    _usual_s: float = 0.0
    _waits: list[float] = field(default_factory=list)

    def begin(self, now: float) -> tuple[float, float]:
        """The seconds until the first look, and those after it; `now` the own offer stands.

        >>> Looks(timing=Timing(), since=0.0).begin(600.0)
        (0.0, 1.5)
        """
        length, self.since = now - self.since, now
        first = self._usual_s * _FIRST_LOOK if self._usual_s > self.timing.poll_s else 0.0
        pause = max(self._usual_s * (_SECOND_LOOK - _FIRST_LOOK), length * _SHARE_OF_ROUND)
        return min(first, self.timing.grace_s), self.longer(pause / _GROWTH)

    def longer(self, pause: float) -> float:
        """The pause after the next look.

        >>> Looks(timing=Timing(grace_s=20.0), since=0.0).longer(6.0)
        10.5
        """
        timing = self.timing
        return min(max(timing.poll_s, pause * _GROWTH), max(timing.grace_s, timing.max_poll_s))

    def learn(self, early_s: float, late_s: float) -> None:
        """Remember how long those took who were waited for: between the last look that came too
        early and the one that did not. A long wait counts once it was seen twice, and the first
        round, before which replicas start, not at all."""
        self._waits.append((early_s + late_s) / 2)
        self._usual_s = min(self._waits[-2:]) if len(self._waits) > 2 else 0.0
        del self._waits[1:-2]
