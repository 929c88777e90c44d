"""What a student wrote, as blocks: text, thinking and tool calls, one parser per template family.

    parse_message(ids, codec=renderer.codec, parser=parser_of(renderer))
    -> (Text("Let me look."), WrittenCall("read", {"path": "a.py"}), MalformedCall('{"name": "read"', "not JSON: ..."))

The parsers read tokens, not letters: a message that only quotes "<tool_call>" makes no call where the tokenizer has a token for it.
Nothing is repaired: a call that is not exactly as the template writes it becomes a `MalformedCall` with the reason, never a guess.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import JSON, Text, Thinking
from composer_replication.tokens.hf import TextCodec
from composer_replication.tokens.renderer import Renderer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
PYTHON_TAG = "<|python_tag|>"
_CALL_LINE = re.compile(r'\{\s*"(?:name|parameters|function)"')


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a message: a control token that was sampled as such, or plain text."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A well-formed call without an id yet, e.g. WrittenCall("read", {"path": "a.py"}); whether the tool exists is not asked here."""

    name: str
    arguments: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """What began as a call and is none: its text and why, e.g. MalformedCall('{"name": 3}', "the name is not a string")."""

    text: str
    problem: str


Part = Text | Thinking | WrittenCall | MalformedCall
Parser = Callable[[Sequence[Piece]], Iterator[Part]]


def parse_message(ids: Sequence[int], *, codec: TextCodec, parser: Parser) -> tuple[Part, ...]:
    """The parts of a sampled message in the order written; `ids` are given without the end token."""
    return tuple(parser(pieces_of(ids, codec=codec)))


def parser_of(renderer: Renderer) -> Parser:
    """The parser of a renderer's family; raises ConfigError for a template whose calls nobody here can read."""
    if renderer.family is not None:
        return PARSERS[renderer.family.name]
    if OPEN in renderer.template:
        return PARSERS["qwen2.5"]
    raise ConfigError(
        "the way this chat template writes tool calls is unknown",
        where="student.template",
        fix=f"name its family ({', '.join(PARSERS)}), or give a parser of your own",
    )


def pieces_of(ids: Sequence[int], *, codec: TextCodec) -> list[Piece]:
    """Sampled ids as text cut at control tokens; a tag for which the tokenizer has no token is found by its letters."""
    by_id = {index: token for token, index in codec.control.items()}
    pieces: list[Piece] = []
    for control, run in itertools.groupby(ids, key=lambda i: i in by_id):
        if control:
            pieces.extend(Piece(by_id[i], True) for i in run)
        else:
            pieces.append(Piece(codec.decode(list(run)), False))
    spelled = [tag for tag in (OPEN, CLOSE, THINK, THOUGHT) if tag not in codec.control]
    if not spelled:
        return pieces
    pattern = re.compile(f"({'|'.join(map(re.escape, spelled))})")
    cut: list[Piece] = []
    for piece in pieces:
        cut += [piece] if piece.control else [Piece(text, text in spelled) for text in pattern.split(piece.text) if text]
    return cut


def _chatml(pieces: Sequence[Piece], *, thinking: bool) -> Iterator[Part]:
    """Text, then calls between <tool_call> tags, as chatml.jinja writes them."""
    rest = list(pieces)
    if thinking and rest and rest[0] == Piece(THINK, True):
        end = next((i for i, p in enumerate(rest) if p == Piece(THOUGHT, True)), len(rest))
        inside, rest = rest[1:end], rest[end:]
        if thought := _joined(inside).removeprefix("\n").removesuffix("\n"):
            yield Thinking(thought)
        if not rest and Piece(OPEN, True) in inside:
            yield MalformedCall(_joined(inside), f"the call stands inside thinking that does not end with {THOUGHT}")
        rest = _without_start(rest[1:], "\n\n")
    called = False
    while rest:
        at = next((i for i, p in enumerate(rest) if p.control and p.text in (OPEN, CLOSE)), len(rest))
        yield from _text(_joined(rest[:at]), before_call=at < len(rest), after_call=called)
        if at == len(rest):
            return
        end = next((i for i, p in enumerate(rest[at + 1 :], at + 1) if p.control and p.text in (OPEN, CLOSE)), len(rest))
        called = True
        if rest[at].text == CLOSE:
            yield MalformedCall(CLOSE, f"{CLOSE} without {OPEN}")
            rest = rest[at + 1 :]
        elif end == len(rest) or rest[end].text == OPEN:
            yield MalformedCall(_joined(rest[at:end]), f"the call does not end with {CLOSE}")
            rest = rest[end:]
        else:
            yield read_call(_joined(rest[at + 1 : end]), arguments="arguments")
            rest = rest[end + 1 :]


