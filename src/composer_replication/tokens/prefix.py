"""The context of a model at one message, restored from a log exactly as `build` renders it.

    prefix = restore(session, turn=7, renderer=renderer, max_tokens=4096, room=256)
    prefix.turns         # the head and the messages before turn 7, as they were in its context
    prefix.numbers       # their numbers in the session; 7 is not among them
    prefix.num_tokens    # up to and including the generation prompt

Head, window and ids are the same as in `build` for a target there (tokens/window.py): a session
that fits is kept whole, otherwise the messages directly above it and the turns that it refers to.
`room` tokens stay free for the message to be written, in place of the log's own message and its
hint. If targets share a window in `build`, the first of them has up to an eighth less context
there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Segment, Session, Text, ToolCall, Turn
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.window import (
    SegmentCosts,
    WindowTarget,
    head_positions,
    run_starts,
    shorter_windows,
    target_window,
    units_of,
)

_PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """One segment: its conversation as the model saw it, session turn numbers, and token costs."""

    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]
    costs: SegmentCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The messages before one turn of a session, and their length once rendered."""

    session: Session
    turn: int
    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]
    num_tokens: int


def lay_out_segment(session: Session, segment: Segment, *, renderer: Renderer) -> SegmentLayout:
    """A segment laid out for windows: the context at its beginning, then its own turns.

    Raises RenderError of the template.
    """
    numbers = [i for a, b in segment.context for i in range(a, b)] + list(
        range(segment.start, segment.end)
    )
    turns = [session.turn_in_view(i, at=segment.start) for i in numbers]
    head = head_positions(turns)
    overhead, tokens = renderer.measure(turns, head=[turns[p] for p in head], tools=session.tools)
    costs = SegmentCosts(
        overhead=overhead,
        tokens=tuple(tokens),
        head=head,
        starts=run_starts(turns),
        units=units_of(turns),
    )
    return SegmentLayout(turns=tuple(turns), numbers=tuple(numbers), costs=costs)


def wanted_above(
    turns: Sequence[Turn], numbers: Sequence[int], at: int, *, refers_to: Collection[int]
) -> tuple[int, ...]:
    """Positions that the window of the message at `at` should hold besides its run.

    They are the turns that it refers to and the last request of a human.
    """
    human_turns = [p for p in range(at) if turns[p].role == "user" and turns[p].author == "human"]
    return tuple(sorted({p for p in range(at) if numbers[p] in refers_to} | set(human_turns[-1:])))


def restore(
    session: Session,
    *,
    turn: int,
    renderer: Renderer,
    max_tokens: int,
    room: int,
    refers_to: Collection[int] = (),
) -> Prefix | None:
    """The context of one turn, in the window that `build` would give it as a target.

    None if not even the shortest window leaves room. Raises DataError for a turn that no model
    wrote, RenderError if the template cannot be spanned.
    """
    if not 0 <= turn < len(session.turns) or session.turns[turn].role != "assistant":
        raise DataError(
            f"turn {turn} is no message of a model",
            where=session.id,
            fix="run again: recompose sites",
        )
    layout = lay_out_segment(session, session.segment_of(turn), renderer=renderer)
    at = layout.numbers.index(turn)
    # The new message, of `room` tokens, takes the place of the log's own.
    tokens = (*layout.costs.tokens[:at], room, *layout.costs.tokens[at + 1 :])
    costs = replace(layout.costs, tokens=tokens)
    target = WindowTarget(
        wanted=wanted_above(layout.turns, layout.numbers, at, refers_to=refers_to)
    )
    window = target_window(costs, at, target=target, max_tokens=max_tokens)
    for attempt in (
        (window, *shorter_windows(costs, window, keep=[at])) if window is not None else ()
    ):
        above = [p for p in attempt.positions if p < at]
        turns = tuple(layout.turns[p] for p in above)
        length = len(renderer.reply(turns, _PROBE, tools=session.tools)[0])
        if length + room <= max_tokens:
            return Prefix(
                session=session,
                turn=turn,
                turns=turns,
                numbers=tuple(layout.numbers[p] for p in above),
                num_tokens=length,
            )
    return None


def has_body(turn: Turn) -> bool:
    """Whether a message says or calls anything; thinking alone is a message that was cut short."""
    if turn.sampled is not None:
        return bool(turn.sampled.ids)
    return any(
        (isinstance(block, Text) and block.text) or isinstance(block, ToolCall)
        for block in turn.blocks
    )
