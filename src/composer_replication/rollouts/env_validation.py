"""Validation and cleaning of everything an environment returns.

It may be of a wrong type, endless, or not text at all.

    checked_reply(reply, calls=("c0",), limits=EpisodeLimits())   # clean texts, or FaultError
    clean_text(b"\\xff\\x1b[31mred", max_chars=100)               # '\\ufffd\\u241b[31mred'

Control characters are replaced by their pictures (U+2400 ...), so that they are visible and have no
effect; bytes that are not UTF-8 and halves of surrogate pairs become U+FFFD; a result that is too
long is cut, with a note on how much is missing. What passes can be rendered, added up and saved;
`checked_reward` checks the reward and the measures,
`checked_metadata` what the environment says about itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, get_args

from composer_replication.core.trace import Block, Role, Text, ToolResult, ToolSpec, Turn
from composer_replication.rollouts.envs.env import (
    EnvMetadata,
    MistakeFamily,
    Opening,
    Remark,
    Reply,
)
from composer_replication.rollouts.sampling import EpisodeLimits

_KEPT = "\t\n\r"
_PICTURES = {i: 0x2400 + i for i in range(0x20) if chr(i) not in _KEPT} | {0x7F: 0x2421}
_PICTURES |= dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
_ROLES = get_args(Role)
MAX_DEPTH = 64
"""The maximum depth of a tool's schema: the JSON writer recurses into it."""
MAX_REMARKS, MAX_REMARK = 20, 500
"""The remarks that are kept of an episode, and the characters of each."""
_MAX_INT = 2**63


class FaultError(Exception):
    """An environment broke the protocol; it costs this episode and nothing else."""