def _llama(pieces: Sequence[Piece]) -> Iterator[Part]:
    """Text, then calls, each a JSON object that begins a line, as llama3.jinja writes them."""
    tag = next((i for i, p in enumerate(pieces) if p == Piece(PYTHON_TAG, True)), len(pieces))
    text = _joined(pieces[:tag])
    done, called = 0, False
    for start in [0, *(m.end() for m in re.finditer("\n", text))]:
        if start < done or not text.startswith("{", start):
            continue
        found = _llama_call(text, start)
        if found is None:
            continue
        part, end = found
        yield from _text(text[done:start], before_call=True, after_call=called)
        yield part
        done, called = end, True
    yield from _text(text[done:], before_call=False, after_call=called)
    if tag < len(pieces):
        problem = f"{PYTHON_TAG} calls a built-in tool, and none is offered: write one JSON object a line"
        yield MalformedCall(_joined(pieces[tag:]), problem)


def _llama_call(text: str, start: int) -> tuple[Part, int] | None:
    """The call that begins at a character and the end of its line; None where this is no call at all."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        line_end = _line_end(text, start)
        is_call = _CALL_LINE.match(text, start)
        return (MalformedCall(text[start:line_end], _not_json(error)), line_end) if is_call else None
    if "name" not in value:
        return None
    line_end = _line_end(text, end)
    if text[end:line_end].strip():
        return MalformedCall(text[start:line_end], "something stands behind the call on its line"), line_end
    return _call_of(value, text=text[start:end], arguments="parameters"), line_end


PARSERS: Mapping[str, Parser] = {
    "qwen2.5": partial(_chatml, thinking=False),
    "qwen3": partial(_chatml, thinking=False),
    "qwen3-thinking": partial(_chatml, thinking=True),
    "qwen3-2507": partial(_chatml, thinking=False),
    "llama3": _llama,
}
"""One parser for each of tokens/families.py."""


def read_call(text: str, *, arguments: str) -> WrittenCall | MalformedCall:
    """A call from its JSON; `arguments` is the key that the family writes them under.

    >>> read_call('{"name": "read", "arguments": {"path": "a.py"}}', arguments="arguments")
    WrittenCall(name='read', arguments={'path': 'a.py'})
    >>> read_call('{"name": "read"}', arguments="arguments").problem
    "a call has the keys 'name' and 'arguments', this one has 'name'"
    """
    try:
        value = _DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        return MalformedCall(text, _not_json(error))
    return _call_of(value, text=text, arguments=arguments)


def _call_of(value: Any, *, text: str, arguments: str) -> WrittenCall | MalformedCall:
    if not isinstance(value, dict):
        return MalformedCall(text, "a call is a JSON object")
    if set(value) != {"name", arguments}:
        has = ", ".join(map(repr, value)) or "none"
        return MalformedCall(text, f"a call has the keys 'name' and {arguments!r}, this one has {has}")
    if not isinstance(value["name"], str) or not value["name"]:
        return MalformedCall(text, "the name is not a string with something in it")
    if not isinstance(value[arguments], dict):
        return MalformedCall(text, f"{arguments!r} is not a JSON object")
    return WrittenCall(value["name"], value[arguments])


def _joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _without_start(pieces: Sequence[Piece], start: str) -> list[Piece]:
    if pieces and not pieces[0].control:
        return [Piece(pieces[0].text.removeprefix(start), False), *pieces[1:]]
    return list(pieces)


def _text(text: str, *, before_call: bool, after_call: bool) -> Iterator[Text]:
    """A text block, without the line break that templates write between text and calls, and between calls."""
    if after_call and not text.strip():
        return
    text = text.removesuffix("\n") if before_call else text
    text = text.removeprefix("\n") if after_call else text
    if text:
        yield Text(text)


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _not_json(error: Exception) -> str:
    return "not JSON: it is nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {error}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a number of JSON")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_number, parse_constant=_number)
