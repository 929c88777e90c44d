"""A pair as it is judged: two messages side by side, the state in which they stand, and where all
of it comes from.

    for pair in session_pairs(session, preferences):
        pair.chosen.text, pair.chosen.words          # all of it; only what it says, where it calls no tool
        pair.key                                     # (state, chosen, rejected) after canonicalisation

A state is known by the hash of every message in view, taken in one pass over a session; copies of a
session have equal states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from composer_replication.core.codec import turn_to_json
from composer_replication.core.jsonl import dumps
from composer_replication.core.site import Preference
from composer_replication.core.trace import Session, ToolCall, ToolSpec, Turn
from composer_replication.data.replay.actions import (
    NO_CONTEXT,
    ComparisonContext,
    MessageAction,
    canonical_action,
    relative_path,
)
from composer_replication.data.replay.agent_tools import change_of
from composer_replication.data.replay.viewed_files import files_in_view

TAIL_CHARS = 800
"""So much of the end of a state is compared where near-duplicates are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSide:
    """One message of a pair.

    `text` is everything it says and calls (one line of JSON per call), `words` what it says - ""
    where it calls a tool: a call has no words to count. `prose` is what it says in either case,
    `calls` what it calls.
    """

    turn: Turn
    action: MessageAction
    text: str
    words: str
    prose: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two messages at one state; `preference` carries the provenance, `held_out` the side of the
    split.

    `context` are the messages in view, oldest first; they are read by checks of the chat's shape
    and by exports only.
    """

    id: str
    chosen: PairSide
    rejected: PairSide
    state: str
    tail: str
    preference: Preference
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    context: Sequence[Turn] = ()
    repository: str = ""
    held_out: bool = False

    @property
    def key(self) -> tuple[str, MessageAction, MessageAction]:
        """What makes two pairs the same: state, chosen and rejected, the messages after
        canonicalisation."""
        return self.state, self.chosen.action, self.rejected.action

    @property
    def sides(self) -> tuple[tuple[str, PairSide], tuple[str, PairSide]]:
        """Both sides with their names."""
        return ("chosen", self.chosen), ("rejected", self.rejected)

    def sides_of(self, only: str) -> tuple[tuple[str, PairSide], ...]:
        """One side with its name, "chosen" or "rejected"; both for ""."""
        return tuple(one for one in self.sides if only in ("", one[0]))


def side_of(turn: Turn, *, comparison: ComparisonContext = NO_CONTEXT) -> PairSide:
    """A message as one side of a pair.

    >>> from composer_replication.core.trace import ToolCall
    >>> side = side_of(Turn(role="assistant", author="a", blocks=(ToolCall("c", "Read", {"path": "b.py"}),)))
    >>> side.text, side.words
    ('Read {"path":"b.py"}', '')
    """
    prose = turn.text
    calls = turn.calls
    lines = [
        f"{c.name}"
        f" {json.dumps(c.arguments, ensure_ascii=False, separators=(',', ':'), default=str)}"
        for c in calls
    ]
    text = "\n".join([prose, *lines] if prose and lines else lines or [prose])
    return PairSide(
        turn=turn,
        action=canonical_action(turn, comparison),
        text=text,
        words="" if calls else prose,
        prose=prose,
        calls=calls,
    )


def session_pairs(
    session: Session, preferences: Iterable[Preference], *, held_out: bool = False
) -> Iterator[Pair]:
    """The pairs of one session, in the order of their turns."""
    ordered = sorted(preferences, key=lambda p: p.turn)
    states = state_hashes(session, {p.turn for p in ordered})
    tools = {tool.name: tool for tool in session.tools}
    seen: dict[int, int] = {}
    for preference in ordered:
        number = seen[preference.turn] = seen.get(preference.turn, 0) + 1
        context = session.context(preference.turn)
        rejected = preference.rejected_turn(session)
        scene = _scene(session, context, (preference.chosen, rejected))
        yield Pair(
            id=f"{session.id}:{preference.turn}" + (f":{number}" if number > 1 else ""),
            chosen=side_of(preference.chosen, comparison=scene),
            rejected=side_of(rejected, comparison=scene),
            state=states[preference.turn],
            tail=tail_of(context),
            preference=preference,
            tools=tools,
            context=context,
            repository=session.repository or session.cwd,
            held_out=held_out,
        )


def _scene(
    session: Session, context: Sequence[Turn], messages: Iterable[Turn]
) -> ComparisonContext:
    """Files are looked up only where somebody wants to change one: that reads the whole context."""
    offered = frozenset(tool.name for tool in session.tools)
    if not any(change_of(call) for message in messages for call in message.calls):
        return ComparisonContext(cwd=session.cwd, offered=offered)
    return ComparisonContext(
        cwd=session.cwd,
        offered=offered,
        files=files_in_view(context, relative=lambda p: relative_path(p, cwd=session.cwd)),
    )


def tail_of(context: Sequence[Turn]) -> str:
    """The last characters of what stood in view: words, calls and results, without ids."""
    parts: list[str] = []
    length = 0
    for turn in reversed(context):
        texts = [
            turn.text,
            *(side_of(turn).text for _ in turn.calls[:1]),
            *(result.text for result in turn.results),
        ]
        text = "\n".join(t[-TAIL_CHARS:] for t in texts if t)
        parts.append(text)
        length += len(text)
        if length >= TAIL_CHARS:
            break
    return "\n".join(reversed(parts))[-TAIL_CHARS:]


def state_hashes(session: Session, turns: set[int]) -> dict[int, str]:
    """The hash of what was in view at each of some turns; one pass over the session, however long
    the contexts are."""
    digests = [_turn_digest(turn) for turn in session.turns]
    found: dict[int, str] = {}
    for segment in session.segments:
        wanted = [turn for turn in turns if segment.start <= turn < segment.end]
        if not wanted:
            continue
        running = hashlib.sha256("\0".join(segment.cleared).encode("utf-8", "surrogatepass"))
        for a, b in segment.context:
            for number in range(a, b):
                running.update(digests[number])
        for number in range(segment.start, max(wanted) + 1):
            if number in turns:
                found[number] = running.hexdigest()[:32]
            running.update(digests[number])
    return found


def messages_hash(messages: Sequence[object]) -> str:
    """The hash of a state that is given as chat messages."""
    return hashlib.sha256(dumps(messages).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _turn_digest(turn: Turn) -> bytes:
    """A message without what differs between copies: ids of calls, who the log says wrote it."""
    order = {call.id: str(number) for number, call in enumerate(turn.calls)}
    row = turn_to_json(turn)
    blocks = [[b[0], order.get(b[1], ""), *b[2:]] if b[0] in "cr" else b for b in row["blocks"]]
    return hashlib.sha256(dumps([turn.role, blocks]).encode("utf-8", "surrogatepass")).digest()
