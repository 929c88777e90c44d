"""From sampled ids to blocks: text that a template writes is parsed back exactly, and malformed
calls are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Block, Text, Thinking, ToolCall, ToolSpec, Turn
from composer_replication.rollouts.parse import (
    PARSERS,
    MalformedCall,
    Part,
    WrittenCall,
    parse_message,
    parser_of,
)
from composer_replication.tokens.messages import replace_surrogates
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.template_families import FAMILIES
from tests.rollouts.small_world import message_ids
from tests.tokens.students import (
    ARGUMENTS,
    CASES,
    TEXTS,
    chatml_tokenizer,
    read,
    renderer,
    tokenizer_for,
)

every_template = pytest.mark.parametrize(("family", "fixture"), CASES)


def parsed(
    render: Renderer, message: Turn | str, *, tools: Sequence[ToolSpec] = ()
) -> tuple[Part, ...]:
    return parse_message(
        message_ids(render, message)[:-1], codec=render.codec, parser=parser_of(render), tools=tools
    )


def test_calls_as_text_are_read_back_by_their_letters() -> None:
    render = Renderer.for_tokenizer(tokenizer_for("chatml-tools"), family="chatml-tools")
    calls = (ToolCall("c1", "Read", {"path": "a\nb.py"}), ToolCall("c2", "Count", {}))
    message = Turn(role="assistant", author="m", blocks=(Text("Now."), *calls))
    assert "<tool_call>" not in render.codec.control
    assert parsed(render, message) == (
        Text("Now."),
        WrittenCall("Read", {"path": "a\nb.py"}),
        WrittenCall("Count", {}),
    )


def test_every_family_has_a_parser() -> None:
    assert set(PARSERS) == set(FAMILIES)


def as_read(render: Renderer, value: Any) -> Any:
    """A JSON value as the tokenizer reads it."""
    if isinstance(value, str):
        return read(render, value)
    if isinstance(value, dict):
        return {as_read(render, k): as_read(render, v) for k, v in value.items()}
    return [as_read(render, v) for v in value] if isinstance(value, list) else value


@every_template
@settings(max_examples=60, deadline=None)
@given(
    text=TEXTS,
    thought=TEXTS,
    calls=st.lists(st.tuples(st.sampled_from(["Read", "Bash"]), ARGUMENTS), max_size=3),
)
def test_what_the_template_writes_is_read_back(
    family: str, fixture: str, text: str, thought: str, calls: list[tuple[str, dict]]
) -> None:
    render = renderer(family, fixture)
    thinking = render.family is not None and render.family.thinking == "kept"
    calls = [(name, replace_surrogates(arguments, Counter())) for name, arguments in calls]
    assume("Infinity" not in str(calls) and "inf" not in str(calls))  # no JSON
    assume(
        all(
            len(as_read(render, {k: 0 for k in arguments})) == len(arguments)
            for _, arguments in calls
        )
    )
    text, thought = replace_surrogates(text, Counter()), replace_surrogates(thought, Counter())
    assert render.family is not None
    written = text.lstrip(render.family.lstrip)
    blocks: list[Block] = [Thinking(thought)] if thinking else []
    blocks += [
        Text(text),
        *(ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(calls)),
    ]
    assume(written or calls or (thinking and thought))
    expected: list[Part] = [Thinking(read(render, thought))] if thinking and thought else []
    # gpt-oss has no place for text beside a call except its thinking
    text_type = Thinking if family == "gpt-oss" and calls and not thought else Text
    expected += [text_type(read(render, written))] if written else []
    expected += [WrittenCall(name, as_read(render, arguments)) for name, arguments in calls]
    tools = []
    # values are bare text there: their types come from the schema
    if family.startswith(("qwen3.5", "qwen3.6", "glm")):
        assume(len({name for name, _ in calls}) == len(calls))
        assume(
            all(plain_key(key) for _, arguments in calls for key in arguments)
            or family.startswith("glm")
        )
        assume("</parameter>" not in str(calls) or family.startswith("glm"))
        tools = [
            ToolSpec(name=part.name, parameters=schema(part.arguments))
            for part in expected
            if isinstance(part, WrittenCall)
        ]
    assert (
        list(parsed(render, Turn(role="assistant", author="m", blocks=tuple(blocks)), tools=tools))
        == expected
    )


def plain_key(key: str) -> bool:
    return ">" not in key and "\n" not in key


def schema(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "properties": {
            k: {"type": "string" if isinstance(v, str) else "object"} for k, v in arguments.items()
        }
    }


QWEN_PROBLEMS = [
    ('<tool_call>\n{"name": "Read", "arguments": {"path": "a.py"}\n</tool_call>', "not JSON"),
    ('<tool_call>\n{"name": "Read", "arguments": {"path": "a.py"}}', "does not end"),
    ('<tool_call>\n{"name": "Read"}\n</tool_call>', "this one has 'name'"),
    (
        '<tool_call>\n{"name": "Read", "arguments": {}, "id": 3}\n</tool_call>',
        "this one has 'name', 'arguments', 'id'",
    ),
    ('<tool_call>\n{"name": "Read", "arguments": "a.py"}\n</tool_call>', "not a JSON object"),
    ('<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>', "the name is not"),
    (
        '<tool_call>\n{"name": "Read", "arguments": {"a": 1, "a": 2}}\n</tool_call>',
        "a key stands twice",
    ),
    ('<tool_call>\n{"name": "Read", "arguments": {"a": NaN}}\n</tool_call>', "NaN is not a number"),
    (
        '<tool_call>\n{"name": "Read", "arguments": {"a": 1e999}}\n</tool_call>',
        "is not a number of JSON",
    ),
    ('<tool_call>\n["Read"]\n</tool_call>', "a call is a JSON object"),
    ("<tool_call>\n" + '{"name":' * 9999 + "\n</tool_call>", "nested too deeply"),
    ("</tool_call>", "without <tool_call>"),
    ("<tool_call></tool_call>", "not JSON"),
]


@pytest.mark.parametrize(("text", "problem"), QWEN_PROBLEMS)
def test_a_malformed_qwen_call_is_named(text: str, problem: str) -> None:
    for family, fixture in (("qwen3", "qwen3"), ("qwen2.5", "qwen2_5")):
        (part,) = parsed(renderer(family, fixture), text)
        assert isinstance(part, MalformedCall) and problem in part.problem


LLAMA_PROBLEMS = [
    ('{"name": "Read", "parameters": {"path": "a.py"}', "not JSON"),
    ('{"name": "Read", "arguments": {}}', "this one has 'name', 'arguments'"),
    ('{"name": "Read", "parameters": []}', "not a JSON object"),
    (
        '{"name": "Read", "parameters": {}}; {"name": "Read", "parameters": {}}',
        "something stands behind",
    ),
    ('<|python_tag|>{"name": "Read", "parameters": {}}', "built-in tool"),
]


@pytest.mark.parametrize(("text", "problem"), LLAMA_PROBLEMS)
def test_a_malformed_llama_call_is_named(text: str, problem: str) -> None:
    (part,) = parsed(renderer("llama3", "llama3_1"), text)
    assert isinstance(part, MalformedCall) and problem in part.problem


def test_a_good_call_beside_a_bad_one_is_kept() -> None:
    good, bad = (
        '<tool_call>\n{"name": "Count", "arguments": {}}\n</tool_call>',
        "<tool_call>\n{oops}\n</tool_call>",
    )
    parts = parsed(renderer("qwen3", "qwen3"), f"Look.\n{bad}\n{good}\nSo.")
    assert [type(p) for p in parts] == [Text, MalformedCall, WrittenCall, Text]
    assert parts[0] == Text("Look.") and parts[3] == Text("So.")
    unfinished = parsed(renderer("qwen3", "qwen3"), f'<tool_call>\n{{"name"{good}')
    assert [type(p) for p in unfinished] == [MalformedCall, WrittenCall]


def test_letters_are_no_control_token_where_the_tokenizer_has_one() -> None:
    text = 'Write <tool_call>\n{"name": "Count", "arguments": {}}\n</tool_call>'
    quoting = Turn(role="assistant", author="m", blocks=(Text(text),))
    assert parsed(renderer("qwen3", "qwen3"), quoting) == (Text(text),)


def test_a_tag_without_a_token_is_read_by_its_letters() -> None:
    render = Renderer.for_tokenizer(chatml_tokenizer(plain=()), family="qwen2.5")
    assert "<tool_call>" not in render.codec.control
    parts = parsed(render, 'Look.\n<tool_call>\n{"name": "Count", "arguments": {}}\n</tool_call>')
    assert parts == (Text("Look."), WrittenCall("Count", {}))


def test_thinking_is_read_only_where_the_family_keeps_it() -> None:
    text = "<think>\nHm.\n</think>\n\nDone."
    assert parsed(renderer("qwen3-thinking", "qwen3"), text) == (Thinking("Hm."), Text("Done."))
    assert parsed(renderer("qwen3", "qwen3"), text) == (Text(text),)
    unclosed = parsed(
        renderer("qwen3-thinking", "qwen3"),
        '<think>\nHm.\n<tool_call>\n{"name": "Count", "arguments": {}}\n</tool_call>',
    )
    assert [type(p) for p in unclosed] == [Thinking, MalformedCall]


def test_an_unknown_template_without_a_parser_is_refused() -> None:
    tokenizer = chatml_tokenizer()
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    )
    render = Renderer(tokenizer, family=None, own_template=template)
    with pytest.raises(
        ConfigError, match="the way this chat template writes tool calls is unknown"
    ):
        parser_of(render)


DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
PROBLEMS = [
    (
        "qwen3.5",
        "qwen3_5_nothink",
        "<tool_call>\n<function=Read>\n<parameter=path>\na.py\n</function>\n</tool_call>",
        "<parameter=...> block",
    ),
    (
        "qwen3.5",
        "qwen3_5_nothink",
        '<tool_call>\n{"name": "Read", "arguments": {}}\n</tool_call>',
        "one <function=...> block",
    ),
    ("qwen3.5", "qwen3_5_nothink", "<tool_call>\n<function=Read>\n", "does not end"),
    (
        "glm-4.5",
        "glm4moe",
        "\n<tool_call>Read\n<arg_key>path</arg_key>\n</tool_call>",
        "an <arg_key> and an <arg_value>",
    ),
    (
        "glm-4.5",
        "glm4moe",
        "\n<tool_call>Read\n<arg_key>p</arg_key><arg_value>a</arg_value>\n</tool_call>",
        "a line ends",
    ),
    ("glm-4.5", "glm4moe", "\n<tool_call>\n</tool_call>", "begins with its name"),
    ("mistral-v7", "mistral_v7", '[TOOL_CALLS]{"name": "Read", "arguments": {}}', "a JSON list"),
    ("mistral-v7", "mistral_v7", '[TOOL_CALLS][{"name": "Read", "arguments": {}', "not JSON"),
    (
        "mistral-v7",
        "mistral_v7",
        '[TOOL_CALLS][{"name": "Read", "parameters": {}}]',
        "'name', 'parameters'",
    ),
    (
        "mistral-v11",
        "mistral_v11",
        "[TOOL_CALLS]Read[CALL_ID]abcabcabc",
        "a call is a name, [ARGS]",
    ),
    ("mistral-v11", "mistral_v11", "[TOOL_CALLS][ARGS]{}", "the name is not"),
    (
        "mistral-v13",
        "mistral_v13",
        "[TOOL_CALLS]Read[CALL_ID]abcabcabc[ARGS]{}",
        "a call is a name, [ARGS]",
    ),
    ("mistral-v13", "mistral_v13", "[TOOL_CALLS]Read[ARGS][1]", "is not a JSON object"),
    ("gemma", "gemma3", '{"name": "Read", "arguments": {}}', "'name', 'arguments'"),
    ("gpt-oss", "gptoss", " to=functions.Read<|channel|>commentary json<|message|>{", "not JSON"),
    (
        "gpt-oss",
        "gptoss",
        " to=python<|channel|>commentary json<|message|>{}",
        "python is no function",
    ),
    ("gpt-oss", "gptoss", "<|channel|>secret<|message|>x", "a channel"),
    ("gpt-oss", "gptoss", "just words", "a channel"),
    ("deepseek-v3", "deepseek_v3", f"{DEEPSEEK}Read\n```json\n{{}}\n```", "do not end with"),
    ("deepseek-v3", "deepseek_v3", f"{DEEPSEEK}Read {{}}{DEEPSEEK_END}", "a block of JSON"),
    ("deepseek-v3", "deepseek_v3", f"{DEEPSEEK}R\n```json\n{{\n```{DEEPSEEK_END}", "not JSON"),
    ("deepseek-v3", "deepseek_v3", "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>", "begins with"),
]


@pytest.mark.parametrize(("family", "fixture", "text", "problem"), PROBLEMS)
def test_a_malformed_call_of_the_other_families_is_named(
    family: str, fixture: str, text: str, problem: str
) -> None:
    codec = renderer(family, fixture).codec
    (part,) = parse_message(codec.one_go(text), codec=codec, parser=PARSERS[family])
    assert isinstance(part, MalformedCall) and problem in part.problem


def test_bare_values_take_the_type_that_the_tool_declares() -> None:
    render = renderer("qwen3.5", "qwen3_5_nothink")
    call = Turn(
        role="assistant",
        author="m",
        blocks=(ToolCall("c", "Read", {"path": "3", "line": 3, "all": True, "by": None}),),
    )
    types = {"path": "string", "line": "integer", "all": "boolean", "by": ["number", "null"]}
    tools = [
        ToolSpec(name="Read", parameters={"properties": {k: {"type": v} for k, v in types.items()}})
    ]
    assert parsed(render, call, tools=tools) == (
        WrittenCall("Read", {"path": "3", "line": 3, "all": True, "by": None}),
    )
    assert parsed(render, call) == (
        WrittenCall("Read", {"path": "3", "line": "3", "all": "True", "by": "None"}),
    )
    wrong = Turn(role="assistant", author="m", blocks=(ToolCall("c", "Read", {"line": "three"}),))
    (part,) = parsed(render, wrong, tools=tools)
    assert (
        isinstance(part, MalformedCall)
        and "'line' is to be of type integer: not JSON" in part.problem
    )


@pytest.mark.parametrize(
    "head",
    [
        " to=functions.Read<|channel|>commentary json",
        "<|channel|>commentary to=functions.Read <|constrain|>json",
    ],
)
def test_a_harmony_call_may_name_its_function_before_or_behind_the_channel(head: str) -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        + head
        + '<|message|>{"path": "a"}'
    )
    codec = renderer("gpt-oss", "gptoss").codec
    parts = parse_message(codec.one_go(text), codec=codec, parser=PARSERS["gpt-oss"])
    assert parts == (Thinking("Hm."), WrittenCall("Read", {"path": "a"}))
