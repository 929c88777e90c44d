"""TRL's rollouts as Sessions, and hint views on TRL's own token ids.

    views = HintProducer(renderer=renderer, sites=config.sites, hints=config.hints, prompt_ids=<generation prompt>)
    made = views.make([TrlRollout(name="0", prompt=[...], prompt_ids=[...], completion_ids=[...], tool_mask=[...], messages=[...])])
    made.examples[0].hints, made.facts["sites/used"]

Detectors and writers are those of imported logs. No id is ever encoded again: a message is a run of
ones in TRL's tool mask, and a hint is inserted in front of the generation prompt that stands above
it. What cannot be placed so is counted and left out, never guessed.

TRL decodes a call that it cannot read as text and ends the rollout without a word. Here such a
message is a malformed call: a site whose evidence is an error that the model never saw, because
nothing followed. Two wrappings of TRL are taken off a result in the Session (not in the ids):
{'error': '...'}, and Python's words for wrong arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.core.site import Hint, Site, joined_text
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Block,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.sites.tool_errors import is_error_text
from composer_replication.rollouts.episode import MALFORMED
from composer_replication.rollouts.parse import MalformedCall, WrittenCall, parse_message, parser_of
from composer_replication.tokens.example import HintView, Span, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.rollout_hints import draw_messages, hint_rollouts, view_metrics

Message = Mapping[str, Any]
_NO_HINTS = dict.fromkeys(("sites/without_hint", "sites/refused", "sites/weak"), 0)
_STUBS = (
    Turn(role="user", author=HUMAN, blocks=(Text("x"),)),
    Turn(role="assistant", author=None, blocks=(Text("x"),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlRollout:
    """One rollout as TRL's `_generate` returns it, `tool_mask` = 1 where the model wrote; without
    tools it wrote everything."""

    name: str
    prompt: Sequence[Message]
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    tool_mask: Sequence[int]
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlSession:
    """A rollout as a session; `spans` say where each message of the model stands in prompt +
    completion, by turn."""

    session: Session
    spans: Mapping[int, Span]
    num_malformed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlExamples:
    """One example per rollout, in order, each with its hint views (perhaps none), and numbers by
    metric name."""

    examples: tuple[TrainingExample, ...]
    metrics: Mapping[str, float]
    trl_sessions: tuple[TrlSession | None, ...] = ()
    """None = its messages are not the stretches that were written."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The rollouts that could be recorded."""
        return tuple(one.session for one in self.trl_sessions if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintProducer:
    """Finds mistakes in TRL's rollouts and writes hints above them.

    `prompt_ids` are the ids of the template's generation prompt; `kept` are the kinds of hints that
    an audit kept, None = all.
    Raises ConfigError for a template whose calls cannot be read here.
    """

    renderer: Renderer
    prompt_ids: tuple[int, ...]
    tools: tuple[ToolSpec, ...] = ()
    sites: SitesSettings = field(default_factory=SitesSettings)
    hints: HintsSettings = field(default_factory=HintsSettings)
    kept_kinds: frozenset[str] | None = None
    author: str = "student"
    writes_hints: bool = True
    """False = mistakes are counted, but no hint is written."""

    def make(
        self,
        played: Sequence[TrlRollout],
        *,
        max_sites: int = 0,
        max_tokens: int = 0,
        seed: int = 0,
    ) -> TrlExamples:
        """The examples of some rollouts: at most `max_sites` views, drawn by `seed`, no teacher row
        above `max_tokens`; 0 = no bound."""
        recorded = [self._recorded(rollout) for rollout in played]
        readable = {one.session.id: one for one in recorded if one is not None}
        written = hint_rollouts(
            [one.session for one in readable.values()],
            sites=self.sites,
            hints=self.hints if self.writes_hints else None,
            kept_kinds=self.kept_kinds,
        )
        ids = {rollout.name: (*rollout.prompt_ids, *rollout.completion_ids) for rollout in played}
        built: list[tuple[str, HintView]] = []
        num_not_built = 0
        for hints in written.messages(written.hints):
            message = [(written.sites[hint.site_id], hint) for hint in hints]
            name = message[0][0].session_id
            view = self._view(ids[name], readable[name], message)
            if view is None or (max_tokens and view.span[1] + len(view.hint_ids) > max_tokens):
                num_not_built += len(message)
            else:
                built.append((name, view))
        chosen = draw_messages(
            [view.site_id for _, view in built],
            limit=max_sites or None,
            lot=lambda site_id: stage_seed(seed, site_id),
        )
        views: dict[str, list[HintView]] = {name: [] for name in ids}
        for name, view in built:
            if view.site_id in chosen:
                views[name].append(view)
        trained = view_metrics([view for found in views.values() for view in found])
        num_built = sum(len(view.site_ids) for _, view in built)
        facts = {
            **_NO_HINTS,
            **written.metrics,
            **trained,
            "rollouts/unaligned": len(recorded) - len(readable),
            "rollouts/malformed": sum(one.num_malformed for one in readable.values()),
            "sites/not_built": num_not_built,
            "sites/not_drawn": num_built - trained["sites/used"],
        }
        examples = tuple(
            TrainingExample(
                id=name, session_id=name, ids=ids[name], hints=tuple(views[name]), origin="student"
            )
            for name in ids
        )
        return TrlExamples(
            examples=examples,
            metrics={name: float(n) for name, n in facts.items()},
            trl_sessions=tuple(recorded),
        )

    def _recorded(self, rollout: TrlRollout) -> TrlSession | None:
        """The rollout as a session; None where its messages are not the stretches that were
        written."""
        try:
            return record_rollout(
                rollout, renderer=self.renderer, tools=self.tools, author=self.author
            )
        except AlignmentError:
            return None

    def _view(
        self, ids: tuple[int, ...], recorded: TrlSession, message: Sequence[tuple[Site, Hint]]
    ) -> HintView | None:
        """The hints inserted above the message, or None where its place cannot be told; HintView
        checks the rest."""
        (site, _), *others = message
        span = recorded.spans.get(site.turn)
        if span is None:
            return None
        at = span[0] - len(self.prompt_ids)
        if at < 1 or ids[at : span[0]] != self.prompt_ids:
            return None
        block = self.renderer.hint_view(
            _STUBS,
            target=1,
            hint=joined_text([hint for _, hint in message]),
            site_id=site.id,
            kind=site.kind,
        )
        if block.rendering != "message":
            return None
        return HintView(
            site_id=site.id,
            kind=site.kind,
            at=at,
            hint_ids=block.hint_ids,
            span=span,
            target_ids=ids[span[0] : span[1]],
            origin="student",
            others=tuple((other.id, other.kind) for other, _ in others),
        )


def written_spans(tool_mask: Sequence[int]) -> list[Span]:
    """Where the model wrote: the runs of ones, half-open.

    >>> written_spans([1, 1, 0, 0, 1])
    [(0, 2), (4, 5)]
    """
    edges = [
        i
        for i, (a, b) in enumerate(zip([0, *tool_mask], [*tool_mask, 0], strict=True))
        if bool(a) != bool(b)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def record_rollout(
    rollout: TrlRollout, *, renderer: Renderer, tools: Sequence[ToolSpec], author: str
) -> TrlSession:
    """A rollout as a session; raises AlignmentError where its messages are not as many as the
    stretches that the model wrote."""
    shift = len(rollout.prompt_ids)
    spans = [(a + shift, b + shift) for a, b in written_spans(rollout.tool_mask)]
    ids = (*rollout.prompt_ids, *rollout.completion_ids)
    if sum(m["role"] == "assistant" for m in rollout.messages) != len(spans):
        raise AlignmentError(
            f"{len(spans)} stretches were written, which are not the messages TRL decoded",
            where=rollout.name,
        )
    turns: list[Turn] = [_context(message) for message in rollout.prompt]
    places: dict[int, Span] = {}
    open_calls: list[ToolCall] = []
    num_calls = num_malformed = 0
    for message in rollout.messages:
        if message["role"] != "assistant":
            if not open_calls:
                raise AlignmentError("a tool answered a call that was not made", where=rollout.name)
            turns.append(_answer(open_calls.pop(0), str(message["content"])))
            continue
        span = spans[len(places)]
        places[len(turns)] = span
        calls = [
            ToolCall(f"c{num_calls + i}", *_named(call))
            for i, call in enumerate(message.get("tool_calls") or ())
        ]
        problem = "" if calls else _unread(ids[span[0] : span[1]], renderer, tools)
        blocks: list[Block] = (
            [Text(str(message["content"]))] if message.get("content") and not problem else []
        )
        if problem:
            calls = [
                ToolCall(f"c{num_calls}", MALFORMED, {"text": str(message.get("content", ""))})
            ]
            num_malformed += 1
        num_calls += len(calls)
        turns.append(
            Turn(role="assistant", author=author, blocks=(*blocks, *calls), context_tokens=span[0])
        )
        open_calls = [] if problem else list(calls)
        if problem:
            words = f"InputValidationError: malformed tool call: {problem}"
            turns.append(
                Turn(
                    role="tool",
                    author=ENVIRONMENT,
                    blocks=(ToolResult(calls[0].id, words, is_error=True),),
                )
            )
    session = Session(
        id=rollout.name,
        source=SourceRef(file=rollout.name, format="trl"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=tuple(tools),
        tools_origin="log" if tools else "none",
        origin="student",
    )
    return TrlSession(session=session, spans=places, num_malformed=num_malformed)


def _context(message: Message) -> Turn:
    author = {"user": HUMAN, "system": HARNESS}.get(message["role"])
    return Turn(role=message["role"], author=author, blocks=(Text(str(message["content"])),))


def _named(call: Message) -> tuple[str, Mapping[str, Any]]:
    function = call["function"]
    return str(function["name"]), function.get("arguments") or {}


def _unread(ids: Sequence[int], renderer: Renderer, tools: Sequence[ToolSpec]) -> str:
    """What is wrong with a call that TRL did not make anything of; "" where the message holds
    none."""
    ends = renderer.codec.control.values()
    body = ids[:-1] if ids and ids[-1] in ends else ids
    parts = parse_message(body, codec=renderer.codec, parser=parser_of(renderer), tools=tools)
    broken = [part for part in parts if isinstance(part, (MalformedCall, WrittenCall))]
    return (
        ""
        if not broken
        else broken[0].problem
        if isinstance(broken[0], MalformedCall)
        else "it could not be read"
    )


def _answer(call: ToolCall, text: str) -> Turn:
    words, wrong = plain_words(text, tool=call.name)
    return Turn(
        role="tool", author=ENVIRONMENT, blocks=(ToolResult(call.id, words, is_error=wrong),)
    )


def plain_words(text: str, *, tool: str) -> tuple[str, bool]:
    """A tool's answer without TRL's wrapping, and whether it is an error.

    >>> plain_words("{'error': 'Tool read not found.'}", tool="read")
    ('Tool read not found.', True)
    >>> plain_words('{"error": "Env.read() got an unexpected keyword argument \\'file\\'"}', tool="read")[0]
    "InputValidationError: Env.read() got an unexpected keyword argument 'file'"
    """
    words = _exception(text)
    if words is None:
        return text, is_error_text(text, is_shell=False)
    if re.match(
        rf"(?:\w+\.)*{re.escape(tool)}\(\) (?:got an unexpected keyword argument|missing \d+"
        r" required)",
        words,
    ):
        words = f"InputValidationError: {words}"
    return words, True


def _exception(text: str) -> str | None:
    """The words of an exception that TRL caught and wrote as a dict; None for any other answer."""
    if not text.startswith(("{'error': ", '{"error": ')):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return (
        value["error"]
        if isinstance(value, dict) and list(value) == ["error"] and isinstance(value["error"], str)
        else None
    )
