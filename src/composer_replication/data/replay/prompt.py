"""The prompt of a teacher: the context that the student had, trimmed to a budget.

    budget = PromptBudget(max_tokens=32_000, head_tokens=4_000, tail_tokens=8_000)
    prompt = Prompts(session, budget=budget).at(41)
    prompt.turns, prompt.tokens, prompt.results_cut, prompt.messages_left_out

A context that fits is shown in full. Of a longer one the head and the tail stay; between them tool
results are replaced by a note of their length and long arguments by their beginning, and if that is
not enough the oldest messages are dropped, with a note of how many. Position alone decides what
stays: choosing by what the student did next would tell the teachers what it was. Nothing after the
message is ever shown.

Both boundaries move in steps, not with every message. So the prompts of neighbouring steps share a
prefix, which a provider's cache holds already if the steps are asked in order.

Thinking is never shown. Tokens are estimated from bytes, because this package calls no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from composer_replication.core.trace import (
    Block,
    Opaque,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)

BYTES_PER_TOKEN = 2.5
"""Measured on public sessions against the provider's counts (benchmarks/replay_cost.py) and rounded
down, so that token counts are overestimated."""
MESSAGE_TOKENS = 6
SHORT_CHARS = 300
"""Results and arguments up to this length are never cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBudget:
    """The estimated tokens of a prompt, its head and its tail; see replay.max_prompt_tokens."""

    max_tokens: int
    head_tokens: int
    tail_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedPrompt:
    """The messages shown, their estimated tokens, and how much was cut.

    `fits` is False if they exceed the budget even so.
    """

    turns: tuple[Turn, ...]
    tokens: int
    results_cut: int = 0
    messages_left_out: int = 0
    fits: bool = True