def clean_text(text: str | bytes, *, max_chars: int) -> str:
    """Text that can be encoded, printed and stored; cut at `max_chars` characters, with a note.

    >>> clean_text("abcdef", max_chars=4)
    'abcd\\n[2 more characters are left out: a result may have 4]'
    >>> clean_text("\\x1b[2Jhi\\ud800", max_chars=99) == "\\u241b[2Jhi\\ufffd"
    True
    """
    decoded = (
        text[: 4 * max_chars].decode("utf-8", errors="replace") if isinstance(text, bytes) else text
    )
    shown = decoded[:max_chars].translate(_PICTURES)
    missing = (
        len(text) - max_chars
        if isinstance(text, str)
        else max(len(decoded), len(text) // 4) - max_chars
    )
    if missing <= 0:
        return shown
    qualifier = "at least " if isinstance(text, bytes) else ""
    note = f"{qualifier}{missing} more characters are left out: a result may have {max_chars}"
    return f"{shown}\n[{note}]"


def checked_opening(opening: object, *, limits: EpisodeLimits) -> Opening:
    """The opening with clean texts; raises FaultError if it is not an opening.

    An opening from a log is returned as it is.
    """
    if not isinstance(opening, Opening):
        raise FaultError(f"open() gave {type(opening).__name__}, not an Opening")
    turns = _checked_sequence(opening.turns, of="the messages of the opening")
    if not turns:
        raise FaultError("the opening holds no message")
    offered_tools = _checked_sequence(opening.tools, of="the tools on offer")
    tools = [tool for tool in offered_tools if isinstance(tool, ToolSpec)]
    if len(tools) != len(offered_tools):
        raise FaultError("a tool on offer is no ToolSpec")
    if opening.logged:
        if wrong := next((turn for turn in turns if not isinstance(turn, Turn)), None):
            raise FaultError(f"a message is {type(wrong).__name__}, not a Turn")
        return opening
    return Opening(
        turns=tuple(_checked_turn(turn, limits=limits) for turn in turns),
        tools=tuple(map(_checked_tool, tools)),
    )


def checked_reply(reply: object, *, calls: Sequence[str], limits: EpisodeLimits) -> Reply:
    """The reply with clean texts; raises FaultError if it is invalid.

    Each of `calls` must have exactly one result, unless the reply ends the episode.
    """
    if not isinstance(reply, Reply):
        raise FaultError(f"reply() gave {type(reply).__name__}, not a Reply")
    turns = tuple(
        _checked_turn(turn, limits=limits)
        for turn in _checked_sequence(reply.turns, of="the messages of a reply")
    )
    if any(turn.role == "assistant" for turn in turns):
        raise FaultError("the environment answered with a message of the student")
    answered_ids = [result.call_id for turn in turns for result in turn.results]
    if len(set(answered_ids)) != len(answered_ids) or not set(answered_ids) <= set(calls):
        raise FaultError("a result answers no call, or one that has its result already")
    if not reply.done and (missing := set(calls) - set(answered_ids)):
        raise FaultError(f"the environment gave no result to {len(missing)} of {len(calls)} calls")
    return Reply(turns=turns, done=bool(reply.done))


def checked_max_turns(max_turns: object) -> int:
    """The number of messages that the student may write; FaultError if it is not a valid one."""
    if not isinstance(max_turns, int):
        raise FaultError(f"max_turns is {type(max_turns).__name__}, not a number")
    if max_turns < 1:
        raise FaultError("max_turns is below 1, so the student may not write")
    return int(max_turns)


def checked_reward(reward: object, measures: object) -> tuple[float, dict[str, float]]:
    """The reward and the measures as plain numbers.

    Raises FaultError for a reward outside 0 to 1, or a measure that is not finite.

    >>> checked_reward(1, {"valid_calls": 3})
    (1.0, {'valid_calls': 3.0})
    """
    if not isinstance(reward, (int, float)) or not 0.0 <= reward <= 1.0:
        raise FaultError(f"the reward is {_describe_number(reward)}, not a number from 0 to 1")
    if not isinstance(measures, Mapping):
        raise FaultError(f"the measures are {type(measures).__name__}, not numbers by name")
    checked: dict[str, float] = {}
    for name, value in measures.items():
        if not isinstance(name, str):
            raise FaultError(f"the name of a measure is {type(name).__name__}")
        if not isinstance(value, Real) or not math.isfinite(value):
            raise FaultError(
                f"the measure {name} is {_describe_number(value)}, not a finite number"
            )
        checked[_checked_text(name, of="the name of a measure")] = float(value)
    return float(reward), checked


def checked_remarks(remarks: object) -> tuple[Remark, ...]:
    """The remarks as pairs of plain text, at most MAX_REMARKS; FaultError for anything else.

    >>> checked_remarks([("judged", "a test failed")])
    (('judged', 'a test failed'),)
    """
    if not isinstance(remarks, Sequence) or isinstance(remarks, str):
        raise FaultError(f"the remarks are {type(remarks).__name__}, not pairs of kind and text")
    pairs: list[Remark] = []
    for remark in itertools.islice(remarks, MAX_REMARKS):
        match remark:
            case (str(kind), str(text)):
                shown = _checked_text(text[:MAX_REMARK], of="a remark")
                pairs.append((_checked_text(kind, of="the kind of a remark"), shown))
            case _:
                raise FaultError(f"a remark is {type(remark).__name__}, not a kind and a text")
    return tuple(pairs)


def checked_metadata(metadata: object) -> EnvMetadata:
    """The metadata with clean texts; raises FaultError if it is none, or if a family of mistakes
    has no usable name or two have the same.

    >>> checked_metadata(EnvMetadata(notes=("hi\\x1b",))).notes == ("hi\\u241b",)
    True
    """
    if not isinstance(metadata, EnvMetadata):
        raise FaultError(f"the metadata is {type(metadata).__name__}, not an EnvMetadata")
    families = tuple(
        map(_checked_family, _checked_sequence(metadata.families, of="the families of mistakes"))
    )
    names = [family.name for family in families]
    if len(set(names)) != len(names):
        raise FaultError("two families of mistakes have the same name")
    if not isinstance(metadata.levels, Mapping):
        raise FaultError(f"the levels are {type(metadata.levels).__name__}, not texts by number")
    if not all(isinstance(level, int) for level in metadata.levels):
        raise FaultError("a level is not a number")
    return EnvMetadata(
        title=_checked_text(metadata.title, of="the title of the environment"),
        families=families,
        notes=tuple(
            _checked_text(note, of="a note")
            for note in _checked_sequence(metadata.notes, of="the notes")
        ),
        levels={
            level: _checked_text(text, of="the text of a level")
            for level, text in metadata.levels.items()
        },
    )


def _checked_family(family: object) -> MistakeFamily:
    if not isinstance(family, MistakeFamily):
        raise FaultError(f"a family of mistakes is {type(family).__name__}, not a MistakeFamily")
    name = _checked_text(family.name, of="the name of a family of mistakes")
    if not name.isidentifier():
        raise FaultError(f"the name of a family of mistakes is {name!r}, not an identifier")
    return MistakeFamily(
        name=name,
        title=_checked_text(family.title, of="the title of a family of mistakes"),
        set_by_task=bool(family.set_by_task),
    )


def _checked_turn(turn: object, *, limits: EpisodeLimits) -> Turn:
    if not isinstance(turn, Turn):
        raise FaultError(f"a message is {type(turn).__name__}, not a Turn")
    if not isinstance(turn.role, str) or turn.role not in _ROLES:
        raise FaultError(f"the role of a message is none of {', '.join(_ROLES)}")
    if not isinstance(turn.context_tokens, int):
        raise FaultError(
            f"the context_tokens of a message are {type(turn.context_tokens).__name__}, not a"
            " number"
        )
    return Turn(
        role=turn.role,
        author=None
        if turn.author is None
        else _checked_text(turn.author, of="the author of a message"),
        blocks=tuple(
            _checked_blocks(
                _checked_sequence(turn.blocks, of="the blocks of a message"), limits=limits
            )
        ),
        tag=_checked_text(turn.tag, of="the tag of a message"),
        context_tokens=turn.context_tokens,
    )


def _checked_blocks(blocks: Sequence[object], *, limits: EpisodeLimits) -> Iterator[Block]:
    for block in blocks:
        if not isinstance(block, (Text, ToolResult)):
            raise FaultError(f"an environment cannot say a {type(block).__name__}")
        if not isinstance(block.text, (str, bytes)):
            raise FaultError(f"the text of a block is {type(block.text).__name__}")
        text = clean_text(block.text, max_chars=limits.max_result_chars)
        if isinstance(block, Text):
            yield Text(text)
            continue
        if not isinstance(block.call_id, str):
            raise FaultError(f"the call id of a result is {type(block.call_id).__name__}")
        if not (block.is_error is None or isinstance(block.is_error, bool)):
            raise FaultError(f"is_error of a result is {type(block.is_error).__name__}")
        images = tuple(
            _checked_text(image, of="an image of a result")
            for image in _checked_sequence(block.images, of="the images of a result")
        )
        yield ToolResult(block.call_id, text, block.is_error, images)


def _checked_tool(tool: ToolSpec) -> ToolSpec:
    if not isinstance(tool.parameters, Mapping):
        raise FaultError(
            f"the parameters of a tool are {type(tool.parameters).__name__}, not a JSON schema"
        )
    return ToolSpec(
        name=_checked_text(tool.name, of="the name of a tool"),
        description=_checked_text(tool.description, of="the description of a tool"),
        parameters=_checked_json(tool.parameters, depth=0),
    )


def _checked_json(value: object, *, depth: int) -> Any:
    """A copy of a JSON value with clean texts; raises FaultError if it is not JSON."""
    if depth > MAX_DEPTH:
        raise FaultError(f"the schema of a tool is more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return clean_text(value, max_chars=len(value))
    if isinstance(value, Mapping):
        return {
            _checked_text(name, of="a name in the schema of a tool"): _checked_json(
                v, depth=depth + 1
            )
            for name, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_checked_json(v, depth=depth + 1) for v in value]
    if value is None or isinstance(value, bool):
        return value
    if (isinstance(value, int) and abs(value) < _MAX_INT) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    raise FaultError(f"the schema of a tool holds {type(value).__name__} that is no JSON")


def _describe_number(value: object) -> str:
    """A number for an error message; for anything else its type, since its repr may be endless."""
    return repr(value) if type(value) in (int, float) else f"a {type(value).__name__}"


def _checked_sequence(value: object, *, of: str) -> Sequence[object]:
    """A tuple or list; any other iterable may be endless."""
    if not isinstance(value, (tuple, list)):
        raise FaultError(f"{of} are {type(value).__name__}, not a tuple")
    return value


def _checked_text(text: object, *, of: str) -> str:
    if not isinstance(text, str):
        raise FaultError(f"{of} is {type(text).__name__}, not text")
    return clean_text(text, max_chars=len(text))
