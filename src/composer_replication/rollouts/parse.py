"""What a student wrote, as blocks: text, thinking and tool calls, one parser per template family.

    parse_message(ids, codec=renderer.codec, parser=parser_of(renderer))
    -> (Text("Let me look."), WrittenCall("read", {"path": "a.py"}), MalformedCall('{"name": "read"', "not JSON: ..."))

The parsers read tokens, not letters: a message that only quotes "<tool_call>" makes no call where
the tokenizer has a token for it. Nothing is repaired: a call that is not exactly as the template
writes it becomes a `MalformedCall` with the reason, never a guess.
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
# as Qwen3.5's template writes them
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
    """A well-formed call without an id yet, e.g. WrittenCall("read", {"path": "a.py"}); whether the
    tool exists is not asked here."""

    name: str
    arguments: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """What began as a call and is none: its text and why, e.g. MalformedCall('{"name": 3}', "the
    name is not a string")."""

    text: str
    problem: str


@dataclass(frozen=True, slots=True)
class BareCall(WrittenCall):
    """A call whose values are bare text, which only the tool's schema can tell apart from numbers:
    BareCall("read", {"line": "3"})."""


Part = Text | Thinking | WrittenCall | MalformedCall
Parser = Callable[[Sequence[MessagePart]], Iterator[Part]]


def parse_message(
    ids: Sequence[int], *, codec: TextCodec, parser: Parser, tools: Sequence[ToolSpec] = ()
) -> tuple[Part, ...]:
    """The parts of a sampled message in the order written; `ids` are given without the end token.

    `tools` say of which type the values of a call are where the family writes them as bare text;
    without a schema they stay text.
    """
    schemas = {tool.name: tool.parameters for tool in tools}
    parts = parser(pieces_of(ids, codec=codec))
    typed = (
        _typed(part, schemas.get(part.name, {})) if isinstance(part, BareCall) else part
        for part in parts
    )
    return tuple(_encodable(part) if isinstance(part, WrittenCall) else part for part in typed)


def _encodable(call: WrittenCall) -> WrittenCall | MalformedCall:
    """The call, if all its text can be written down: JSON may spell half of a surrogate pair, which
    is no character."""
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
    """The parser of a renderer's family; raises ConfigError for a template whose calls nobody here
    can read."""
    if renderer.family is not None:
        return PARSERS[renderer.family.name]
    if OPEN in renderer.template:
        return PARSERS["qwen2.5"]
    raise ConfigError(
        "the way this chat template writes tool calls is unknown",
        where="student.template",
        fix=f"name its family ({', '.join(PARSERS)}), or give a parser of your own",
    )


def pieces_of(ids: Sequence[int], *, codec: TextCodec) -> list[MessagePart]:
    """Sampled ids as text cut at control tokens; a tag for which the tokenizer has no token is
    found by its letters."""
    by_id = {index: token for token, index in codec.control.items()}
    pieces: list[MessagePart] = []
    for control, run in itertools.groupby(ids, key=lambda i: i in by_id):
        if control:
            pieces.extend(MessagePart(by_id[i], True) for i in run)
        else:
            pieces.append(MessagePart(codec.decode(list(run)), False))
    spelled = [tag for tag in (OPEN, CLOSE, THINK, THOUGHT) if tag not in codec.control]
    if not spelled:
        return pieces
    pattern = re.compile(f"({'|'.join(map(re.escape, spelled))})")
    cut: list[MessagePart] = []
    for piece in pieces:
        cut += (
            [piece]
            if piece.control
            else [MessagePart(text, text in spelled) for text in pattern.split(piece.text) if text]
        )
    return cut


def _json_call(pieces: Sequence[MessagePart]) -> Part:
    return read_call(_joined(pieces), arguments="arguments")


def _chatml(
    pieces: Sequence[MessagePart],
    *,
    thinking: bool,
    read: Callable[[Sequence[MessagePart]], Part] = _json_call,
    gap: str = "\n",
) -> Iterator[Part]:
    """Text, then calls between <tool_call> tags, as chatml.jinja writes them; `gap` is what stands
    between the text and the calls."""
    rest = list(pieces)
    if thinking and rest and rest[0] == MessagePart(THINK, True):
        end = next((i for i, p in enumerate(rest) if p == MessagePart(THOUGHT, True)), len(rest))
        inside, rest = rest[1:end], rest[end:]
        if thought := _joined(inside).removeprefix("\n").removesuffix("\n"):
            yield Thinking(thought)
        if not rest and MessagePart(OPEN, True) in inside:
            yield MalformedCall(
                _joined(inside), f"the call stands inside thinking that does not end with {THOUGHT}"
            )
        rest = _without_start(rest[1:], "\n\n")
    called = False
    while rest:
        at = next(
            (i for i, p in enumerate(rest) if p.control and p.text in (OPEN, CLOSE)), len(rest)
        )
        yield from _text(_joined(rest[:at]), before_call=at < len(rest), after_call=called, gap=gap)
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
        called = True
        if rest[at].text == CLOSE:
            yield MalformedCall(CLOSE, f"{CLOSE} without {OPEN}")
            rest = rest[at + 1 :]
        elif end == len(rest) or rest[end].text == OPEN:
            yield MalformedCall(_joined(rest[at:end]), f"the call does not end with {CLOSE}")
            rest = rest[end:]
        else:
            yield read(rest[at + 1 : end])
            rest = rest[end + 1 :]


def _llama(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """Text, then calls, each a JSON object that begins a line, as llama3.jinja writes them."""
    tag = next((i for i, p in enumerate(pieces) if p == MessagePart(PYTHON_TAG, True)), len(pieces))
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
        problem = (
            f"{PYTHON_TAG} calls a built-in tool, and none is offered: write one JSON object a line"
        )
        yield MalformedCall(_joined(pieces[tag:]), problem)


def _llama_call(text: str, start: int) -> tuple[Part, int] | None:
    """The call that begins at a character and the end of its line; None where this is no call at
    all."""
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
    """As chatml.jinja's, with <function=...> blocks in the tags; the header has opened the think
    block already."""
    opened = [MessagePart(THINK, True), MessagePart("\n", False), *pieces] if thinking else pieces
    return _chatml(opened, thinking=thinking, read=_function_block, gap="\n\n")


def _function_block(pieces: Sequence[MessagePart]) -> Part:
    """A <function=name> block with one <parameter=key> block a value, as qwen3_5.jinja writes
    them."""
    text = _joined(pieces)
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return MalformedCall(
            text, "a call is one <function=...> block with the line breaks of the template"
        )
    values: dict[str, str] = {}
    done = 0
    for match in _PARAMETER.finditer(found["body"]):
        if match.start() != done or match["key"] in values:
            break
        values[match["key"]] = match["value"]
        done = match.end()
    if done != len(found["body"]):
        return MalformedCall(
            text,
            "a value is one <parameter=...> block with the line breaks of the template, each key"
            " once",
        )
    return BareCall(found["name"], values)


def _glm(pieces: Sequence[MessagePart], *, thinking: bool) -> Iterator[Part]:
    """As chatml.jinja's, with <arg_key> and <arg_value> pairs in the tags; what follows the header
    begins on a line of its own."""
    rest = [piece for piece in _without_start(pieces, "\n") if piece.text]
    if thinking and rest and rest[0] == MessagePart(THINK, True):
        end = next((i for i, p in enumerate(rest) if p == MessagePart(THOUGHT, True)), len(rest))
        inside, rest = rest[1:end], _without_start(rest[end + 1 :], "\n")
        if thought := _joined(inside):
            yield Thinking(thought)
        if MessagePart(OPEN, True) in inside:
            yield MalformedCall(
                _joined(inside), f"the call stands inside thinking that does not end with {THOUGHT}"
            )
    yield from _chatml(rest, thinking=False, read=_key_value_pairs)


def _key_value_pairs(pieces: Sequence[MessagePart]) -> Part:
    """A name, then <arg_key> and <arg_value> pairs, as glm4.jinja writes them; the tags are tokens,
    so values may spell them."""
    text = _joined(pieces)
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
            fields.append(_joined(rest[1:end]))
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
    """Text, then [TOOL_CALLS]: one JSON list (v7), or a name, [CALL_ID] and [ARGS] for each call
    (v11, v13), as in mistral.jinja."""
    at = next(
        (i for i, p in enumerate(pieces) if p == MessagePart("[TOOL_CALLS]", True)), len(pieces)
    )
    if text := _joined(pieces[:at]):
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
            _mistral_list(_joined(pieces[at + 1 : end]))
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
    # the model may leave out the id, which the program that runs it gives in that case
    for call in calls:
        known = {k: v for k, v in call.items() if k != "id"} if isinstance(call, dict) else call
        yield _call_of(known, text=json.dumps(call, ensure_ascii=False), arguments="arguments")


def _mistral_call(pieces: Sequence[MessagePart], version: str) -> Part:
    text = _joined(pieces)
    tags = [p.text for p in pieces if p.control and p.text in ("[CALL_ID]", "[ARGS]")]
    if tags not in (["[ARGS]"], ["[CALL_ID]", "[ARGS]"]) or (version == "v13" and len(tags) == 2):
        return MalformedCall(
            text,
            "a call is a name, [ARGS] and its arguments"
            + ("" if version == "v13" else ", with [CALL_ID] between"),
        )
    at = pieces.index(MessagePart("[ARGS]", True))
    name = _joined(list(itertools.takewhile(lambda p: not p.control, pieces)))
    return _named_call(name, _joined(pieces[at + 1 :]), text)


def _harmony(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """The harmony messages of one reply, behind the <|start|>assistant of its header: analysis,
    calls, commentary, final."""
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
    text = _joined(pieces)
    at = next(
        (i for i, p in enumerate(pieces) if p == MessagePart("<|message|>", True)), len(pieces)
    )
    head, body = _joined(pieces[:at]), _joined(pieces[at + 1 :])
    found = _HARMONY_HEAD.fullmatch(head)
    if found is None or at == len(pieces):
        yield MalformedCall(
            text, "a message is <|start|>assistant<|channel|>, a channel, and <|message|>"
        )
        return
    recipient = found["to"] or found["late"]
    if recipient is None:
        if body:
            yield Thinking(body) if found["channel"] == "analysis" else Text(body)
    elif not recipient.startswith("functions."):
        yield MalformedCall(text, f"{recipient} is no function: write to=functions. and its name")
    else:
        yield _named_call(recipient.removeprefix("functions."), body, text)


def _deepseek(pieces: Sequence[MessagePart]) -> Iterator[Part]:
    """Text, then one closed block of calls, as deepseek.jinja writes them."""
    opened, closed = (MessagePart(f"<｜tool▁calls▁{word}｜>", True) for word in ("begin", "end"))
    at = pieces.index(opened) if opened in pieces else len(pieces)
    if text := _joined(pieces[:at]):
        yield Text(text)
    block = pieces[at:]
    if not block:
        return
    if closed not in block:
        yield MalformedCall(_joined(block), f"the calls do not end with {closed.text}")
        return
    end = block.index(closed)
    opening = MessagePart("<｜tool▁call▁begin｜>", True)
    starts = [i for i, piece in enumerate(block[:end]) if piece == opening]
    if starts[:1] != [1]:
        yield MalformedCall(_joined(block[:end]), f"a call begins with {opening.text}")
        return
    for a, b in itertools.pairwise([*starts, end]):
        yield _deepseek_call(block[a + 1 : b])
    if behind := _joined(block[end + 1 :]):
        yield MalformedCall(behind, f"something stands behind {closed.text}")


def _deepseek_call(pieces: Sequence[MessagePart]) -> Part:
    """ "function", a separator, a name, and its arguments as a block of JSON."""
    text = _joined(pieces)
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
    """A call whose arguments alone are JSON."""
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
"""One parser for each of tokens/template_families.py."""


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
        return MalformedCall(
            text, f"a call has the keys 'name' and {arguments!r}, this one has {has}"
        )
    if not isinstance(value["name"], str) or not value["name"]:
        return MalformedCall(text, "the name is not a string with something in it")
    if not isinstance(value[arguments], dict):
        return MalformedCall(text, f"{arguments!r} is not a JSON object")
    return WrittenCall(value["name"], value[arguments])


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys too; without recursion, since the student chooses the
    depth."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item


def _joined(pieces: Sequence[MessagePart]) -> str:
    return "".join(piece.text for piece in pieces)


def _without_start(pieces: Sequence[MessagePart], start: str) -> list[MessagePart]:
    if pieces and not pieces[0].control:
        return [MessagePart(pieces[0].text.removeprefix(start), False), *pieces[1:]]
    return list(pieces)


def _text(text: str, *, before_call: bool, after_call: bool, gap: str = "\n") -> Iterator[Text]:
    """A text block, without the line breaks that templates write between text and calls, and
    between calls."""
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
