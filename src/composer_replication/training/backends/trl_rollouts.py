"""TRL's rollouts as Sessions, and hint views on TRL's own token ids.

    producer = HintProducer(renderer=renderer, prompt_ids=<generation prompt>, sites=config.sites)
    rollout = TrlRollout(name="0", prompt=[...], prompt_ids=[...], completion_ids=[...],
                         tool_mask=[...], messages=[...])
    trl_examples = producer.make([rollout])
    trl_examples.examples[0].hints, trl_examples.metrics["sites/used"]

Detectors and writers are those of imported logs. No text is encoded again: a message is a run of
ones in TRL's tool mask, and a hint is inserted before the generation prompt above the message, or
(hints.position = "reminder" or "result") before what the template writes behind the result above. A
hint that cannot be placed like this is counted and left out.

TRL decodes a call that it cannot parse as text, and ends the rollout. Here such a message is a
malformed call: a site whose evidence is an error that the model never saw, because nothing
followed. Two forms in which TRL wraps a result are unwrapped in the Session (not in the ids):
{'error': '...'}, and Python's message for wrong arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.errors import AlignmentError, RenderError
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
from composer_replication.rollouts.chat_format import MALFORMED
from composer_replication.rollouts.parse import MalformedCall, WrittenCall, parse_message, parser_of
from composer_replication.tokens.example import HintView, Span, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.on_policy.rollout_hints import (
    draw_messages,
    hint_rollouts,
    view_metrics,
)

Message = Mapping[str, Any]
_NO_HINTS = dict.fromkeys(("sites/without_hint", "sites/refused", "sites/weak"), 0)
_OPENING = (Turn(role="user", author=HUMAN, blocks=(Text("x"),)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlRollout:
    """One rollout as TRL's `_generate` returns it; `tool_mask` is 1 at the ids that the model
    wrote."""

    name: str
    prompt: Sequence[Message]
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    tool_mask: Sequence[int]
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlSession:
    """A rollout as a session; `spans` are the spans of the model's messages in prompt + completion,
    by turn; `seen` are its turns with results as TRL wrote them into the context."""

    session: Session
    spans: Mapping[int, Span]
    num_malformed: int
    seen: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlExamples:
    """One example per rollout, in order, each with its hint views (perhaps none), and metrics."""

    examples: tuple[TrainingExample, ...]
    metrics: Mapping[str, float]
    trl_sessions: tuple[TrlSession | None, ...] = ()
    """None = the rollout's messages do not match the spans that the model wrote."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The rollouts that could be read as sessions."""
        return tuple(item.session for item in self.trl_sessions if item is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintProducer:
    """Finds mistakes in TRL's rollouts and inserts hints above them.

    `prompt_ids` are the ids of the template's generation prompt; `kept_kinds` are the kinds of
    hints that an audit kept, None = all. Raises ConfigError for a template whose calls cannot be
    parsed here.
    """

    renderer: Renderer
    prompt_ids: tuple[int, ...]
    tools: tuple[ToolSpec, ...] = ()
    sites: SitesSettings = field(default_factory=SitesSettings)
    hints: HintsSettings = field(default_factory=HintsSettings)
    kept_kinds: frozenset[str] | None = None
    author: str = "student"
    writes_hints: bool = True
    """If False, mistakes are counted but no hint is written."""

    def make(
        self,
        rollouts: Sequence[TrlRollout],
        *,
        max_sites: int = 0,
        max_tokens: int = 0,
        seed: int = 0,
    ) -> TrlExamples:
        """The examples of some rollouts: at most `max_sites` views, drawn by `seed`, and no teacher
        row above `max_tokens`; 0 = no bound."""
        # 1. Read the rollouts as sessions, find their mistakes and write hints.
        trl_sessions = [self._as_session(rollout) for rollout in rollouts]
        readable = {item.session.id: item for item in trl_sessions if item is not None}
        written = hint_rollouts(
            [item.session for item in readable.values()],
            sites=self.sites,
            hints=self.hints if self.writes_hints else None,
            kept_kinds=self.kept_kinds,
        )
        # 2. Build a view for each mistaken message; only views that can be built are drawn from.
        ids = {rollout.name: (*rollout.prompt_ids, *rollout.completion_ids) for rollout in rollouts}
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
        # 3. Draw the messages to train on.
        chosen = draw_messages(
            [view.site_id for _, view in built],
            limit=max_sites or None,
            seed_of=lambda site_id: stage_seed(seed, site_id),
        )
        views: dict[str, list[HintView]] = {name: [] for name in ids}
        for name, view in built:
            if view.site_id in chosen:
                views[name].append(view)
        trained = view_metrics([view for chosen_views in views.values() for view in chosen_views])
        num_built = sum(len(view.site_ids) for _, view in built)
        metrics = {
            **_NO_HINTS,
            **written.metrics,
            **trained,
            "rollouts/unaligned": len(trl_sessions) - len(readable),
            "rollouts/malformed": sum(item.num_malformed for item in readable.values()),
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
            metrics={name: float(n) for name, n in metrics.items()},
            trl_sessions=tuple(trl_sessions),
        )

    def _as_session(self, rollout: TrlRollout) -> TrlSession | None:
        """The rollout as a session; None if its messages do not match the spans that the model
        wrote."""
        try:
            return record_rollout(
                rollout, renderer=self.renderer, tools=self.tools, author=self.author
            )
        except AlignmentError:
            return None

    def _view(
        self, ids: tuple[int, ...], trl_session: TrlSession, message: Sequence[tuple[Site, Hint]]
    ) -> HintView | None:
        """The view with the hints inserted above the message, or None if the ids there are not
        those that they are inserted before; HintView checks the rest."""
        (site, _), *others = message
        span = trl_session.spans.get(site.turn)
        if span is None:
            return None
        position = self.hints.fixed_position()
        inside = position in ("reminder", "result")
        try:
            block = self.renderer.hint_ids(
                joined_text([hint for _, hint in message]),
                above=trl_session.seen[: site.turn] if inside else _OPENING,
                position=position,
                tools=self.tools if inside else (),
            )
        except (AlignmentError, RenderError):
            return None
        tail = self.prompt_ids if block.rendering == "message" else block.tail
        at = span[0] - len(tail)
        if (block.rendering != "message" and not inside) or at < 1 or ids[at : span[0]] != tail:
            return None
        return HintView(
            site_id=site.id,
            kind=site.kind,
            at=at,
            hint_ids=block.hint_ids,
            span=span,
            target_ids=ids[span[0] : span[1]],
            rendering=block.rendering,
            position=position,
            origin="student",
            others=tuple((other.id, other.kind) for other, _ in others),
        )


def written_spans(tool_mask: Sequence[int]) -> list[Span]:
    """The spans that the model wrote: the runs of ones, half-open.

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
    """A rollout as a session; raises AlignmentError if the number of its messages is not the number
    of spans that the model wrote."""
    shift = len(rollout.prompt_ids)
    spans = [(a + shift, b + shift) for a, b in written_spans(rollout.tool_mask)]
    ids = (*rollout.prompt_ids, *rollout.completion_ids)
    if sum(m["role"] == "assistant" for m in rollout.messages) != len(spans):
        raise AlignmentError(
            f"{len(spans)} spans were written, which are not the messages that TRL decoded",
            where=rollout.name,
        )
    turns: list[Turn] = [_prompt_turn(message) for message in rollout.prompt]
    seen = list(turns)
    span_of_turn: dict[int, Span] = {}
    open_calls: list[ToolCall] = []
    num_calls = num_malformed = 0
    for message in rollout.messages:
        if message["role"] != "assistant":
            if not open_calls:
                raise AlignmentError("a tool answered a call that was not made", where=rollout.name)
            call, text = open_calls.pop(0), str(message["content"])
            turns.append(_result_turn(call, text))
            seen.append(replace(turns[-1], blocks=(ToolResult(call.id, text),)))
            continue
        span = spans[len(span_of_turn)]
        span_of_turn[len(turns)] = span
        calls = [
            ToolCall(f"c{num_calls + i}", *_name_and_arguments(call))
            for i, call in enumerate(message.get("tool_calls") or ())
        ]
        problem = "" if calls else _call_problem(ids[span[0] : span[1]], renderer, tools)
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
        seen.append(turns[-1])
        open_calls = [] if problem else list(calls)
        if problem:
            error = f"InputValidationError: malformed tool call: {problem}"
            turns.append(
                Turn(
                    role="tool",
                    author=ENVIRONMENT,
                    blocks=(ToolResult(calls[0].id, error, is_error=True),),
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
    return TrlSession(
        session=session, spans=span_of_turn, num_malformed=num_malformed, seen=tuple(seen)
    )


def _prompt_turn(message: Message) -> Turn:
    author = {"user": HUMAN, "system": HARNESS}.get(message["role"])
    return Turn(role=message["role"], author=author, blocks=(Text(str(message["content"])),))


def _name_and_arguments(call: Message) -> tuple[str, Mapping[str, Any]]:
    function = call["function"]
    return str(function["name"]), function.get("arguments") or {}


def _call_problem(ids: Sequence[int], renderer: Renderer, tools: Sequence[ToolSpec]) -> str:
    """The problem of a call that TRL could not parse; "" if the message holds no call."""
    ends = renderer.codec.control.values()
    body = ids[:-1] if ids and ids[-1] in ends else ids
    parts = parse_message(body, codec=renderer.codec, parser=parser_of(renderer), tools=tools)
    broken = [part for part in parts if isinstance(part, (MalformedCall, WrittenCall))]
    if not broken:
        return ""
    return broken[0].problem if isinstance(broken[0], MalformedCall) else "it could not be read"


def _result_turn(call: ToolCall, text: str) -> Turn:
    result, is_error = unwrap_result(text, tool=call.name)
    return Turn(
        role="tool", author=ENVIRONMENT, blocks=(ToolResult(call.id, result, is_error=is_error),)
    )


def unwrap_result(text: str, *, tool: str) -> tuple[str, bool]:
    """A tool's result without TRL's wrapping, and whether it is an error.

    >>> unwrap_result("{'error': 'Tool read not found.'}", tool="read")
    ('Tool read not found.', True)
    >>> unwrap_result("{'error': 'Env.read() missing 1 required argument'}", tool="read")[0]
    'InputValidationError: Env.read() missing 1 required argument'
    """
    error = _exception_message(text)
    if error is None:
        return text, is_error_text(text, is_shell=False)
    if re.match(
        rf"(?:\w+\.)*{re.escape(tool)}\(\) (?:got an unexpected keyword argument|missing \d+"
        r" required)",
        error,
    ):
        error = f"InputValidationError: {error}"
    return error, True


def _exception_message(text: str) -> str | None:
    """The message of an exception that TRL caught and wrote as a dict; None for any other
    result."""
    if not text.startswith(("{'error': ", '{"error": ')):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    is_wrapped = isinstance(value, dict) and list(value) == ["error"]
    return value["error"] if is_wrapped and isinstance(value["error"], str) else None
