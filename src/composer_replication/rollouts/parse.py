"""Parsers of sampled messages into text, thinking and tool calls, one per template family.

    parse_message(ids, codec=renderer.codec, parser=parser_of(renderer))
    -> (Text("Let me look."), WrittenCall("read", {"path": "a.py"}),
        MalformedCall('{"name": "read"', "not JSON: ..."))

The parsers read tokens, not letters: a message that only quotes "<tool_call>" makes no call if the
tokenizer has a token for it. Nothing is repaired: a call that is not exactly as the template writes
it becomes a `MalformedCall` with the reason, never a guess.
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
from composer_replication.core.trace import JSON, Text, Thinking, ToolSpec
from composer_replication.tokens.hf import TextCodec
from composer_replication.tokens.renderer import Renderer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
PYTHON_TAG = "<|python_tag|>"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FUNCTION = re.compile(r"\n<function=(?P<name>[^>\n]+)>\n(?P<body>.*)</function>\n", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(?P<key>[^>\n]+)>\n(?P<value>.*?)\n</parameter>\n", re.DOTALL)
# Python literals, as Qwen3.5's template writes them
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_HARMONY_HEAD = re.compile(
    r"<\|start\|>assistant(?:"
    r" to=(?P<to>[^\s<]+))?<\|channel\|>(?P<channel>analysis|commentary|final)"
    r"(?: to=(?P<late>[^\s<]+))? ?(?:<\|constrain\|>)?(?:json)?"
)
_DEEPSEEK_CALL = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```", re.DOTALL)
_CALL_LINE = re.compile(r'\{\s*"(?:name|parameters|function)"')


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A stretch of a message: a control token that was sampled as such, or plain text."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A well-formed call that has no id yet, e.g. WrittenCall("read", {"path": "a.py"}).

    Whether the tool exists is not checked here.
    """

    name: str
    arguments: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A failed attempt at a call: its text and the reason.

    Example: MalformedCall('{"name": 3}', "the name is not a string")
    """

    text: str
    problem: str


@dataclass(frozen=True, slots=True)
class BareCall(WrittenCall):
    """A call whose values are bare text, e.g. BareCall("read", {"line": "3"}).

    Only the tool's schema tells numbers from text.
    """


Part = Text | Thinking | WrittenCall | MalformedCall
Parser = Callable[[Sequence[MessagePart]], Iterator[Part]]


def parse_message(
    ids: Sequence[int], *, codec: TextCodec, parser: Parser, tools: Sequence[ToolSpec] = ()
) -> tuple[Part, ...]:
    """The parts of a sampled message in the order written; `ids` exclude the end token.

    `tools` give the types of a call's values if the family writes them as bare text; without a
    schema they stay text.
    """
    schemas = {tool.name: tool.parameters for tool in tools}
    parts = parser(split_message(ids, codec=codec))
    typed = (
        _typed(part, schemas.get(part.name, {})) if isinstance(part, BareCall) else part
        for part in parts
    )
    return tuple(_encodable(part) if isinstance(part, WrittenCall) else part for part in typed)


def _encodable(call: WrittenCall) -> WrittenCall | MalformedCall:
    """The call if all its text can be encoded, else a malformed one.

    JSON may spell half of a surrogate pair, which is no character.
    """
    if not any(_SURROGATE.search(text) for text in _strings([call.name, call.arguments])):
        return call
    return MalformedCall(
        call.name.encode("utf-8", "replace").decode(),
        "it holds half of a surrogate pair, which is no character",
    )


def _typed(call: BareCall, schema: Mapping[str, Any]) -> WrittenCall | MalformedCall:
    properties = schema.get("properties")
    values: dict[str, JSON] = {}
    for key, text in call.arguments.items():
        spec = properties.get(key) if isinstance(properties, Mapping) else None
        declared = spec.get("type") if isinstance(spec, Mapping) else None
        types = declared if isinstance(declared, list) else [declared]
        if declared is None or "string" in types:
            values[key] = text
            continue
        try:
            values[key] = _DECODER.decode(_PYTHON_WORDS.get(str(text), str(text)))
        except (ValueError, RecursionError) as error:
            return MalformedCall(
                f"{call.name}: {key} = {text}",
                f"{key!r} is to be of type {' or '.join(map(str, types))}: {_not_json(error)}",
            )
    return WrittenCall(call.name, values)


def parser_of(renderer: Renderer) -> Parser:
    """The parser of a renderer's family; ConfigError for a template whose calls are unknown."""
    if renderer.family is not None:
        return PARSERS[renderer.family.name]
    if OPEN in renderer.template:
        return PARSERS["qwen2.5"]
    raise ConfigError(
        "the way this chat template writes tool calls is unknown",
        where="student.template",
        fix=f"name its family ({', '.join(PARSERS)}), or give a parser of your own",
    )


