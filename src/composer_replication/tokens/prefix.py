"""What a model had in view at one message, restored from a log as `build` renders it: the same
head, the same window, the same ids.

    prefix = restore(session, turn=7, renderer=renderer, max_tokens=4096, room=256)
    prefix.turns                   # the head and the messages before turn 7, as they stood in its context; turn 7 is not among them
    prefix.numbers                 # their numbers in the session
    prefix.num_tokens              # up to and including the generation prompt

The window is the one that `build` gives a target there (tokens/window.py): a session that fits is
whole, else what stands directly above the message, and the turns that it refers to. `room` tokens
stay free for the message that is to be written, in place of the log's own and its hint. Where
targets share a window in `build`, the first of them has up to an eighth less context there.
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
    later_starts,
    run_starts,
    units_of,
    window_of,
)

_PROBE = Turn(role="assistant", author=None, blocks=(Text("x"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """One segment: its conversation as it was seen, the session's number of each position, and what
    each costs."""

    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]
    plan: SegmentCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The messages before one turn of a session, and their length once rendered."""

    session: Session
    turn: int
    turns: tuple[Turn, ...]
    numbers: tuple[int, ...]
    num_tokens: int


def lay_out_segment(session: Session, segment: Segment, *, renderer: Renderer) -> SegmentLayout:
    """A segment laid out for windows: what stood in context when it began, then its own turns;
    raises RenderError of the template."""
    numbers = [i for a, b in segment.context for i in range(a, b)] + list(
        range(segment.start, segment.end)
    )
    turns = [session.turn_in_view(i, at=segment.start) for i in numbers]
    head = head_positions(turns)
    overhead, tokens = renderer.measure(turns, head=[turns[p] for p in head], tools=session.tools)
    plan = SegmentCosts(
        overhead=overhead,
        tokens=tuple(tokens),
        head=head,
        starts=run_starts(turns),
        units=units_of(turns),
    )
    return SegmentLayout(turns=tuple(turns), numbers=tuple(numbers), plan=plan)


def wanted_above(
    turns: Sequence[Turn], numbers: Sequence[int], at: int, *, refers_to: Collection[int]
) -> tuple[int, ...]:
    """Positions that the window of the message at `at` shall hold besides its run: what it refers
    to, and what a human asked for last."""
    asked = [p for p in range(at) if turns[p].role == "user" and turns[p].author == "human"]
    return tuple(sorted({p for p in range(at) if numbers[p] in refers_to} | set(asked[-1:])))


def restore(
    session: Session,
    *,
    turn: int,
    renderer: Renderer,
    max_tokens: int,
    room: int,
    refers_to: Collection[int] = (),
) -> Prefix | None:
    """The context of one turn, in the window that `build` would give it as a target; None where not
    even the shortest one leaves room.

    Raises DataError for a turn that no model wrote, RenderError where the template cannot be
    spanned.
    """
    if not 0 <= turn < len(session.turns) or session.turns[turn].role != "assistant":
        raise DataError(
            f"turn {turn} is no message of a model",
            where=session.id,
            fix="run again: recompose sites",
        )
    scene = lay_out_segment(session, session.segment_of(turn), renderer=renderer)
    at = scene.numbers.index(turn)
    # what is written there in place of the log's own message
    tokens = (*scene.plan.tokens[:at], room, *scene.plan.tokens[at + 1 :])
    plan = replace(scene.plan, tokens=tokens)
    target = WindowTarget(wanted=wanted_above(scene.turns, scene.numbers, at, refers_to=refers_to))
    window = window_of(plan, at, target=target, max_tokens=max_tokens)
    for attempt in (window, *later_starts(plan, window, keep=[at])) if window is not None else ():
        before = [p for p in attempt.positions if p < at]
        turns = tuple(scene.turns[p] for p in before)
        length = len(renderer.reply(turns, _PROBE, tools=session.tools)[0])
        if length + room <= max_tokens:
            return Prefix(
                session=session,
                turn=turn,
                turns=turns,
                numbers=tuple(scene.numbers[p] for p in before),
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
