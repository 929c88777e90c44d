"""The tokens of a message at which its mistake was decided.

    decisions = decision_tokens(renderer, message, site_id=site.id, call_id=site.call_id,
                                decision=hint.decision, ids=ids[a:b], start=a)

For train.hint.focus = "decision" (the hint channel trains on these tokens alone) and the lift of a
hint. The message is rendered again with another text in place of the wrong tool name or argument:
where the renderings differ are its tokens, `spans`. With each right text the ids differ from some
token on. The last of these tokens is `fork`, the first at which the message can no longer become
right; `right_ids` are the tokens there that still lead to a right text. `spans` contain the fork.

    message  {"name": "Edit", "arguments": ...      decision: Edit is wrong, Read is right
    tokens   ... "name ": " Edit " ...              spans = that of Edit
    fork                    ^                       right_ids = (Read,)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from composer_replication.core.errors import RenderError
from composer_replication.core.site import Decision
from composer_replication.core.trace import HUMAN, Text, ToolCall, Turn
from composer_replication.tokens.example import DecisionTokens, Span
from composer_replication.tokens.layout import shared_prefix_length
from composer_replication.tokens.renderer import Renderer

_ABOVE = Turn(role="user", author=HUMAN, blocks=(Text("x"),))
# Texts that no argument holds, and that share neither their first nor their last character.
_PROBES = ("qq0qq", "zz1zz", "jj2jj")


def decision_tokens(
    renderer: Renderer,
    message: Turn,
    *,
    site_id: str,
    call_id: str | None,
    decision: Decision | None,
    ids: Sequence[int],
    start: int,
) -> DecisionTokens | None:
    """The decision of one call of a message whose own tokens are `ids`, from position `start` on.

    None if the decision is not known, or if the message, written as the template writes it, has
    another text. Without `fork` if nothing is known to be right, or if other tokens of the same
    text were sampled.
    """
    call = next((call for call in message.calls if call.id == call_id), None)
    if decision is None or call is None:
        return None
    if decision.part == "value" and decision.with_text(call, _PROBES[0]) == call:
        return None  # the value does not hold what was wrong
    try:
        written = _body(renderer, message, call, call)
        text = renderer.codec.decode(written)
        if renderer.codec.decode(ids) != text:
            return None
        a, b = _changed(renderer, message, call, decision=decision, text=text)
        span = _token_span(renderer, ids, a, b)
        fork, right_ids = None, ()
        if written == tuple(ids):
            fork, right_ids = _fork(renderer, message, call, decision=decision, written=written)
    except RenderError:
        return None
    if fork is not None:
        if decision.part == "argument" and not decision.wrong:
            span = (fork, fork + 1)  # nothing was written: the call ends too early
        # the fork may come before the wrong text, if a token holds the beginning of the right text
        # and what comes before it
        span = (min(span[0], fork), max(span[1], fork + 1))
    return DecisionTokens(
        site_id=site_id,
        spans=((start + span[0], start + span[1]),),
        fork=None if fork is None else start + fork,
        right_ids=right_ids,
    )


def _body(renderer: Renderer, message: Turn, call: ToolCall, new: ToolCall) -> tuple[int, ...]:
    """The message's own tokens as the template writes it, with `new` in place of `call`."""
    blocks = tuple(new if block is call else block for block in message.blocks)
    return renderer.reply([_ABOVE], replace(message, blocks=blocks, sampled=None))[1]


def _changed(
    renderer: Renderer, message: Turn, call: ToolCall, *, decision: Decision, text: str
) -> Span:
    """The characters of the message that hold what was wrong."""
    first = last = decision
    if decision.part == "call":
        first = Decision(part="tool", wrong=call.name)
        names = list(call.arguments)
        last = Decision(part="value", argument=names[-1]) if names else first
    spans = []
    for part in (first, last):
        value = call.arguments.get(part.argument) if part.part == "value" else ""
        wrong = part.wrong or (value if isinstance(value, str) else "")
        probe = next(p for p in _PROBES if p[0] != wrong[:1] and p[-1] != wrong[-1:])
        other = renderer.codec.decode(_body(renderer, message, call, part.with_text(call, probe)))
        begin = shared_prefix_length(text, other)
        behind = shared_prefix_length(text[begin:][::-1], other[begin:][::-1])
        spans.append((begin, len(text) - behind))
    return spans[0][0], max(spans[0][0], spans[-1][1])


def _token_span(renderer: Renderer, ids: Sequence[int], start: int, end: int) -> Span:
    """The tokens that hold the characters [start, end) of the decoded ids; at least one.

    A character may take several tokens. Until its last one it reads as U+FFFD, in some tokenizers
    with the characters before it: only at some counts do the first tokens read as the text begins.
    """
    text = renderer.codec.decode(ids)

    def length(count: int) -> int:
        """The characters of the first `count` tokens, up to the end of the last one's character."""
        return len(renderer.codec.decode(ids[: character_end(count)]))

    def character_end(count: int) -> int:
        return next(
            n for n in range(count, len(ids) + 1) if text.startswith(renderer.codec.decode(ids[:n]))
        )

    counts = range(len(ids) + 1)
    first = min(bisect_right(counts, start, key=length) - 1, len(ids) - 1)
    behind = character_end(bisect_left(counts, end, key=length))
    return first, max(first + 1, behind)


def _fork(
    renderer: Renderer,
    message: Turn,
    call: ToolCall,
    *,
    decision: Decision,
    written: tuple[int, ...],
) -> tuple[int | None, tuple[int, ...]]:
    """The first token at which the message can no longer become right, and the right ones there."""
    bodies = (
        _body(renderer, message, call, decision.with_text(call, right)) for right in decision.right
    )
    return fork_between(written, bodies)


def fork_between(
    written: tuple[int, ...], right: Iterable[tuple[int, ...]]
) -> tuple[int | None, tuple[int, ...]]:
    """The first token at which a message can no longer become one of the right ones, and theirs
    there; None if it is the beginning of each of them, or equal.

    >>> fork_between((1, 2, 3), [(1, 5), (1, 2, 7), (1, 2, 8)])
    (2, (7, 8))
    """
    right_at: dict[int, list[int]] = {}
    for other in right:
        at = shared_prefix_length(written, other)
        if at < min(len(written), len(other)):
            right_at.setdefault(at, []).append(other[at])
    if not right_at:
        return None, ()
    fork = max(right_at)
    return fork, tuple(dict.fromkeys(right_at[fork]))
