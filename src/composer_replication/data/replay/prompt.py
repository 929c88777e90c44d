"""What a teacher is shown: the context that the student had, trimmed to a budget, never anything
from after the message.

    prompts = Prompts(session, budget=PromptBudget(max_tokens=32_000, head_tokens=4_000, tail_tokens=8_000))
    prompt = prompts.at(41)
    prompt.turns, prompt.tokens, prompt.results_cut, prompt.messages_left_out

A context that fits is shown whole. Of a longer one the beginning and the last messages stay;
between them the results of tools give way to a note of their length, long arguments to their
beginning, and where that is not enough the oldest messages go, with a note of how many. What stays
is decided by position alone: choosing by what the student did next would tell the teachers what it
was.

Both borders move in steps, not with every message. So the prompts of neighbouring steps begin with
the same messages, and a provider's cache that is asked in order has most of each prompt already.

Thinking is never shown, and tokens are estimated from bytes: there is no tokenizer on this floor.
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
"""Measured on public sessions against the provider's own counts (benchmarks/replay_cost.py),
rounded so as to estimate too much."""
MESSAGE_TOKENS = 6
SHORT_CHARS = 300
"""A result or an argument that is not longer is never cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBudget:
    """How long a prompt may be, and how much of its beginning and end stays, in estimated tokens;
    see replay.max_prompt_tokens."""

    max_tokens: int
    head_tokens: int
    tail_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedPrompt:
    """The messages shown, their estimated tokens, and how much was cut; `fits` is False where even
    that is over the budget."""

    turns: tuple[Turn, ...]
    tokens: int
    results_cut: int = 0
    messages_left_out: int = 0
    fits: bool = True


