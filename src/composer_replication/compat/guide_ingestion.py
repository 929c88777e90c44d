"""The earlier guide's `ClaudeCodeIngester` and `claude_states_to_trace_examples`.

    sessions = ClaudeCodeIngester().ingest("~/.claude/projects")
    examples = claude_states_to_trace_examples(sessions)      # or states, or dictionaries of them

Difference from the guide: the marked message is the mistaken one, found by call id;
`site="recovery"` is the guide's choice, with a warning.
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
    """Sessions that are read lazily, and can be iterated more than once."""

    paths: tuple[str, ...]
    settings: IngestSettings

    def __iter__(self) -> Iterator[Session]:
        redactor = Redactor(words=self.settings.redact_words) if self.settings.redact else None
        for result in ingest(find_logs(self.paths), settings=self.settings, redactor=redactor):
            yield from result.sessions

    def to_states(self) -> Iterator[TraceState]:
        """Yield one state per assistant message; states share their common message objects."""
        for session in self:
            yield from session_states(session)


class ClaudeCodeIngester:
    """Reads Claude Code logs, e.g. list(ClaudeCodeIngester().ingest("logs/"))[0].turns."""

    def __init__(self, settings: IngestSettings | None = None) -> None:
        self.settings = settings or IngestSettings()

    def ingest(self, path: str | Path) -> IngestedSessions:
        """Return the redacted sessions of a file or folder.

        Functions that take states take them directly; `.to_states()` converts them.
        """
        return IngestedSessions((str(path),), self.settings)


def states_of(items: Iterable[TraceState | Mapping[str, Any] | Session]) -> Iterator[TraceState]:
    """Yield states from states, dictionaries of their fields, or sessions.

    >>> state = {"state_id": "s1:1", "messages": [], "student_action": "Done."}
    >>> [state.student_action["content"] for state in states_of([state])]
    ['Done.']
    """
    for number, item in enumerate(items):
        if isinstance(item, Session):
            yield from session_states(item)
        else:
            yield TraceState.of(item, where=f"state {number}")


def session_states(session: Session) -> Iterator[TraceState]:
    """Yield a state per assistant message of a session: context in view, tools, action."""
    calls, tools = session.calls(), tuple(map(tool_to_chat, session.tools))
    for segment in session.segments:
        context = session.context(segment.start) if segment.start < segment.end else ()
        context_messages = [message for turn in context for message in to_chat(turn)]
        for index in range(segment.start, segment.end):
            turn = session.turns[index]
            messages = to_chat(turn)
            if turn.role == "assistant" and index >= session.copied and messages:
                yield TraceState(
                    f"{session.id}:{index}",
                    list(context_messages),
                    messages[0],
                    tuple(_answers(turn, session.turns, calls)),
                    author=turn.author or "",
                    tools=tools,
                )
            context_messages += messages


def _answers(
    turn: Turn, turns: Sequence[Turn], calls: Mapping[str, CallRef]
) -> Iterator[dict[str, Any]]:
    """Yield the tool messages that answered the calls of a turn."""
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
    """Yield one example per conversation, with its mistaken messages marked.

    States that continue one another are one conversation; a compaction or a rewind begins another,
    in which the earlier messages are context. A message is `trained` in one example only, and never
    if it is a mistake or a human rejected or interrupted it. `error_kind_fn` gets the text of an
    error and may rename its kind; if it returns None the message is not marked, and still not
    trained. It cannot turn a rejection or a failed check into a mistake. `site="recovery"` marks
    the turn after the error instead, and warns. A marked turn's `error_meta["hint"]` is the text of
    `recompose hints`, "" if there is none, so that a collator needs no hint generator.
    """
    for conversation in _conversations(states_of(states)):
        yield _example(conversation, error_kind_fn, final_reward, site)


@dataclass(slots=True)
class _Conversation:
    """The messages of a conversation, and the positions of the states' actions among them.

    The other messages are context, trained elsewhere or never.
    """

    name: str
    messages: list[dict[str, Any]]
    actions: set[int]
    answers: tuple[dict[str, Any], ...] = ()  # to the last action
    tools: tuple[dict[str, Any], ...] = ()


def _conversations(states: Iterable[TraceState]) -> Iterator[_Conversation]:
    current: _Conversation | None = None
    for state in states:
        # Shared messages are the same objects, so comparing them is cheap.
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
    site_choice: Literal["cause", "recovery"],
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
            trained=index in conversation.actions
            and not any(following.is_interrupt for following in turns[index + 1 : index + 2]),
        )
        for index, m in enumerate(messages)
    ]
    sites = list(find_sites(session, settings=SitesSettings(site=site_choice)))
    targets = [site for site in sites if site.is_target and site.turn in conversation.actions]
    hints = {
        hint.site_id: hint.text
        for hint in write_hints(session, targets, settings=HintsSettings()).hints
    }
    texts: dict[int, list[str]] = defaultdict(list)
    for site in targets:
        if (text := hints.get(site.id)) and text not in texts[site.turn]:
            texts[site.turn].append(text)
    for site in sites:
        if site.bars_lm_ce:
            marked[site.turn] = replace(marked[site.turn], trained=False)
    for site in targets:
        error = " ".join(r.text for index in site.evidence for r in session.turns[index].results)
        kind = rename(error) if rename else site.kind
        # The first of several failing calls sets the kind.
        if kind is not None and marked[site.turn].error_kind is None:
            meta = {
                "tool": site.tool,
                "call_id": site.call_id,
                "detail": site.detail,
                "hint": "\n".join(texts[site.turn]),
            }
            marked[site.turn] = replace(marked[site.turn], error_kind=kind, error_meta=meta)
    return TraceExample(
        id=conversation.name,
        turns=tuple(marked),
        final_reward=final_reward,
        tools=conversation.tools,
    )
