"""Which turns of a long session share one sequence.

A window is a head (system messages, tools, the first human message) and a contiguous run of turns. It begins where no tool result
lacks its call and ends behind a message that is trained or a target; no message is cut. Windows follow one another from left to
right, each planned around the first position that no earlier window covers:

    positions    0 1 2 3 4 5 6 7 8 9 ...          head = (0,)   a = the first position still to be covered
    window 1     0 1 2 3 4 5                      begins at the start
    window 2     0     3 4 5 6 7 8                a = 6: up to half of the budget stands before it, the rest behind it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.core.trace import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a segment costs: tokens of the head (with tools and preamble), of each turn, and where a run may begin.

    Positions count the turns of the segment's conversation. Example: Plan(overhead=200, tokens=(30, 80, 500), head=(0,), starts=(0, 1))
    """

    overhead: int
    tokens: tuple[int, ...]
    head: tuple[int, ...]
    starts: tuple[int, ...]

    def cost(self, start: int, end: int) -> int:
        """Tokens of the head and the turns [start, end); a head turn inside the run counts once."""
        inside = sum(self.tokens[start:end])
        return self.overhead + inside - sum(self.tokens[p] for p in self.head if start <= p < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The head's positions before the run, and the run [start, end); `positions` are both in order."""

    head: tuple[int, ...]
    start: int
    end: int

    @property
    def positions(self) -> tuple[int, ...]:
        """All positions of the window, in order."""
        return (*(p for p in self.head if p < self.start), *range(self.start, self.end))


def head_positions(turns: Sequence[Turn]) -> tuple[int, ...]:
    """The system messages at the start, and the first message of a human (or the summary that stands for it after a compaction)."""
    head: list[int] = []
    for position, turn in enumerate(turns):
        if turn.role != "system":
            break
        head.append(position)
    users = [p for p, turn in enumerate(turns) if turn.role == "user"]
    asked = [p for p in users if turns[p].author == "human" or turns[p].tag == "compact_summary"]
    return (*head, *(asked or users)[:1])


def run_starts(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Positions where a run may begin: no result from there on answers a call before it."""
    made: dict[str, int] = {}
    needs = list(range(len(turns)))  # needs[p]: the earliest position that turn p refers to
    for position, turn in enumerate(turns):
        made.update((call.id, position) for call in turn.calls)
        needs[position] = min([made[r.call_id] for r in turn.results if r.call_id in made], default=position)
    starts: list[int] = []
    earliest = len(turns)
    for position in reversed(range(len(turns))):
        earliest = min(earliest, needs[position])
        if earliest == position:
            starts.append(position)
    return tuple(reversed(starts))


def before(plan: Plan, position: int, *, budget: int, room: int) -> int | None:
    """The earliest start whose run up to and including `position` costs at most `budget`; None if even the latest one leaves no room.

    The latest start is taken when only it fits `room`, the hard limit, which the budget may be a part of.
    """
    best: int | None = None
    for start in reversed([s for s in plan.starts if s <= position]):
        cost = plan.cost(start, position + 1)
        if cost > (room if best is None else budget):
            break
        best = start
    return best


def windows(plan: Plan, *, needed: Sequence[int], extra: Mapping[int, int], max_tokens: int) -> Iterator[Window | int]:
    """Windows that cover every needed position once, from left to right; a position that fits in none is given back as it is.

    `extra[p]` are tokens that must also fit when p is a target (its hint). A window ends with the last needed position that fits.
    """
    covered, wanted = -1, set(needed)
    for position in sorted(wanted):
        if position <= covered:
            continue
        room = max_tokens - extra.get(position, 0)
        start = before(plan, position, budget=min(max_tokens // 2, room), room=room)
        if start is None:
            yield position
            continue
        last, cost = position, plan.cost(start, position + 1)
        for following in range(position + 1, len(plan.tokens)):
            cost += plan.tokens[following] if following not in plan.head else 0
            if cost + extra.get(following, 0) > max_tokens:
                break  # a target whose hint does not fit here gets a window of its own
            if following in wanted:
                last = following
        yield Window(head=plan.head, start=start, end=last + 1)
        covered = last


def later_starts(plan: Plan, window: Window, *, keep: Collection[int]) -> Iterator[Window]:
    """The same window with fewer turns at its start, for as long as it still holds all positions of `keep`."""
    for start in plan.starts:
        if window.start < start <= min(keep):
            yield Window(head=window.head, start=start, end=window.end)
