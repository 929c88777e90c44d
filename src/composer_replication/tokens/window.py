"""Which turns of a long session share one sequence.

A window is a head (system messages, tools, the first human message), turns that were picked because
a target refers to them, and a contiguous run of turns. It ends behind a message that is trained or
a target; no message is cut. A call and its results stay together: a run begins where no result
lacks its call, and picked turns bring theirs. What lies between is left out, and nothing is said in
its place.

    positions    0 1 2 3 4 5 6 7 8 9 ...          head = (0,)   8 = a target that refers to 2, which read a file: (2, 3) is its call's unit
    its window   0   2 3     6 7 8                as many turns directly above it as fit beside the head and what it refers to

First come the windows of targets, each as long as the budget above the target allows; neighbours
share one while none of them gives up more than an eighth of its context. Then windows for what only
cross-entropy trains: messages that no window so far gives half of the budget as context are covered
from left to right, each window planned around the first of them; what is left of its budget then
goes above it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from composer_replication.core.trace import Turn

SHARED = 8
"""A target gives up at most the 8th part of its own window's context in order to share a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCosts:
    """What a segment costs: tokens of the head (with tools and preamble), of each turn, and where a
    run may begin.

    Positions count the turns of the segment's conversation; `units[p]` are the positions that stay
    together with p (none = each alone).
    Example: SegmentCosts(overhead=200, tokens=(30, 80, 500), head=(0,), starts=(0, 1), units=((0,),
    (1, 2), (1, 2)))
    """

    overhead: int
    tokens: tuple[int, ...]
    head: tuple[int, ...]
    starts: tuple[int, ...]
    units: tuple[tuple[int, ...], ...] = ()

    def cost(self, start: int, end: int, picked: Collection[int] = ()) -> int:
        """Tokens of the head, of the turns [start, end) and of those picked above them; a turn
        counts once."""
        inside = sum(self.tokens[start:end]) - sum(
            self.tokens[p] for p in self.head if start <= p < end
        )
        return (
            self.overhead
            + inside
            + sum(self.tokens[p] for p in picked if p < start and p not in self.head)
        )

    def unit(self, position: int) -> tuple[int, ...]:
        """The positions that stay together with this one, itself among them."""
        return self.units[position] if self.units else (position,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTarget:
    """What a target asks of its window: tokens that must also fit (its hint), and positions above
    it that it refers to."""

    extra: int = 0
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Positions before the run (the head's, and those picked), the run [start, end), and what of it
    is trained here or a target.

    Example: Window(head=(0,), picked=(2, 3), start=6, end=9, covers=(8,)).positions -> (0, 2, 3, 6,
    7, 8)
    """

    head: tuple[int, ...]
    start: int
    end: int
    picked: tuple[int, ...] = ()
    covers: tuple[int, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """All positions of the window, in order."""
        return (
            *sorted(p for p in {*self.head, *self.picked} if p < self.start),
            *range(self.start, self.end),
        )


def head_positions(turns: Sequence[Turn]) -> tuple[int, ...]:
    """The system messages at the start, and the first message of a human (or the summary that
    stands for it after a compaction)."""
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
    needs = list(range(len(turns)))  # needs[p]: the earliest position that turn p refers to
    for call, result in _answers(turns):
        needs[result] = min(needs[result], call)
    starts: list[int] = []
    earliest = len(turns)
    for position in reversed(range(len(turns))):
        earliest = min(earliest, needs[position])
        if earliest == position:
            starts.append(position)
    return tuple(reversed(starts))


def units_of(turns: Sequence[Turn]) -> tuple[tuple[int, ...], ...]:
    """For each position those that it must stand together with: a message that calls, and every
    result of its calls."""
    groups: dict[int, set[int]] = {p: {p} for p in range(len(turns))}
    for call, result in _answers(turns):
        if groups[call] is not groups[result]:
            groups[call] |= groups[result]
            for position in groups[result]:
                groups[position] = groups[call]
    return tuple(tuple(sorted(groups[p])) for p in range(len(turns)))


def _answers(turns: Sequence[Turn]) -> Iterator[tuple[int, int]]:
    """(position of a call, position of a result of it)."""
    made: dict[str, int] = {}
    for position, turn in enumerate(turns):
        made.update((call.id, position) for call in turn.calls)
        yield from ((made[r.call_id], position) for r in turn.results if r.call_id in made)


def before(
    plan: SegmentCosts, position: int, *, budget: int, room: int, picked: Collection[int] = ()
) -> int | None:
    """The earliest start whose run up to and including `position` costs at most `budget`; None if
    even the latest one leaves no room.

    The latest start is taken when only it fits `room`, the hard limit, which the budget may be a
    part of.
    """
    aside = {p for p in picked if p <= position and p not in plan.head}
    cost, above = plan.cost(position + 1, position + 1, aside), position + 1
    best: int | None = None
    for number in reversed(range(bisect_right(plan.starts, position))):
        start = plan.starts[number]
        cost += sum(
            plan.tokens[p] for p in range(start, above) if p not in plan.head and p not in aside
        )
        above = start
        if cost > (room if best is None else budget):
            break
        best = start
    return best


def window_of(
    plan: SegmentCosts, position: int, *, target: WindowTarget, max_tokens: int
) -> Window | None:
    """One target's own window: what it refers to, the nearest first, and the turns directly above
    it; None where it does not fit.

    What it refers to is taken in only while the message and what must stand directly above it fit
    too.
    """
    room = max_tokens - target.extra
    start, picked = before(plan, position, budget=room, room=room), set[int]()
    for wanted in sorted(target.wanted, reverse=True):
        more = picked | {p for p in plan.unit(wanted) if p < position}
        if (
            start is not None
            and (found := before(plan, position, budget=room, room=room, picked=more)) is not None
        ):
            start, picked = found, more
    if start is None:
        return None
    return Window(
        head=plan.head,
        picked=tuple(sorted(picked)),
        start=start,
        end=position + 1,
        covers=(position,),
    )


def windows(
    plan: SegmentCosts,
    *,
    trained: Sequence[int],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Iterator[Window | int]:
    """Windows that cover every trained position and every target once; a position that fits in none
    is given back as it is.

    A window ends with the last position that it covers. Example: the one of the module's head
    covers (8,).
    """
    made: list[Window] = []
    for found in _of_targets(plan, targets, max_tokens):
        if isinstance(found, int):
            yield found
        else:
            made.append(found)
    left = sorted(set(trained) - set(targets))
    half = {p: before(plan, p, budget=max_tokens // 2, room=max_tokens) for p in left}
    for number, window in enumerate(made):
        longer = _longer(plan, window, left=left, targets=targets, max_tokens=max_tokens)
        taken = [
            p
            for p in left
            if longer.start <= p < longer.end
            and (least := half[p]) is not None
            and longer.start <= least
        ]
        made[number] = replace(
            longer,
            covers=tuple(sorted({*window.covers, *taken})),
            end=max([window.end, *(p + 1 for p in taken)]),
        )
        left = [p for p in left if p not in set(taken)]
    for found in _of_trained(plan, left, half, max_tokens):
        if isinstance(found, int):
            yield found
        else:
            made.append(found)
    yield from sorted(made, key=lambda w: (w.start, w.end))


def _of_targets(
    plan: SegmentCosts, targets: Mapping[int, WindowTarget], max_tokens: int
) -> Iterator[Window | int]:
    """Windows of targets from left to right; each takes in the next target while all of them keep
    (almost) what they would have alone."""
    shared: Window | None = None
    own: dict[int, Window] = {}
    for position in sorted(targets):
        alone = window_of(plan, position, target=targets[position], max_tokens=max_tokens)
        if alone is None:
            yield position
            continue
        own[position] = alone
        if shared is not None:
            both = _joined(
                plan, (*shared.covers, position), own=own, targets=targets, max_tokens=max_tokens
            )
            if both is None:
                yield shared
            shared = both or alone
        else:
            shared = alone
    if shared is not None:
        yield shared


def _joined(
    plan: SegmentCosts,
    positions: Sequence[int],
    *,
    own: Mapping[int, Window],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Window | None:
    """One window for several targets, or None where one of them would lose more than its share of
    context, or a turn it refers to."""
    picked = {p for position in positions for p in own[position].picked}
    room = max_tokens - max(targets[p].extra for p in positions)
    start = before(plan, positions[-1], budget=room, room=room, picked=picked)
    if start is None or start > positions[0]:
        return None
    window = Window(
        head=plan.head,
        picked=tuple(sorted(picked)),
        start=start,
        end=positions[-1] + 1,
        covers=tuple(positions),
    )
    for position in positions:
        alone = own[position]
        kept, wanted = (plan.cost(w.start, position, w.picked) for w in (window, alone))
        if SHARED * kept < (SHARED - 1) * wanted:
            return None
    return window


def _longer(
    plan: SegmentCosts,
    window: Window,
    *,
    left: Sequence[int],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Window:
    """The window up to the last trained message for which there is room behind its targets without
    taking anything from above them."""
    cost, end = plan.cost(window.start, window.end, window.picked), window.end
    trained = set(left)
    for following in range(window.end, len(plan.tokens)):
        cost += plan.tokens[following] if following not in plan.head else 0
        if cost > max_tokens:
            break
        end = following + 1 if following in trained else end
    return replace(window, end=end)


def _of_trained(
    plan: SegmentCosts, needed: Sequence[int], half: Mapping[int, int | None], max_tokens: int
) -> Iterator[Window | int]:
    """Windows for messages that only cross-entropy trains, from left to right: half of the budget
    above the first, then the rest."""
    covered, wanted = -1, set(needed)
    for position in needed:
        if position <= covered:
            continue
        start = half[position]
        if start is None:
            yield position
            continue
        last, cost = position, plan.cost(start, position + 1)
        for following in range(position + 1, len(plan.tokens)):
            cost += plan.tokens[following] if following not in plan.head else 0
            if cost > max_tokens:
                break
            if following in wanted:
                last = following
        earliest = before(plan, last, budget=max_tokens, room=max_tokens)
        covers = tuple(p for p in needed if position <= p <= last)
        yield Window(
            head=plan.head,
            start=min(start, start if earliest is None else earliest),
            end=last + 1,
            covers=covers,
        )
        covered = last


def later_starts(plan: SegmentCosts, window: Window, *, keep: Collection[int]) -> Iterator[Window]:
    """The same window with fewer turns at its start, for as long as it still holds all positions of
    `keep`; what was picked stays."""
    for start in plan.starts:
        if window.start < start <= min(keep):
            yield replace(window, start=start)
