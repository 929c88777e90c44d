"""Cut a long session into windows: the turns that share one training sequence of limited length.

tokens/dataset.py plans windows by the token counts of turns, and renders them afterwards. A window
is a head (system messages, tools, the first human message), turns that were picked because a target
refers to them, and a contiguous run of turns. It ends with a message that is trained or a target;
no message is cut. A call and its results stay together: a run begins where no result lacks its
call, and picked turns bring the rest of their unit. Turns in between are left out without a
placeholder.

    positions    0 1 2 3 4 5 6 7 8 9 ...    head = (0,); target 8 refers to 2, which read a file:
                                            (2, 3) is the unit of that call
    its window   0   2 3     6 7 8          as many turns directly above 8 as fit beside the rest

First come the windows of targets, each as long as the budget above the target allows; neighbours
share a window if none of them gives up more than an eighth of its context. Then come windows for
messages that only cross-entropy trains: those to which no window so far gives half of the budget as
context. They are covered from left to right, each window planned around the first of them; the rest
of its budget is added above it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from composer_replication.core.trace import Turn

SHARED = 8
"""A target gives up at most 1/8 of its own window's context in order to share a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCosts:
    """The token costs of a segment: head (with tools and preamble), each turn, and run starts.

    Positions count the turns of the segment's conversation; `starts` are positions at which a run
    may begin; `units[p]` are the positions that stay together with p (empty = each alone). Example:
    SegmentCosts(overhead=200, tokens=(30, 80, 500), head=(0,), starts=(0, 1), units=((0,), (1, 2),
    (1, 2)))
    """

    overhead: int
    tokens: tuple[int, ...]
    head: tuple[int, ...]
    starts: tuple[int, ...]
    units: tuple[tuple[int, ...], ...] = ()

    def cost(self, start: int, end: int, picked: Collection[int] = ()) -> int:
        """Tokens of the head, of turns [start, end) and of the picked turns above.

        Each turn counts once.
        """
        inside = sum(self.tokens[start:end]) - sum(
            self.tokens[p] for p in self.head if start <= p < end
        )
        return (
            self.overhead
            + inside
            + sum(self.tokens[p] for p in picked if p < start and p not in self.head)
        )

    def unit(self, position: int) -> tuple[int, ...]:
        """The positions that stay together with this one, including itself."""
        return self.units[position] if self.units else (position,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTarget:
    """The needs of a target in its window: extra tokens (its hint), and positions it refers to."""

    extra: int = 0
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Positions before the run (head and picked), the run [start, end), and what it covers.

    `covers` are the positions that are trained here or targets. Example: Window(head=(0,),
    picked=(2, 3), start=6, end=9, covers=(8,)).positions -> (0, 2, 3, 6, 7, 8)
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
    """The system messages at the start, and the first message of a human.

    After a compaction, the summary that replaces that message.
    """
    head: list[int] = []
    for position, turn in enumerate(turns):
        if turn.role != "system":
            break
        head.append(position)
    users = [p for p, turn in enumerate(turns) if turn.role == "user"]
    asked = [p for p in users if turns[p].author == "human" or turns[p].tag == "compact_summary"]
    return (*head, *(asked or users)[:1])


def run_starts(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Positions at which a run may begin: no result from there on answers an earlier call."""
    earliest_needed = list(
        range(len(turns))
    )  # needs[p]: the earliest position that turn p refers to
    for call, result in _call_results(turns):
        earliest_needed[result] = min(earliest_needed[result], call)
    starts: list[int] = []
    earliest = len(turns)
    for position in reversed(range(len(turns))):
        earliest = min(earliest, earliest_needed[position])
        if earliest == position:
            starts.append(position)
    return tuple(reversed(starts))


def units_of(turns: Sequence[Turn]) -> tuple[tuple[int, ...], ...]:
    """For each position, those that must stay with it: a call's message and all its results."""
    groups: dict[int, set[int]] = {p: {p} for p in range(len(turns))}
    for call, result in _call_results(turns):
        if groups[call] is not groups[result]:
            groups[call] |= groups[result]
            for position in groups[result]:
                groups[position] = groups[call]
    return tuple(tuple(sorted(groups[p])) for p in range(len(turns)))


def _call_results(turns: Sequence[Turn]) -> Iterator[tuple[int, int]]:
    """(position of a call, position of a result of it)."""
    calls: dict[str, int] = {}
    for position, turn in enumerate(turns):
        calls.update((call.id, position) for call in turn.calls)
        yield from ((calls[r.call_id], position) for r in turn.results if r.call_id in calls)


def earliest_start(
    costs: SegmentCosts, position: int, *, budget: int, room: int, picked: Collection[int] = ()
) -> int | None:
    """The earliest start of a run up to and including `position` that costs at most `budget`.

    None if even the latest start leaves no room. `room` is the hard limit, of which the budget may
    be a part: the latest start only has to fit `room`.
    """
    picked_above = {p for p in picked if p <= position and p not in costs.head}
    cost, above = costs.cost(position + 1, position + 1, picked_above), position + 1
    best: int | None = None
    for number in reversed(range(bisect_right(costs.starts, position))):
        start = costs.starts[number]
        cost += sum(
            costs.tokens[p]
            for p in range(start, above)
            if p not in costs.head and p not in picked_above
        )
        above = start
        if cost > (room if best is None else budget):
            break
        best = start
    return best


def target_window(
    costs: SegmentCosts, position: int, *, target: WindowTarget, max_tokens: int
) -> Window | None:
    """One target's own window; None if it does not fit.

    It holds the turns directly above the target, and the turns it refers to, the nearest first. The
    latter are included only while the message and what must be directly above it fit, too.
    """
    room = max_tokens - target.extra
    start, picked = earliest_start(costs, position, budget=room, room=room), set[int]()
    for wanted in sorted(target.wanted, reverse=True):
        candidate = picked | {p for p in costs.unit(wanted) if p < position}
        if (
            start is not None
            and (
                candidate_start := earliest_start(
                    costs, position, budget=room, room=room, picked=candidate
                )
            )
            is not None
        ):
            start, picked = candidate_start, candidate
    if start is None:
        return None
    return Window(
        head=costs.head,
        picked=tuple(sorted(picked)),
        start=start,
        end=position + 1,
        covers=(position,),
    )


def plan_windows(
    costs: SegmentCosts,
    *,
    trained: Sequence[int],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Iterator[Window | int]:
    """Windows that cover every trained position and every target once.

    A position that fits in no window is yielded as it is. A window ends with the last position that
    it covers. Example: the one in the module's docstring covers (8,).
    """
    # 1. Windows of targets: they come first because their context decides what the teacher knows.
    planned: list[Window] = []
    for window_or_position in _plan_target_windows(costs, targets, max_tokens):
        if isinstance(window_or_position, int):
            yield window_or_position
        else:
            planned.append(window_or_position)
    # 2. A trained message joins a target's window if it has half of the budget as context there.
    uncovered = sorted(set(trained) - set(targets))
    half_budget_starts = {
        p: earliest_start(costs, p, budget=max_tokens // 2, room=max_tokens) for p in uncovered
    }
    for number, window in enumerate(planned):
        longer = _extend_window(
            costs, window, uncovered=uncovered, targets=targets, max_tokens=max_tokens
        )
        newly_covered = [
            p
            for p in uncovered
            if longer.start <= p < longer.end
            and (half_budget_start := half_budget_starts[p]) is not None
            and longer.start <= half_budget_start
        ]
        planned[number] = replace(
            longer,
            covers=tuple(sorted({*window.covers, *newly_covered})),
            end=max([window.end, *(p + 1 for p in newly_covered)]),
        )
        uncovered = [p for p in uncovered if p not in set(newly_covered)]
    # 3. Windows for the remaining trained messages.
    for window_or_position in _plan_lm_ce_windows(costs, uncovered, half_budget_starts, max_tokens):
        if isinstance(window_or_position, int):
            yield window_or_position
        else:
            planned.append(window_or_position)
    yield from sorted(planned, key=lambda w: (w.start, w.end))


def _plan_target_windows(
    costs: SegmentCosts, targets: Mapping[int, WindowTarget], max_tokens: int
) -> Iterator[Window | int]:
    """Windows of targets from left to right.

    Each window takes in the next target while all of its targets keep (almost) the context that
    they would have alone.
    """
    shared: Window | None = None
    own_windows: dict[int, Window] = {}
    for position in sorted(targets):
        alone = target_window(costs, position, target=targets[position], max_tokens=max_tokens)
        if alone is None:
            yield position
            continue
        own_windows[position] = alone
        if shared is not None:
            joined = _join_targets(
                costs,
                (*shared.covers, position),
                own_windows=own_windows,
                targets=targets,
                max_tokens=max_tokens,
            )
            if joined is None:
                yield shared
            shared = joined or alone
        else:
            shared = alone
    if shared is not None:
        yield shared


def _join_targets(
    costs: SegmentCosts,
    positions: Sequence[int],
    *,
    own_windows: Mapping[int, Window],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Window | None:
    """One window for several targets.

    None if one of them would lose more than its share of context, or a turn it refers to.
    """
    picked = {p for position in positions for p in own_windows[position].picked}
    room = max_tokens - max(targets[p].extra for p in positions)
    start = earliest_start(costs, positions[-1], budget=room, room=room, picked=picked)
    if start is None or start > positions[0]:
        return None
    window = Window(
        head=costs.head,
        picked=tuple(sorted(picked)),
        start=start,
        end=positions[-1] + 1,
        covers=tuple(positions),
    )
    for position in positions:
        alone = own_windows[position]
        shared_context, own_context = (
            costs.cost(w.start, position, w.picked) for w in (window, alone)
        )
        if SHARED * shared_context < (SHARED - 1) * own_context:
            return None
    return window


def _extend_window(
    costs: SegmentCosts,
    window: Window,
    *,
    uncovered: Sequence[int],
    targets: Mapping[int, WindowTarget],
    max_tokens: int,
) -> Window:
    """The window with its end moved to the last message of `uncovered` that fits."""
    cost, end = costs.cost(window.start, window.end, window.picked), window.end
    trained = set(uncovered)
    for following in range(window.end, len(costs.tokens)):
        cost += costs.tokens[following] if following not in costs.head else 0
        if cost > max_tokens:
            break
        end = following + 1 if following in trained else end
    return replace(window, end=end)


def _plan_lm_ce_windows(
    costs: SegmentCosts,
    needed: Sequence[int],
    half_budget_starts: Mapping[int, int | None],
    max_tokens: int,
) -> Iterator[Window | int]:
    """Windows for messages that only cross-entropy trains, from left to right.

    Half of the budget goes above the first message, then the rest is filled.
    """
    covered, wanted = -1, set(needed)
    for position in needed:
        if position <= covered:
            continue
        start = half_budget_starts[position]
        if start is None:
            yield position
            continue
        last, cost = position, costs.cost(start, position + 1)
        for following in range(position + 1, len(costs.tokens)):
            cost += costs.tokens[following] if following not in costs.head else 0
            if cost > max_tokens:
                break
            if following in wanted:
                last = following
        earliest = earliest_start(costs, last, budget=max_tokens, room=max_tokens)
        covers = tuple(p for p in needed if position <= p <= last)
        yield Window(
            head=costs.head,
            start=min(start, start if earliest is None else earliest),
            end=last + 1,
            covers=covers,
        )
        covered = last


def shorter_windows(
    costs: SegmentCosts, window: Window, *, keep: Collection[int]
) -> Iterator[Window]:
    """The same window with fewer turns at its start, while it still holds all positions of `keep`.

    Picked turns stay.
    """
    for start in costs.starts:
        if window.start < start <= min(keep):
            yield replace(window, start=start)
