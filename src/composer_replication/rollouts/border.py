"""What an environment says, checked and cleaned before anything reads it: it may be of a wrong type, endless, or no text at all.

    checked_reply(reply, calls=("c0",), limits=Limits())      # the reply with clean texts, or FaultError with what is wrong
    clean_text(b"\\xff\\x1b[31mred", max_chars=100)            # '\\ufffd\\u241b[31mred'

Control characters are shown by their pictures (U+2400 ...), so that they are seen and obeyed by nobody; bytes that are not UTF-8 and
halves of surrogate pairs become U+FFFD; of a result that is too long its beginning is kept, and how much is missing is said behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from composer_replication.core.trace import Block, Text, ToolResult, ToolSpec, Turn
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.sampling import Limits

_KEPT = "\t\n\r"
_PICTURES = {i: 0x2400 + i for i in range(0x20) if chr(i) not in _KEPT} | {0x7F: 0x2421}
_PICTURES |= dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)


class FaultError(Exception):
    """An environment broke the protocol; it costs the episode and goes no further than the episode."""


def clean_text(text: str | bytes, *, max_chars: int) -> str:
    """Text that can be encoded, printed and held, at most `max_chars` characters of it and a note on the rest.

    >>> clean_text("abcdef", max_chars=4)
    'abcd\\n[2 more characters are left out: a result may have 4]'
    >>> clean_text("\\x1b[2Jhi\\ud800", max_chars=99) == "\\u241b[2Jhi\\ufffd"
    True
    """
    held = text[: 4 * max_chars].decode("utf-8", errors="replace") if isinstance(text, bytes) else text
    kept = held[:max_chars].translate(_PICTURES)
    missing = len(text) - max_chars if isinstance(text, str) else max(len(held), len(text) // 4) - max_chars
    if missing <= 0:
        return kept
    about = "at least " if isinstance(text, bytes) else ""
    return f"{kept}\n[{about}{missing} more characters are left out: a result may have {max_chars}]"


def checked_opening(opening: object, *, limits: Limits) -> Opening:
    """The opening with clean texts, one of a log as it stands; raises FaultError where it is none."""
    if not isinstance(opening, Opening):
        raise FaultError(f"open() gave {type(opening).__name__}, not an Opening")
    if not opening.turns:
        raise FaultError("the opening holds no message")
    if not all(isinstance(tool, ToolSpec) for tool in opening.tools):
        raise FaultError("a tool on offer is no ToolSpec")
    if opening.logged:
        if wrong := next((turn for turn in opening.turns if not isinstance(turn, Turn)), None):
            raise FaultError(f"a message is {type(wrong).__name__}, not a Turn")
        return opening
    return Opening(turns=tuple(_turn(turn, limits=limits) for turn in opening.turns), tools=tuple(opening.tools))


def checked_reply(reply: object, *, calls: Sequence[str], limits: Limits) -> Reply:
    """The reply with clean texts; raises FaultError where it is none, or where it does not answer each of `calls` exactly once.

    A reply that ends the episode need not answer.
    """
    if not isinstance(reply, Reply):
        raise FaultError(f"reply() gave {type(reply).__name__}, not a Reply")
    turns = tuple(_turn(turn, limits=limits) for turn in reply.turns)
    if any(turn.role == "assistant" for turn in turns):
        raise FaultError("the environment answered with a message of the student")
    answered = [result.call_id for turn in turns for result in turn.results]
    if len(set(answered)) != len(answered) or not set(answered) <= set(calls):
        raise FaultError("a result answers no call, or one that has its result already")
    if not reply.done and (missing := set(calls) - set(answered)):
        raise FaultError(f"the environment gave no result to {len(missing)} of {len(calls)} calls")
    return Reply(turns=turns, done=bool(reply.done))


def _turn(turn: object, *, limits: Limits) -> Turn:
    if not isinstance(turn, Turn):
        raise FaultError(f"a message is {type(turn).__name__}, not a Turn")
    return replace(turn, blocks=tuple(_blocks(turn.blocks, limits=limits)), sampled=None)


def _blocks(blocks: Sequence[Block], *, limits: Limits) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, (Text, ToolResult)):
            if not isinstance(block.text, (str, bytes)):
                raise FaultError(f"the text of a block is {type(block.text).__name__}")
            yield replace(block, text=clean_text(block.text, max_chars=limits.max_result_chars))
        else:
            raise FaultError(f"an environment cannot say a {type(block).__name__}")