class Prompts:
    """The prompts of one session; the size of each message is estimated once."""

    def __init__(self, session: Session, *, budget: PromptBudget) -> None:
        self._session, self._budget = session, budget
        self._shown: dict[int, tuple[Turn, int]] = {}

    def at(self, turn: int) -> TrimmedPrompt:
        """Return the prompt for a turn: the context in view when it was written."""
        cleared = bool(self._session.segment_of(turn).cleared)
        untrimmed = [
            self._untrimmed(index, turn, cleared) for index in self._session.context_indices(turn)
        ]
        total = sum(size for _, size in untrimmed)
        if total <= self._budget.max_tokens:
            return TrimmedPrompt(
                turns=tuple(shown for shown, _ in untrimmed if shown.blocks), tokens=total
            )
        return self._trim([shown for shown, _ in untrimmed], [size for _, size in untrimmed])

    def _untrimmed(self, index: int, at: int, cleared: bool) -> tuple[Turn, int]:
        if cleared:
            shown = without_thinking(self._session.turn_in_view(index, at=at))
            return shown, estimate_message_tokens(shown)
        if index not in self._shown:
            shown = without_thinking(self._session.turns[index])
            self._shown[index] = shown, estimate_message_tokens(shown)
        return self._shown[index]

    def _trim(self, turns: list[Turn], sizes: list[int]) -> TrimmedPrompt:
        budget = self._budget
        cumulative = list(accumulate(sizes))
        head = _head_length(turns)
        # The tail begins at a multiple of its size, so that it starts at the same message for many
        # steps.
        boundary = (
            max(0, cumulative[-1] - budget.tail_tokens) // budget.tail_tokens * budget.tail_tokens
        )
        tail_start = next(
            (i for i in range(head, len(turns)) if cumulative[i] > boundary), len(turns)
        )
        head_turns = [cut_texts(turn, budget.head_tokens // max(1, head)) for turn in turns[:head]]
        middle = [cut_results(turn, SHORT_CHARS) for turn in turns[head:tail_start]]
        tail_turns = [cut_texts(turn, budget.max_tokens // 4) for turn in turns[tail_start:]]
        fixed = sum(map(estimate_message_tokens, (*head_turns, *tail_turns)))
        sizes = [estimate_message_tokens(turn) for turn in middle]
        # The middle gets what head and tail leave; its oldest messages go if that is too little.
        num_left_out = _count_left_out(
            middle, sizes, room=budget.max_tokens - fixed, step=max(1, budget.max_tokens // 4)
        )
        note = (
            (
                Turn(
                    role="user",
                    author="harness",
                    blocks=(Text(f"[{num_left_out} earlier messages left out]"),),
                ),
            )
            if num_left_out
            else ()
        )
        shown = (*head_turns, *note, *middle[num_left_out:], *tail_turns)
        tokens = fixed + sum(sizes[num_left_out:]) + sum(map(estimate_message_tokens, note))
        num_cut = sum(
            a != b
            for a, b in zip(
                (*head_turns, *middle[num_left_out:], *tail_turns),
                (*turns[:head], *turns[head + num_left_out :]),
                strict=True,
            )
        )
        return TrimmedPrompt(
            turns=tuple(turn for turn in shown if turn.blocks),
            tokens=tokens,
            results_cut=num_cut,
            messages_left_out=num_left_out,
            fits=tokens <= budget.max_tokens,
        )


def _head_length(turns: Sequence[Turn]) -> int:
    """Count the messages of the head: up to the first human one, before the first answer."""
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            return index
        if turn.role == "user" and turn.author == "human":
            return index + 1
    return len(turns)


def _count_left_out(turns: Sequence[Turn], sizes: Sequence[int], *, room: int, step: int) -> int:
    """Return how many of the oldest messages to drop so that the others fit `room` tokens.

    At least a multiple of `step` tokens goes, so that the boundary rarely moves.
    """
    excess = sum(sizes) - room
    if excess <= 0:
        return 0
    target, dropped_tokens, count = -(-excess // step) * step, 0, 0
    while count < len(turns) and dropped_tokens < target:
        dropped_tokens += sizes[count]
        count += 1
    # A result is not shown without its call.
    while count < len(turns) and turns[count].role == "tool":
        count += 1
    return count


def without_thinking(turn: Turn) -> Turn:
    """Return the message without thinking and without opaque blocks."""
    blocks = tuple(block for block in turn.blocks if not isinstance(block, (Thinking, Opaque)))
    return turn if len(blocks) == len(turn.blocks) else replace(turn, blocks=blocks)


def cut_results(turn: Turn, limit: int) -> Turn:
    """Return the message with results and arguments of more than `limit` characters cut."""

    def cut(block: Block) -> Block:
        if isinstance(block, ToolResult) and len(block.text) > limit:
            return replace(block, text=f"[old result left out: {len(block.text)} characters]")
        if isinstance(block, ToolCall):
            return replace(block, arguments=_shorten(block.arguments, limit))
        return block

    return replace(turn, blocks=tuple(map(cut, turn.blocks)))


def cut_texts(turn: Turn, max_tokens: int) -> Turn:
    """Return the message with the middle cut out of texts and results of more than `max_tokens`."""
    limit = max(SHORT_CHARS, int(max_tokens * BYTES_PER_TOKEN))

    def cut(block: Block) -> Block:
        if (
            isinstance(block, (Text, ToolResult))
            and len(block.text.encode("utf-8", "surrogatepass")) > limit
        ):
            keep = limit // 2 * len(block.text) // len(block.text.encode("utf-8", "surrogatepass"))
            num_dropped = len(block.text) - 2 * keep
            return replace(
                block,
                text=(
                    f"{block.text[:keep]}\n[{num_dropped} characters left"
                    f" out]\n{block.text[len(block.text) - keep :]}"
                ),
            )
        return block

    return replace(turn, blocks=tuple(map(cut, turn.blocks)))


def _shorten(value: Any, limit: int) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return f"{value[: limit // 2]}[{len(value) - limit // 2} characters left out]"
    if isinstance(value, Mapping):
        return {key: _shorten(inner, limit) for key, inner in value.items()}
    return (
        [_shorten(inner, limit) for inner in value] if isinstance(value, (list, tuple)) else value
    )


def estimate_message_tokens(turn: Turn) -> int:
    """Estimate the tokens of a message.

    >>> estimate_message_tokens(Turn(role="user", author="human", blocks=(Text("x" * 25),)))
    16
    """
    count = 0
    for block in turn.blocks:
        if isinstance(block, ToolCall):
            count += len(block.name) + _count_bytes(block.arguments)
        elif not isinstance(block, Thinking):
            count += _count_bytes(block.text)
    return MESSAGE_TOKENS + int(count / BYTES_PER_TOKEN)


def _count_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return sum(_count_bytes(key) + _count_bytes(inner) + 5 for key, inner in value.items())
    return sum(map(_count_bytes, value)) if isinstance(value, (list, tuple)) else len(str(value))