def without_calls(parser: Parser) -> Parser:
    """A parser for a student to whom no tool is on offer: what it writes as a call is text."""

    def parse(pieces: Sequence[MessagePart]) -> Iterator[Part]:
        parts = list(parser(pieces))
        if not any(isinstance(part, WrittenCall | MalformedCall) for part in parts):
            yield from parts
            return
        ends = [n for n, piece in enumerate(pieces, 1) if piece == MessagePart(THOUGHT, True)]
        if ends:
            yield from (part for part in parts if isinstance(part, Thinking))
        yield Text(_join_text(pieces[ends[-1] if ends else 0 :]).strip())

    return parse


def split_message(ids: Sequence[int], *, codec: TextCodec) -> list[MessagePart]:
    """Sampled ids as text cut at control tokens.

    A tag for which the tokenizer has no token is found by its letters.
    """
    by_id = {index: token for token, index in codec.control.items()}
    pieces: list[MessagePart] = []
    for control, run in itertools.groupby(ids, key=lambda i: i in by_id):
        if control:
            pieces.extend(MessagePart(by_id[i], True) for i in run)
        else:
            pieces.append(MessagePart(codec.decode(list(run)), False))
    tags_as_text = [tag for tag in (OPEN, CLOSE, THINK, THOUGHT) if tag not in codec.control]
    if not tags_as_text:
        return pieces
    pattern = re.compile(f"({'|'.join(map(re.escape, tags_as_text))})")
    split_pieces: list[MessagePart] = []
    for piece in pieces:
        split_pieces += (
            [piece]
            if piece.control
            else [
                MessagePart(text, text in tags_as_text)
                for text in pattern.split(piece.text)
                if text
            ]
        )
    return split_pieces


def _json_call(pieces: Sequence[MessagePart]) -> Part:
    return read_call(_join_text(pieces), arguments="arguments")


def _chatml(
    pieces: Sequence[MessagePart],
    *,
    thinking: bool,
    read: Callable[[Sequence[MessagePart]], Part] = _json_call,
    gap: str = "\n",
) -> Iterator[Part]:
    """Text, then calls between <tool_call> tags, as chatml.jinja writes them.

    `gap` is the text between message text and calls.
    """
    rest = list(pieces)
    if thinking and rest and rest[0] == MessagePart(THINK, True):
        end = next((i for i, p in enumerate(rest) if p == MessagePart(THOUGHT, True)), len(rest))
        inside, rest = rest[1:end], rest[end:]
        if thought := _join_text(inside).removeprefix("\n").removesuffix("\n"):
            yield Thinking(thought)
        if not rest and MessagePart(OPEN, True) in inside:
            yield MalformedCall(
                _join_text(inside),
                f"the call stands inside thinking that does not end with {THOUGHT}",
            )
        rest = _without_start(rest[1:], "\n\n")
    has_call = False
    while rest:
        at = next(
            (i for i, p in enumerate(rest) if p.control and p.text in (OPEN, CLOSE)), len(rest)
        )
        yield from _text(
            _join_text(rest[:at]), before_call=at < len(rest), after_call=has_call, gap=gap
        )
        if at == len(rest):
            return
        end = next(
            (
                i
                for i, p in enumerate(rest[at + 1 :], at + 1)
                if p.control and p.text in (OPEN, CLOSE)
            ),
            len(rest),
        )
        has_call = True
        if rest[at].text == CLOSE:
            yield MalformedCall(CLOSE, f"{CLOSE} without {OPEN}")
            rest = rest[at + 1 :]
        elif end == len(rest) or rest[end].text == OPEN:
            yield MalformedCall(_join_text(rest[at:end]), f"the call does not end with {CLOSE}")
            rest = rest[end:]
        else:
            yield read(rest[at + 1 : end])
            rest = rest[end + 1 :]


