"""The conversations of an episode as one session, for what is counted by episode.

    episode_sessions(rollouts)         # {"step-3:task:0": Session(...)}, by the episode's name
    join_conversations([first, second]).turns    # what was read and written, each message once

An episode has several conversations if an agent program played it (serve/) or its student wrote
summaries (rollouts/self_summary.py). The length penalty is a function of the whole effort, a broken
call costs the same wherever it stands, and the last to-do list is the last of the episode. Side
requests (no reward) are left out. The joined session is for counting: it is no context that anyone
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from composer_replication.core.trace import Event, Segment, Session, ToolResult, Turn
from composer_replication.rollouts.episode import Rollout, episode_name
from composer_replication.rollouts.self_summary import SUMMARY, summary_turns


def episode_sessions(rollouts: Iterable[Rollout]) -> dict[str, Session]:
    """Each episode as one session, by its name."""
    members: dict[str, list[Session]] = {}
    for rollout in rollouts:
        members.setdefault(episode_name(rollout), []).append(rollout.session)
    return {name: join_conversations(sessions) for name, sessions in members.items()}


def join_conversations(sessions: Sequence[Session]) -> Session:
    """The conversations of one episode as one session; a single one is returned as it is."""
    first, *others = sessions
    others = [session for session in others if session.outcome is not None]
    if not others:
        return first
    turns: list[Turn] = []
    events: list[Event] = []
    for session in (first, *others):
        copied = 0 if session is first else session.copied
        summaries = summary_turns(session)
        called = {call.id for _, turn in session.assistant_turns() for call in turn.calls}
        for place, turn in enumerate(session.turns):
            if place < copied:
                continue
            kept = _own_results(turn, called)
            turns += [kept] if kept.blocks or not turn.blocks else []
            if place in summaries:
                events.append(Event(kind=SUMMARY, turn=len(turns)))
    return replace(
        first,
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        events=tuple(events),
        copied=0,
    )


def _own_results(turn: Turn, called: set[str]) -> Turn:
    """The turn without results of calls that another conversation holds, where they stand too."""
    blocks = tuple(
        block
        for block in turn.blocks
        if not isinstance(block, ToolResult) or block.call_id in called
    )
    return turn if len(blocks) == len(turn.blocks) else replace(turn, blocks=blocks)
