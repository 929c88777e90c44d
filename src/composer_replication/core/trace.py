"""Session and Turn: what happened in one agent run, as facts.

An imported log and a live rollout are the same type. A message is stored once; what the model had
in view at a step is a *range* over the turns (`Segment`), never a copied prefix.

Example: turn 0 human "fix it", 1 assistant calls read (c1), 2 tool result of c1, 3 assistant calls
edit (c2):

    Session(turns=(t0, t1, t2, t3), segments=(Segment(start=0, end=4),))
    session.context(3) -> (t0, t1, t2)

After a compaction the model sees only the summary (turn 40) and the messages that were preserved
(36-39):

    Segment(context=((36, 40),), start=40, end=90)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from composer_replication.core.errors import SessionError

Role = Literal["system", "user", "assistant", "tool"]
JSON = Any  # any value json.loads can return

HUMAN, HARNESS, ENVIRONMENT = "human", "harness", "environment"
CLEARED_TEXT = "[Old tool result content cleared]"
INTERRUPT_PREFIX = "[Request interrupted"


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, e.g. Text("Let me look.")."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning text; "" if the log keeps only a signature."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call with parsed arguments, e.g. ToolCall("toolu_1", "Read", {"file_path": "a.py"})."""

    id: str
    name: str
    arguments: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The environment's answer to one call.

    `is_error` is None if the log does not say. `images` are the media types of pictures, whose
    bytes are not kept.
    Example: ToolResult("toolu_1", "File does not exist.", is_error=True)
    """

    call_id: str
    text: str
    is_error: bool | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opaque:
    """A block of an unknown type, as JSON text, e.g. Opaque("server_tool_use", '{"name": ...}')."""

    type: str
    text: str


Block = Text | Thinking | ToolCall | ToolResult | Opaque


@dataclass(frozen=True, slots=True)
class Sampled:
    """The exact tokens our own student wrote for this turn, with their log-probs (same length).

    Example: Sampled(ids=(5, 9, 2), logprobs=(-0.1, -1.2, -0.01))
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise SessionError(f"{len(self.ids)} sampled ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUsage:
    """The tokens of one message as its provider reported them, beside `Turn.context_tokens`.

    `cached_tokens` and `cache_write_tokens` are the parts of the prompt that were read from and
    written to the provider's cache; `hour_write_tokens` is the part of the latter that is kept for
    an hour, which costs more. `usd` is the price that the log itself names (None: none).
    Example: TurnUsage(output_tokens=210, cached_tokens=90_000, cache_write_tokens=1_200)
    """

    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    hour_write_tokens: int = 0
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message.

    `author` says who wrote it: a model id, "human", "harness" (text that the agent program
    injected), "environment" (tool results), or None if the log does not say. `role` alone cannot
    tell these apart. `tag` names the kind of injected message ("compact_summary", "command",
    "reminder", "interrupt", "hook", ...). `context_tokens` is the prompt size that the provider
    reported for an assistant message (0 = not reported), `usage` the rest of its report, and
    `written_at` the log's time of the message in seconds since 1970 (0.0 = not logged); neither
    distinguishes two copies of a message.
    Example: Turn(role="assistant", author="claude-opus-4-5", blocks=(Text("Look:"),))
    """

    role: Role
    author: str | None
    blocks: tuple[Block, ...]
    tag: str = ""
    context_tokens: int = 0
    usage: TurnUsage | None = field(default=None, compare=False)
    written_at: float = field(default=0.0, compare=False)
    sampled: Sampled | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of this message, in order."""
        return tuple([block for block in self.blocks if isinstance(block, ToolCall)])

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results of this message, in order."""
        return tuple([block for block in self.blocks if isinstance(block, ToolResult)])

    @property
    def text(self) -> str:
        """The text blocks joined by newlines; thinking, calls and results are not text."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def is_interrupt(self) -> bool:
        """Whether the agent program says here that the human cut off the preceding message."""
        return self.tag == "interrupt" or (
            self.role == "user" and self.text.startswith(INTERRUPT_PREFIX)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The turns [start, end), all written with the same earlier messages in context.

    `context` lists those earlier turns as ranges [a, b), in prompt order; each range ends at or
    before `start`. `cleared` are the ids of calls whose results the agent had removed from the
    context by then (micro-compaction), although the log still shows them.
    Example: Segment(context=((0, 10),), start=20, end=31)  # turns 10-19 were rewound by the user
    """

    start: int
    end: int
    context: tuple[tuple[int, int], ...] = ()
    cleared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool on offer: its name, its description and the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, JSON] = field(default_factory=dict)


HACK_ATTEMPT, JUDGED = "hack_attempt", "judged"
"""Kinds of events of a rollout: what it tried instead of its task, and why it earned nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An occurrence that is not a message: after how many turns, about which call, and its text.

    Kinds: "compaction", "microcompaction", "synthetic" (an assistant record that no model wrote),
    "hook_blocked", "api_error", "queued" (text that the human typed while the model was writing).
    Example: Event(kind="hook_blocked", turn=8, call_id="c3", text="type check failed: ...")
    """

    kind: str
    turn: int
    call_id: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRef:
    """The log of a session, e.g. SourceRef(file="a.jsonl", sha256="...", format="claude_code")."""

    file: str
    sha256: str = ""
    format: str = ""
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The call that started a subagent; `call_id` is None if the log does not record it.

    Example: Parent(session_id="s1", call_id="toolu_9")
    """

    session_id: str
    call_id: str | None


@dataclass(frozen=True, slots=True)
class CallRef:
    """A call and its result, each with its turn; None for a result that the log does not hold."""

    turn: int
    call: ToolCall
    result_turn: int | None
    result: ToolResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One agent run: turns in order, tools offered, and what was in context at each step.

    `tools_origin`: "log" = the log held the schemas; "reconstructed" = inferred from the calls;
    "none". `copied` = the number of leading turns that another session holds too (resume or fork):
    they are context and are never trained on twice. `requests` = the number of prompts that the log
    holds verbatim; `requests_verified` = how many of those have exactly the messages, by hash, that
    `context` gives for the answering turn (compared before secrets are removed).
    Raises SessionError if the segments do not cover the turns in order, or if the context of a
    segment names a turn twice or one that is not before it.
    """

    id: str
    source: SourceRef
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...]
    tools: tuple[ToolSpec, ...] = ()
    tools_origin: Literal["log", "reconstructed", "none"] = "none"
    events: tuple[Event, ...] = ()
    parent: Parent | None = None
    copied: int = 0
    origin: Literal["trace", "student"] = "trace"
    cwd: str = ""
    repository: str = ""
    started: str = ""
    ended: str = ""
    outcome: float | None = None
    requests: int = 0
    requests_verified: int = 0

    def __post_init__(self) -> None:
        n, expected = len(self.turns), 0
        for segment in self.segments:
            if segment.start != expected or segment.end < segment.start or segment.end > n:
                raise SessionError(
                    f"segment {segment.start}-{segment.end} does not continue at turn {expected}"
                    f" of {n}",
                    where=self.id,
                )
            expected = segment.end
            context_text = f"the context {segment.context} of the segment at turn {segment.start}"
            if any(not 0 <= a < b <= segment.start for a, b in segment.context):
                raise SessionError(f"{context_text} is not before it", where=self.id)
            if any(b > a for (_, b), (a, _) in pairwise(sorted(segment.context))):
                raise SessionError(f"{context_text} holds a turn twice", where=self.id)
        if expected != n:
            raise SessionError(
                f"segments end at turn {expected}, but there are {n} turns", where=self.id
            )

    def event_texts(self, kind: str) -> tuple[str, ...]:
        """The texts of its events of one kind, e.g. ("start-up files: conftest.py",)."""
        return tuple(event.text for event in self.events if event.kind == kind)

    def segment_of(self, turn: int) -> Segment:
        """The segment that holds a turn; raises SessionError if there is no such turn."""
        for segment in self.segments:
            if segment.start <= turn < segment.end:
                return segment
        raise SessionError(f"no turn {turn} (there are {len(self.turns)})", where=self.id)

    def context_indices(self, turn: int) -> tuple[int, ...]:
        """Indices of the turns that were in context when `turn` was written, in prompt order."""
        segment = self.segment_of(turn)
        before = [i for a, b in segment.context for i in range(a, b)]
        return (*before, *range(segment.start, turn))

    def turn_in_view(self, index: int, *, at: int) -> Turn:
        """Turn `index` as the context of turn `at` shows it: cleared results read CLEARED_TEXT."""
        turn, cleared = self.turns[index], self.segment_of(at).cleared
        if not cleared or not any(r.call_id in cleared for r in turn.results):
            return turn
        blocks = tuple(
            (
                replace(b, text=CLEARED_TEXT)
                if isinstance(b, ToolResult) and b.call_id in cleared
                else b
            )
            for b in turn.blocks
        )
        return replace(turn, blocks=blocks)

    def context(self, turn: int) -> tuple[Turn, ...]:
        """The messages that were in context when `turn` was written, without the turn itself."""
        return tuple(self.turn_in_view(i, at=turn) for i in self.context_indices(turn))

    def calls(self) -> dict[str, CallRef]:
        """Every call by id, with its turn and its result.

        Results are joined by call id, never by adjacency: calls of one message run in parallel.
        """
        calls: dict[str, tuple[int, ToolCall]] = {}
        results: dict[str, tuple[int, ToolResult]] = {}
        for index, turn in enumerate(self.turns):
            for block in turn.blocks:
                if isinstance(block, ToolCall):
                    calls.setdefault(block.id, (index, block))
                elif isinstance(block, ToolResult):
                    results.setdefault(block.call_id, (index, block))
        refs: dict[str, CallRef] = {}
        for call_id, (index, call) in calls.items():
            result_turn, result = results.get(call_id, (None, None))
            refs[call_id] = CallRef(index, call, result_turn, result)
        return refs

    def assistant_turns(self) -> Iterator[tuple[int, Turn]]:
        """Yield (index, turn) of every assistant message that no other session holds already."""
        for index, turn in enumerate(self.turns):
            if turn.role == "assistant" and index >= self.copied:
                yield index, turn