class Prompts:
    """The prompts of one session; sizes of messages are counted once."""

    def __init__(self, session: Session, *, budget: PromptBudget) -> None:
        self._session, self._budget = session, budget
        self._shown: dict[int, tuple[Turn, int]] = {}
        self._short: dict[int, tuple[Turn, int, int]] = {}

    def at(self, turn: int) -> TrimmedPrompt:
        """The prompt for a message: what was in view when it was written."""
        cleared = bool(self._session.segment_of(turn).cleared)
        whole = [self._whole(index, turn, cleared) for index in self._session.context_indices(turn)]
        total = sum(size for _, size in whole)
        if total <= self._budget.max_tokens:
            return TrimmedPrompt(
                turns=tuple(shown for shown, _ in whole if shown.blocks), tokens=total
            )
        return self._trimmed([shown for shown, _ in whole], [size for _, size in whole])

    def _whole(self, index: int, at: int, cleared: bool) -> tuple[Turn, int]:
        if cleared:
            shown = without_thinking(self._session.turn_in_view(index, at=at))
            return shown, estimate_message_tokens(shown)
        if index not in self._shown:
            shown = without_thinking(self._session.turns[index])
            self._shown[index] = shown, estimate_message_tokens(shown)
        return self._shown[index]

    def _trimmed(self, turns: list[Turn], sizes: list[int]) -> TrimmedPrompt:
        budget = self._budget
        ends = list(accumulate(sizes))
        head = _head_end(turns)
        # The tail begins at a multiple of its size, so that it begins at the same message for many
        # steps.
        border = max(0, ends[-1] - budget.tail_tokens) // budget.tail_tokens * budget.tail_tokens
        tail = next((i for i in range(head, len(turns)) if ends[i] > border), len(turns))
        front = [cut_texts(turn, budget.head_tokens // max(1, head)) for turn in turns[:head]]
        middle = [cut_results(turn, SHORT_CHARS) for turn in turns[head:tail]]
        end = [cut_texts(turn, budget.max_tokens // 4) for turn in turns[tail:]]
        fixed = sum(map(estimate_message_tokens, (*front, *end)))
        sizes = [estimate_message_tokens(turn) for turn in middle]
        gone = _left_out(
            middle, sizes, room=budget.max_tokens - fixed, step=max(1, budget.max_tokens // 4)
        )
        note = (
            (
                Turn(
                    role="user",
                    author="harness",
                    blocks=(Text(f"[{gone} earlier messages left out]"),),
                ),
            )
            if gone
            else ()
        )
        shown = (*front, *note, *middle[gone:], *end)
        tokens = fixed + sum(sizes[gone:]) + sum(map(estimate_message_tokens, note))
        cut = sum(
            a != b
            for a, b in zip(
                (*front, *middle[gone:], *end), (*turns[:head], *turns[head + gone :]), strict=True
            )
        )
        return TrimmedPrompt(
            turns=tuple(turn for turn in shown if turn.blocks),
            tokens=tokens,
            results_cut=cut,
            messages_left_out=gone,
            fits=tokens <= budget.max_tokens,
        )


def _head_end(turns: Sequence[Turn]) -> int:
    """How many messages are the beginning: up to the first that a human wrote, at most those before
    the first answer."""
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            return index
        if turn.role == "user" and turn.author == "human":
            return index + 1
    return len(turns)


def _left_out(turns: Sequence[Turn], sizes: Sequence[int], *, room: int, step: int) -> int:
    """How many of the oldest messages go so that the others fit. Their tokens are a multiple of
    `step`, rounded up to a whole exchange."""
    excess = sum(sizes) - room
    if excess <= 0:
        return 0
    wanted, gone, count = -(-excess // step) * step, 0, 0
    while count < len(turns) and gone < wanted:
        gone += sizes[count]
        count += 1
    # a result does not stay without its call
    while count < len(turns) and turns[count].role == "tool":
        count += 1
    return count


def without_thinking(turn: Turn) -> Turn:
    """The message without thinking and without blocks that nobody can read."""
    blocks = tuple(block for block in turn.blocks if not isinstance(block, (Thinking, Opaque)))
    return turn if len(blocks) == len(turn.blocks) else replace(turn, blocks=blocks)


def cut_results(turn: Turn, limit: int) -> Turn:
    """The message with results and arguments of more than `limit` characters cut; its words
    stay."""

    def cut(block: Block) -> Block:
        if isinstance(block, ToolResult) and len(block.text) > limit:
            return replace(block, text=f"[old result left out: {len(block.text)} characters]")
        if isinstance(block, ToolCall):
            return replace(block, arguments=_shorter(block.arguments, limit))
        return block

    return replace(turn, blocks=tuple(map(cut, turn.blocks)))


def cut_texts(turn: Turn, max_tokens: int) -> Turn:
    """The message with the middle of every text and result cut that alone takes more than
    `max_tokens`."""
    limit = max(SHORT_CHARS, int(max_tokens * BYTES_PER_TOKEN))

    def cut(block: Block) -> Block:
        if (
            isinstance(block, (Text, ToolResult))
            and len(block.text.encode("utf-8", "surrogatepass")) > limit
        ):
            keep = limit // 2 * len(block.text) // len(block.text.encode("utf-8", "surrogatepass"))
            gone = len(block.text) - 2 * keep
            return replace(
                block,
                text=(
                    f"{block.text[:keep]}\n[{gone} characters left"
                    f" out]\n{block.text[len(block.text) - keep :]}"
                ),
            )
        return block

    return replace(turn, blocks=tuple(map(cut, turn.blocks)))


def _shorter(value: Any, limit: int) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return f"{value[: limit // 2]}[{len(value) - limit // 2} characters left out]"
    if isinstance(value, Mapping):
        return {key: _shorter(inner, limit) for key, inner in value.items()}
    return (
        [_shorter(inner, limit) for inner in value] if isinstance(value, (list, tuple)) else value
    )


def estimate_message_tokens(turn: Turn) -> int:
    """Estimated tokens of a message.

    >>> estimate_message_tokens(Turn(role="user", author="human", blocks=(Text("x" * 25),)))
    16
    """
    count = 0
    for block in turn.blocks:
        if isinstance(block, ToolCall):
            count += len(block.name) + _bytes(block.arguments)
        elif not isinstance(block, Thinking):
            count += _bytes(block.text)
    return MESSAGE_TOKENS + int(count / BYTES_PER_TOKEN)


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return sum(_bytes(key) + _bytes(inner) + 5 for key, inner in value.items())
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else len(str(value))