def _llama(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """Text, then calls, each a JSON object that begins a line, as llama3.jinja writes them."""
    tag = next((i for i, p in enumerate(pieces) if p == MessagePart(PYTHON_TAG, True)), len(pieces))
    text = _join_text(pieces[:tag])
    parsed_to, has_call = 0, False
    for start in [0, *(m.end() for m in re.finditer("\n", text))]:
        if start < parsed_to or not text.startswith("{", start):
            continue
        call_and_end = _llama_call(text, start)
        if call_and_end is None:
            continue
        part, end = call_and_end
        yield from _text(text[parsed_to:start], before_call=True, after_call=has_call)
        yield part
        parsed_to, has_call = end, True
    yield from _text(text[parsed_to:], before_call=False, after_call=has_call)
    if tag < len(pieces):
        problem = (
            f"{PYTHON_TAG} calls a built-in tool, and none is offered: write one JSON object a line"
        )
        yield MalformedCall(_join_text(pieces[tag:]), problem)


def _llama_call(text: str, start: int) -> tuple[Part, int] | None:
    """The call that begins at a character, and the end of its line; None if it is no call."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        line_end = _line_end(text, start)
        is_call = _CALL_LINE.match(text, start)
        return (
            (MalformedCall(text[start:line_end], _not_json(error)), line_end) if is_call else None
        )
    if "name" not in value:
        return None
    line_end = _line_end(text, end)
    if text[end:line_end].strip():
        return (
            MalformedCall(text[start:line_end], "something stands behind the call on its line"),
            line_end,
        )
    return _call_of(value, text=text[start:end], arguments="parameters"), line_end


def _qwen35(pieces: Sequence[MessagePart], *, thinking: bool) -> Iterator[Part]:
    """Like chatml.jinja's, with <function=...> blocks; the header has opened a think block."""
    with_think_tag = (
        [MessagePart(THINK, True), MessagePart("\n", False), *pieces] if thinking else pieces
    )
    return _chatml(with_think_tag, thinking=thinking, read=_function_block, gap="\n\n")


def _function_block(pieces: Sequence[MessagePart]) -> Part:
    """A <function=name> block with one <parameter=key> block per value, as in qwen3_5.jinja."""
    text = _join_text(pieces)
    block = _FUNCTION.fullmatch(text)
    if block is None:
        return MalformedCall(
            text, "a call is one <function=...> block with the line breaks of the template"
        )
    values: dict[str, str] = {}
    parsed_to = 0
    for match in _PARAMETER.finditer(block["body"]):
        if match.start() != parsed_to or match["key"] in values:
            break
        values[match["key"]] = match["value"]
        parsed_to = match.end()
    if parsed_to != len(block["body"]):
        return MalformedCall(
            text,
            "a value is one <parameter=...> block with the line breaks of the template, each key"
            " once",
        )
    return BareCall(block["name"], values)


def _glm(pieces: Sequence[MessagePart], *, thinking: bool) -> Iterator[Part]:
    """Like chatml.jinja's, with <arg_key> and <arg_value> pairs inside the tags.

    What follows the header begins on a new line.
    """
    rest = [piece for piece in _without_start(pieces, "\n") if piece.text]
    if thinking and rest and rest[0] == MessagePart(THINK, True):
        end = next((i for i, p in enumerate(rest) if p == MessagePart(THOUGHT, True)), len(rest))
        inside, rest = rest[1:end], _without_start(rest[end + 1 :], "\n")
        if thought := _join_text(inside):
            yield Thinking(thought)
        if MessagePart(OPEN, True) in inside:
            yield MalformedCall(
                _join_text(inside),
                f"the call stands inside thinking that does not end with {THOUGHT}",
            )
    yield from _chatml(rest, thinking=False, read=_key_value_pairs)


def _key_value_pairs(pieces: Sequence[MessagePart]) -> Part:
    """A name, then <arg_key> and <arg_value> pairs, as glm4.jinja writes them.

    The tags are tokens, so values may contain their letters.
    """
    text = _join_text(pieces)
    name, *rest = (
        [*pieces, MessagePart("", False)]
        if pieces and not pieces[0].control
        else [MessagePart("", False), *pieces, MessagePart("", False)]
    )
    if not name.text.removesuffix("\n") or not name.text.endswith("\n"):
        return MalformedCall(text, "a call begins with its name and a line break")
    values: dict[str, str] = {}
    while rest and rest != [MessagePart("", False)]:
        fields: list[str] = []
        for opening, closing in (("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")):
            end = next((i for i, p in enumerate(rest) if p == MessagePart(closing, True)), -1)
            if end < 1 or rest[0] != MessagePart(opening, True):
                return MalformedCall(
                    text, "a value is an <arg_key> and an <arg_value>, each closed"
                )
            fields.append(_join_text(rest[1:end]))
            rest = rest[end + 1 :]
            if not rest or rest[0].control or not rest[0].text.startswith("\n"):
                return MalformedCall(text, f"a line ends behind {closing}")
            rest = [
                p for p in (MessagePart(rest[0].text[1:], False), *rest[1:]) if p.text or p.control
            ]
        if fields[0] in values:
            return MalformedCall(text, "a key stands twice in one call")
        values[fields[0]] = fields[1]
    return BareCall(name.text.removesuffix("\n"), values)


def _mistral(pieces: Sequence[MessagePart], *, version: str) -> Iterator[Part]:
    """Text, then [TOOL_CALLS], as in mistral.jinja.

    One JSON list (v7), or a name, [CALL_ID] and [ARGS] for each call (v11, v13).
    """
    at = next(
        (i for i, p in enumerate(pieces) if p == MessagePart("[TOOL_CALLS]", True)), len(pieces)
    )
    if text := _join_text(pieces[:at]):
        yield Text(text)
    while at < len(pieces):
        end = next(
            (
                i
                for i, p in enumerate(pieces[at + 1 :], at + 1)
                if p == MessagePart("[TOOL_CALLS]", True)
            ),
            len(pieces),
        )
        yield from (
            _mistral_list(_join_text(pieces[at + 1 : end]))
            if version == "v7"
            else [_mistral_call(pieces[at + 1 : end], version)]
        )
        at = end


def _mistral_list(text: str) -> Iterator[Part]:
    try:
        calls = _DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        yield MalformedCall(text, _not_json(error))
        return
    if not isinstance(calls, list) or not calls:
        yield MalformedCall(text, "calls are a JSON list of objects")
        return
    # the model may leave out the id; the serving program then adds one
    for call in calls:
        without_id = (
            {k: v for k, v in call.items() if k != "id"} if isinstance(call, dict) else call
        )
        yield _call_of(without_id, text=json.dumps(call, ensure_ascii=False), arguments="arguments")


def _mistral_call(pieces: Sequence[MessagePart], version: str) -> Part:
    text = _join_text(pieces)
    tags = [p.text for p in pieces if p.control and p.text in ("[CALL_ID]", "[ARGS]")]
    if tags not in (["[ARGS]"], ["[CALL_ID]", "[ARGS]"]) or (version == "v13" and len(tags) == 2):
        return MalformedCall(
            text,
            "a call is a name, [ARGS] and its arguments"
            + ("" if version == "v13" else ", with [CALL_ID] between"),
        )
    at = pieces.index(MessagePart("[ARGS]", True))
    name = _join_text(list(itertools.takewhile(lambda p: not p.control, pieces)))
    return _named_call(name, _join_text(pieces[at + 1 :]), text)


def _harmony(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """The harmony messages of one reply: analysis, calls, commentary, final.

    They begin behind the <|start|>assistant of the header.
    """
    rest = (
        [MessagePart("<|start|>", True), MessagePart("assistant", False), *pieces] if pieces else []
    )
    while rest:
        ends = (
            i
            for i, p in enumerate(rest)
            if p.control and p.text in ("<|end|>", "<|call|>", "<|return|>")
        )
        end = next(ends, len(rest))
        yield from _harmony_message(rest[:end])
        rest = rest[end + 1 :]


def _harmony_message(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    text = _join_text(pieces)
    at = next(
        (i for i, p in enumerate(pieces) if p == MessagePart("<|message|>", True)), len(pieces)
    )
    head, body = _join_text(pieces[:at]), _join_text(pieces[at + 1 :])
    header = _HARMONY_HEAD.fullmatch(head)
    if header is None or at == len(pieces):
        yield MalformedCall(
            text, "a message is <|start|>assistant<|channel|>, a channel, and <|message|>"
        )
        return
    recipient = header["to"] or header["late"]
    if recipient is None:
        if body:
            yield Thinking(body) if header["channel"] == "analysis" else Text(body)
    elif not recipient.startswith("functions."):
        yield MalformedCall(text, f"{recipient} is no function: write to=functions. and its name")
    else:
        yield _named_call(recipient.removeprefix("functions."), body, text)


def _deepseek(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """Text, then one closed block of calls, as deepseek.jinja writes them."""
    opened, closed = (MessagePart(f"<｜tool▁calls▁{word}｜>", True) for word in ("begin", "end"))
    at = pieces.index(opened) if opened in pieces else len(pieces)
    if text := _join_text(pieces[:at]):
        yield Text(text)
    block = pieces[at:]
    if not block:
        return
    if closed not in block:
        yield MalformedCall(_join_text(block), f"the calls do not end with {closed.text}")
        return
    end = block.index(closed)
    opening = MessagePart("<｜tool▁call▁begin｜>", True)
    starts = [i for i, piece in enumerate(block[:end]) if piece == opening]
    if starts[:1] != [1]:
        yield MalformedCall(_join_text(block[:end]), f"a call begins with {opening.text}")
        return
    for a, b in itertools.pairwise([*starts, end]):
        yield _deepseek_call(block[a + 1 : b])
    if behind := _join_text(block[end + 1 :]):
        yield MalformedCall(behind, f"something stands behind {closed.text}")


def _deepseek_call(pieces: Sequence[MessagePart]) -> Part:
    """ "function", a separator, a name, and its arguments as a block of JSON."""
    text = _join_text(pieces)
    # not every control piece: other families' tags may be spelled in a value
    marks = [p.text for p in pieces if p.control and p.text.startswith("<｜")]
    kind, _, rest = text.partition("<｜tool▁sep｜>")
    body, _, gap = rest.rpartition("<｜tool▁call▁end｜>")
    found = _DEEPSEEK_CALL.fullmatch(body)
    if (
        marks != ["<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]
        or kind != "function"
        or found is None
        or gap.strip()
    ):
        return MalformedCall(
            text, "a call is function<｜tool▁sep｜>, its name and a block of JSON, and is closed"
        )
    return _named_call(found["name"], found["arguments"], text)


def _named_call(name: str, arguments: str, text: str) -> WrittenCall | MalformedCall:
    """A call of which only the arguments are JSON."""
    try:
        value = _DECODER.decode(arguments.strip())
    except (ValueError, RecursionError) as error:
        return MalformedCall(text, _not_json(error))
    return _call_of({"name": name, "arguments": value}, text=text, arguments="arguments")


PARSERS: Mapping[str, Parser] = {
    "qwen2.5": partial(_chatml, thinking=False),
    "qwen3": partial(_chatml, thinking=False),
    "qwen3-thinking": partial(_chatml, thinking=True),
    "qwen3-2507": partial(_chatml, thinking=False),
    "chatml-tools": partial(_chatml, thinking=False),
    "llama3": _llama,
    "qwen3.5": partial(_qwen35, thinking=False),
    "qwen3.5-thinking": partial(_qwen35, thinking=True),
    "qwen3.6": partial(_qwen35, thinking=False),
    "qwen3.6-thinking": partial(_qwen35, thinking=True),
    "glm-4.5": partial(_glm, thinking=False),
    "glm-4.5-thinking": partial(_glm, thinking=True),
    "mistral-v7": partial(_mistral, version="v7"),
    "mistral-v11": partial(_mistral, version="v11"),
    "mistral-v13": partial(_mistral, version="v13"),
    "gemma": _llama,
    "gpt-oss": _harmony,
    "deepseek-v3": _deepseek,
}
"""One parser for each family of tokens/template_families.py."""


def read_call(text: str, *, arguments: str) -> WrittenCall | MalformedCall:
    """A call from its JSON; `arguments` is the family's key for them.

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
        keys = ", ".join(map(repr, value)) or "none"
        return MalformedCall(
            text, f"a call has the keys 'name' and {arguments!r}, this one has {keys}"
        )
    if not isinstance(value["name"], str) or not value["name"]:
        return MalformedCall(text, "the name is not a string with something in it")
    if not isinstance(value[arguments], dict):
        return MalformedCall(text, f"{arguments!r} is not a JSON object")
    return WrittenCall(value["name"], value[arguments])


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included.

    Without recursion, since the student chooses the depth.
    """
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack += [*item, *item.values()]
        elif isinstance(item, list):
            stack += item


def _join_text(pieces: Sequence[MessagePart]) -> str:
    return "".join(piece.text for piece in pieces)


def _without_start(pieces: Sequence[MessagePart], start: str) -> list[MessagePart]:
    if pieces and not pieces[0].control:
        return [MessagePart(pieces[0].text.removeprefix(start), False), *pieces[1:]]
    return list(pieces)


def _text(text: str, *, before_call: bool, after_call: bool, gap: str = "\n") -> Iterator[Text]:
    """A text block without the line breaks that templates write around calls."""
    if after_call and not text.strip():
        return
    text = text.removesuffix("\n" if after_call else gap) if before_call else text
    text = text.removeprefix("\n") if after_call else text
    if text:
        yield Text(text)


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _not_json(error: Exception) -> str:
    return (
        "not JSON: it is nested too deeply"
        if isinstance(error, RecursionError)
        else f"not JSON: {error}"
    )


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
