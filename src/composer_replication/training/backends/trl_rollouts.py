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
from collections import Counter
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
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.data.sites.tool_errors import is_error_text
from composer_replication.rollouts.episode import MALFORMED
from composer_replication.rollouts.parse import MalformedCall, WrittenCall, parse_message, parser_of
from composer_replication.tokens.example import HintView, Span, TrainingExample
from composer_replication.tokens.renderer import Renderer

Message = Mapping[str, Any]
TRAINED = ("mistake", "recovery")
_SITE_FACTS = tuple(
    f"sites/{name}"
    for name in (
        "found",
        "without_hint",
        "refused",
        "weak",
        "not_built",
        "not_drawn",
        "used",
        "messages",
    )
)
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
class Made:
    """One example per rollout, in order, each with its hint views (perhaps none), and numbers by
    metric name."""

    examples: tuple[TrainingExample, ...]
    facts: Mapping[str, float]
    recorded: tuple[TrlSession | None, ...] = ()
    """None = its messages are not the stretches that were written."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The rollouts that could be recorded."""
        return tuple(one.session for one in self.recorded if one is not None)


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
    kept: frozenset[str] | None = None
    author: str = "student"
    hinted: bool = True
    """False = mistakes are counted, but no hint is written."""

    def make(
        self,
        played: Sequence[TrlRollout],
        *,
        max_sites: int = 0,
        max_tokens: int = 0,
        seed: int = 0,
    ) -> Made:
        """The examples of some rollouts: at most `max_sites` views, drawn by `seed`, no teacher row
        above `max_tokens`; 0 = no bound."""
        facts: Counter[str] = Counter(
            dict.fromkeys(("rollouts/unaligned", "rollouts/malformed", *_SITE_FACTS), 0)
        )
        kept: list[TrlSession | None] = []
        found: dict[str, list[HintView]] = {rollout.name: [] for rollout in played}
        for rollout in played:
            try:
                recorded = record_rollout(
                    rollout, renderer=self.renderer, tools=self.tools, author=self.author
                )
            except AlignmentError:
                facts["rollouts/unaligned"] += 1
                kept.append(None)
                continue
            facts["rollouts/malformed"] += recorded.num_malformed
            kept.append(recorded)
            for message in self._hints(recorded.session, facts):
                view = self._view((*rollout.prompt_ids, *rollout.completion_ids), recorded, message)
                if view is None or (max_tokens and view.span[1] + len(view.hint_ids) > max_tokens):
                    facts["sites/not_built"] += len(message)
                else:
                    found[rollout.name].append(view)
        lots = sorted(
            (v for views in found.values() for v in views),
            key=lambda view: stage_seed(seed, view.site_id),
        )
        used = lots[:max_sites] if max_sites else lots
        drawn = {view.site_id for view in used}
        facts["sites/messages"], facts["sites/used"] = (
            len(used),
            sum(len(view.site_ids) for view in used),
        )
        facts["sites/not_drawn"] = sum(len(view.site_ids) for view in lots) - facts["sites/used"]
        examples = tuple(
            TrainingExample(
                id=rollout.name,
                session_id=rollout.name,
                ids=(*rollout.prompt_ids, *rollout.completion_ids),
                hints=tuple(view for view in found[rollout.name] if view.site_id in drawn),
                origin="student",
            )
            for rollout in played
        )
        return Made(
            examples=examples,
            facts={name: float(n) for name, n in facts.items()},
            recorded=tuple(kept),
        )

    def _hints(self, session: Session, facts: Counter[str]) -> list[list[tuple[Site, Hint]]]:
        """The sites with a hint, message by message: one message is one view."""
        found = find_sites(session, settings=self.sites)
        facts["sites/found"] += sum(site.category in TRAINED for site in found)
        if not found or not self.hinted:
            return []
        report = write_hints(session, found, settings=self.hints)
        facts["sites/without_hint"] += sum(report.without.values())
        facts["sites/refused"] += len(report.refused)
        strong = [hint for hint in report.hints if self.kept is None or hint.kind in self.kept]
        facts["sites/weak"] += len(report.hints) - len(strong)
        by_id = {site.id: site for site in found}
        messages: dict[int, list[tuple[Site, Hint]]] = {}
        for hint in strong:
            messages.setdefault(by_id[hint.site_id].turn, []).append((by_id[hint.site_id], hint))
        return list(messages.values())

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
