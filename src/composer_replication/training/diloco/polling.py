"""When a waiting replica polls the store for the round's commit, and what it asks for.

`Exchange.settle` (exchange.py) uses it between this replica's own offer and the end of the round:

    schedule = PollSchedule(timing=timing, round_began_s=clock.monotonic())
    ...                                                  # the round's training steps, and the offer
    first_s, pause_s = schedule.begin_wait(clock.monotonic())
    clock.sleep(first_s)                                 # then poll; if there is no commit yet:
    clock.sleep(pause_s)
    pause_s = schedule.next_pause(pause_s)

Object stores bill each request, and a slow replica may be minutes late, so pauses back off
exponentially, starting from a fraction of the round's length. The number of polls grows with the
logarithm of the lateness. The price is that a commit is noticed late: by at most three quarters of
the time waited until it was written, plus the first pause. If the last rounds had a wait, the first
poll comes only when most of such a wait is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_FIRST_PAUSE = 0.0025
"""The shortest first pause, as a share of the round's length."""
_FIRST_POLL, _SECOND_POLL = 0.75, 1.2
"""When the first two polls come, as shares of the usual wait."""
_GROWTH = 1.75
"""The factor from one pause to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a replica waits, in seconds of its own monotonic clock.

    `grace_s` is the wait for the remaining replicas once a quorum has offered; `stall_s` the wait
    for any commit before SyncError is raised. Pauses between polls are at least `poll_s`; they grow
    up to `max_poll_s` in gather mode "tree", up to `grace_s` in the others.
    """

    grace_s: float = 60.0
    stall_s: float = 3600.0
    poll_s: float = 0.02
    max_poll_s: float = 2.0


class PollTarget(Enum):
    """What one poll asks the store for: a LIST of the round, or a GET of one key whose name is
    known."""

    ALL_KEYS = "all keys of the round"
    NEXT_OFFER = "the next offer"
    COMMIT = "the commit"


POLL_CYCLE = (PollTarget.ALL_KEYS, PollTarget.NEXT_OFFER, PollTarget.COMMIT)
"""The targets of successive polls. A GET is cheaper than a LIST, but only a LIST finds the offer of
a replica that nobody expected, hence one in three."""


@dataclass(slots=True, kw_only=True)
class PollSchedule:
    """The pauses between one replica's polls, derived from the length of its rounds and from how
    long it waited in the last ones."""

    timing: Timing
    round_began_s: float
    _usual_wait_s: float = 0.0
    _waits_s: list[float] = field(default_factory=list)

    def begin_wait(self, now_s: float) -> tuple[float, float]:
        """(seconds until the first poll, pause after it). Call it when this replica has offered;
        the next round is measured from here.

        >>> PollSchedule(timing=Timing(), round_began_s=0.0).begin_wait(600.0)  # 0.25 % of 600 s
        (0.0, 1.5)
        """
        round_s, self.round_began_s = now_s - self.round_began_s, now_s
        usual_s = self._usual_wait_s
        first_s = usual_s * _FIRST_POLL if usual_s > self.timing.poll_s else 0.0
        pause_s = max(usual_s * (_SECOND_POLL - _FIRST_POLL), round_s * _FIRST_PAUSE)
        return min(first_s, self.timing.grace_s), self._bounded(pause_s)

    def next_pause(self, pause_s: float) -> float:
        """The pause after one of `pause_s` seconds.

        >>> PollSchedule(timing=Timing(grace_s=20.0), round_began_s=0.0).next_pause(6.0)
        10.5
        """
        return self._bounded(pause_s * _GROWTH)

    def record_wait(self, earliest_s: float, latest_s: float) -> None:
        """Record how long the last expected replica kept this one waiting: between `earliest_s`,
        at the last poll that found no commit, and `latest_s`, at the poll that found it.

        The usual wait is the shorter of the last two, so a single long wait changes nothing. The
        first round does not count, because replicas start up before it.
        """
        self._waits_s.append((earliest_s + latest_s) / 2)
        self._usual_wait_s = min(self._waits_s[-2:]) if len(self._waits_s) > 2 else 0.0
        del self._waits_s[1:-2]

    def _bounded(self, pause_s: float) -> float:
        longest_s = max(self.timing.grace_s, self.timing.max_poll_s)
        return min(max(self.timing.poll_s, pause_s), longest_s)
