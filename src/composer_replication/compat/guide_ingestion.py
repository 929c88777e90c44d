"""`ClaudeCodeIngester` and `claude_states_to_trace_examples`, as the earlier public framework's
guide names them.

    sessions = ClaudeCodeIngester().ingest("~/.claude/projects")
    examples = claude_states_to_trace_examples(sessions)              # or sessions.to_states(), or dictionaries of the guide

What differs: the marked message is the mistaken one, found by call id; `site="recovery"` gives the
guide's choice, with a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from composer_replication.compat.guide_types import TraceExample, TraceState, TraceTurn
from composer_replication.core.config.data_settings import (
    HintsSettings,
    IngestSettings,
    SitesSettings,
)
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import CallRef, Segment, Session, SourceRef, Turn
from composer_replication.data.chat import from_chat, to_chat, tool_from_chat, tool_to_chat
from composer_replication.data.hints.write import write_hints
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites


@dataclass(frozen=True, slots=True)
class IngestedSessions:
    """Sessions that are read as they are asked for; can be walked more than once."""

    paths: tuple[str, ...]
    settings: IngestSettings

    def __iter__(self) -> Iterator[Session]:
        redactor = Redactor(words=self.settings.redact_words) if self.settings.redact else None
        for result in ingest(find_logs(self.paths), settings=self.settings, redactor=redactor):
            yield from result.sessions

    def to_states(self) -> Iterator[TraceState]:
        """One state per message a model wrote, lazily; messages that two states share are the same
        objects."""
        for session in self:
            yield from session_states(session)


class ClaudeCodeIngester:
    """Reads Claude Code logs, e.g. list(ClaudeCodeIngester().ingest("logs/"))[0].turns."""

    def __init__(self, settings: IngestSettings | None = None) -> None:
        self.settings = settings or IngestSettings()

    def ingest(self, path: str | Path) -> IngestedSessions:
        """The sessions of a file or folder, redacted. Whatever takes states takes them as they are;
        `.to_states()` gives the states."""
        return IngestedSessions((str(path),), self.settings)


def states_of(items: Iterable[TraceState | Mapping[str, Any] | Session]) -> Iterator[TraceState]:
    """The guide's states, given as such, as dictionaries of their fields, or as sessions (what an
    ingester gives).

    >>> [one.student_action["content"] for one in states_of([{"state_id": "s1:1", "messages": [], "student_action": "Done."}])]
    ['Done.']
    """
    for number, item in enumerate(items):
        if isinstance(item, Session):
            yield from session_states(item)
        else:
            yield TraceState.of(item, where=f"state {number}")


def session_states(session: Session) -> Iterator[TraceState]:
    """The guide's states of one session: the context in view, the tools, and the message written,
    for every message of a model."""
    calls, tools = session.calls(), tuple(map(tool_to_chat, session.tools))
    for segment in session.segments:
        context = session.context(segment.start) if segment.start < segment.end else ()
        before = [message for turn in context for message in to_chat(turn)]
        for index in range(segment.start, segment.end):
            turn = session.turns[index]
            messages = to_chat(turn)
            if turn.role == "assistant" and index >= session.copied and messages:
                yield TraceState(
                    f"{session.id}:{index}",
                    list(before),
                    messages[0],
                    tuple(_answers(turn, session.turns, calls)),
                    author=turn.author or "",
                    tools=tools,
                )
            before += messages


def _answers(
    turn: Turn, turns: Sequence[Turn], calls: Mapping[str, CallRef]
) -> Iterator[dict[str, Any]]:
    """The tool messages that answered the calls of a turn."""
    for call in turn.calls:
        ref = calls[call.id]
        if ref.result_turn is not None:
            yield from (
                m for m in to_chat(turns[ref.result_turn]) if m.get("tool_call_id") == call.id
            )


def claude_states_to_trace_examples(
    states: Iterable[TraceState | Mapping[str, Any] | Session],
    *,
    error_kind_fn: Callable[[str], str | None] | None = None,
    final_reward: float = 0.0,
    site: Literal["cause", "recovery"] = "cause",
) -> Iterator[TraceExample]:
    """One example per conversation, its mistaken messages marked.

    States that continue one another are one conversation; a compaction or a rewind begins another,
    in which the messages before it are context. A message is `trained` in one example only, and
    never where it is a mistake or a human rejected or cut it off. `error_kind_fn` is given the text
    of an error and may rename its kind; None from it leaves the message unmarked, and still
    untrained. It cannot turn a rejection or a failed check into a mistake. `site="recovery"` marks
    the turn after the error instead, and warns. A marked turn's `error_meta["hint"]` is what
    `recompose hints` would write there, "" where that is nothing: a collator needs no generator
    then.
    """
    for conversation in _conversations(states_of(states)):
        yield _example(conversation, error_kind_fn, final_reward, site)


@dataclass(slots=True)
class _Conversation:
    """Messages, and the positions of those that were some state's action here: the others are
    context, trained elsewhere or never."""

    name: str
    messages: list[dict[str, Any]]
    actions: set[int]
    answers: tuple[dict[str, Any], ...] = ()  # to the last action
    tools: tuple[dict[str, Any], ...] = ()


def _conversations(states: Iterable[TraceState]) -> Iterator[_Conversation]:
    current: _Conversation | None = None
    for state in states:
        # Shared messages are the same objects, so this comparison does not read their text again.
        if current is None or state.messages[: len(current.messages)] != current.messages:
            if current is not None:
                yield current
            current = _Conversation(state.state_id, [], set(), tools=state.tools)
        current.messages = [*state.messages, state.student_action]
        current.actions.add(len(state.messages))
        current.answers = state.answers
    if current is not None:
        yield current


def _example(
    conversation: _Conversation,
    rename: Callable[[str], str | None] | None,
    final_reward: float,
    site: Literal["cause", "recovery"],
) -> TraceExample:
    messages = [*conversation.messages, *conversation.answers]
    turns = tuple(from_chat(m) for m in messages)
    session = Session(
        id=conversation.name,
        source=SourceRef(file=""),
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        tools=tuple(map(tool_from_chat, conversation.tools)),
    )
    marked = [
        TraceTurn(
            role=m["role"],
            content=m.get("content") or "",
            tool_calls=tuple(m.get("tool_calls") or ()),
            tool_call_id=m.get("tool_call_id"),
            is_error=m.get("is_error"),
            trained=i in conversation.actions
            and not any(following.is_interrupt for following in turns[i + 1 : i + 2]),
        )
        for i, m in enumerate(messages)
    ]
    sites = list(find_sites(session, settings=SitesSettings(site=site)))
    targets = [one for one in sites if one.is_target and one.turn in conversation.actions]
    hints = {
        hint.site_id: hint.text
        for hint in write_hints(session, targets, settings=HintsSettings()).hints
    }
    texts: dict[int, list[str]] = defaultdict(list)
    for found in targets:
        if (text := hints.get(found.id)) and text not in texts[found.turn]:
            texts[found.turn].append(text)
    for found in sites:
        if found.bars_lm_ce:
            marked[found.turn] = replace(marked[found.turn], trained=False)
    for found in targets:
        error = " ".join(r.text for i in found.evidence for r in session.turns[i].results)
        kind = rename(error) if rename else found.kind
        # of several failing calls the first says the kind
        if kind is not None and marked[found.turn].error_kind is None:
            meta = {
                "tool": found.tool,
                "call_id": found.call_id,
                "detail": found.detail,
                "hint": "\n".join(texts[found.turn]),
            }
            marked[found.turn] = replace(marked[found.turn], error_kind=kind, error_meta=meta)
    return TraceExample(
        id=conversation.name,
        turns=tuple(marked),
        final_reward=final_reward,
        tools=conversation.tools,
    )
