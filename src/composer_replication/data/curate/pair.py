"""A pair as the curator judges it: two messages at one state, with their provenance.

    for pair in session_pairs(session, preferences):
        pair.chosen.text, pair.chosen.words     # all of it; only its text, "" if it calls a tool
        pair.key                                # (state, chosen, rejected) in canonical form

A state is the hash of every message in view, computed in one pass over a session; copies of a
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
"""Length of the end of a state by which near-duplicates are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSide:
    """One message of a pair.

    `prose` is its text, `calls` are its calls, and `text` is both, with one line of JSON per call.
    `words` is the text to count words of: "" if it calls a tool, because a call has no words.
    """

    turn: Turn
    action: MessageAction
    text: str
    words: str
    prose: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two messages at one state; `preference` carries the provenance, `held_out` the split.

    `context` are the messages in view, oldest first; only chat-shape checks and exports read them.
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
        """The identity of a pair: its state, and both messages in canonical form."""
        return self.state, self.chosen.action, self.rejected.action

    @property
    def sides(self) -> tuple[tuple[str, PairSide], tuple[str, PairSide]]:
        """Both sides with their names."""
        return ("chosen", self.chosen), ("rejected", self.rejected)

    def sides_of(self, name: str) -> tuple[tuple[str, PairSide], ...]:
        """Return (name, side) of "chosen" or "rejected", or of both for ""."""
        return tuple(side for side in self.sides if name in ("", side[0]))


def side_of(turn: Turn, *, comparison: ComparisonContext = NO_CONTEXT) -> PairSide:
    """Return a message as one side of a pair.

    >>> call = ToolCall("c", "Read", {"path": "b.py"})
    >>> side = side_of(Turn(role="assistant", author="a", blocks=(call,)))
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
    """Yield the pairs of one session in the order of their turns."""
    ordered = sorted(preferences, key=lambda p: p.turn)
    states = state_hashes(session, {p.turn for p in ordered})
    tools = {tool.name: tool for tool in session.tools}
    pairs_at_turn: dict[int, int] = {}
    for preference in ordered:
        number = pairs_at_turn[preference.turn] = pairs_at_turn.get(preference.turn, 0) + 1
        context = session.context(preference.turn)
        rejected = preference.rejected_turn(session)
        comparison = _comparison(session, context, (preference.chosen, rejected))
        yield Pair(
            id=f"{session.id}:{preference.turn}" + (f":{number}" if number > 1 else ""),
            chosen=side_of(preference.chosen, comparison=comparison),
            rejected=side_of(rejected, comparison=comparison),
            state=states[preference.turn],
            tail=tail_of(context),
            preference=preference,
            tools=tools,
            context=context,
            repository=session.repository or session.cwd,
            held_out=held_out,
        )


def _comparison(
    session: Session, context: Sequence[Turn], messages: Iterable[Turn]
) -> ComparisonContext:
    """Return the comparison context, with files only if a message changes one: they cost a pass."""
    offered = frozenset(tool.name for tool in session.tools)
    if not any(change_of(call) for message in messages for call in message.calls):
        return ComparisonContext(cwd=session.cwd, offered=offered)
    return ComparisonContext(
        cwd=session.cwd,
        offered=offered,
        files=files_in_view(context, relative=lambda p: relative_path(p, cwd=session.cwd)),
    )


def tail_of(context: Sequence[Turn]) -> str:
    """Return the last characters of a context: text, calls and results, without ids."""
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
    """Return the hash of the messages in view at each of `turns`, in one pass over the session."""
    digests = [_turn_digest(turn) for turn in session.turns]
    hashes: dict[int, str] = {}
    for segment in session.segments:
        wanted = [turn for turn in turns if segment.start <= turn < segment.end]
        if not wanted:
            continue
        digest = hashlib.sha256("\0".join(segment.cleared).encode("utf-8", "surrogatepass"))
        for start, end in segment.context:
            for number in range(start, end):
                digest.update(digests[number])
        for number in range(segment.start, max(wanted) + 1):
            if number in turns:
                hashes[number] = digest.hexdigest()[:32]
            digest.update(digests[number])
    return hashes


def messages_hash(messages: Sequence[object]) -> str:
    """Return the hash of a state given as chat messages."""
    return hashlib.sha256(dumps(messages).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _turn_digest(turn: Turn) -> bytes:
    """Return the hash of a message without call ids and author, which differ between copies."""
    order = {call.id: str(number) for number, call in enumerate(turn.calls)}
    row = turn_to_json(turn)
    blocks = [[b[0], order.get(b[1], ""), *b[2:]] if b[0] in "cr" else b for b in row["blocks"]]
    return hashlib.sha256(dumps([turn.role, blocks]).encode("utf-8", "surrogatepass")).digest()
