"""Our variants against the official templates, and how a family is recognised."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from composer_replication.core.errors import RenderError
from composer_replication.core.trace import Text, ToolCall, ToolResult, ToolSpec, Turn
from composer_replication.tokens.hf import added_tokens, render_template
from composer_replication.tokens.messages import short_call_id, tool_messages
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.template_families import (
    FAMILIES,
    Family,
    fitting_families,
    recognise,
    recognised_by_text,
    template_sha256,
)
from tests.tokens.students import (
    CASES,
    NAMED,
    TOOLS,
    chatml_tokenizer,
    llama_tokenizer,
    official,
    renderer,
    tokenizer_for,
)

Messages = list[dict[str, Any]]


def random_messages(rng: random.Random, *, thinking: bool) -> Messages:
    """Chat messages with pairwise different texts, so that a lost one cannot be mistaken for its
    twin."""
    count = iter(range(1000))

    def text() -> str:
        kind = rng.randrange(8)
        body = f"w{next(count)} é日 {{}}"
        # four line breaks: more than any template writes, so a stripped one cannot hide behind the
        # template's own
        return {
            0: f"\n\n\n\n{body}",
            1: f"{body}\n\n\n\n",
            2: f"  {body}",
            3: f'{body}\n"q"',
            4: "" if rng.random() < 0.5 else body,
        }.get(kind, body)

    messages: Messages = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    messages.append({"role": "user", "content": f"u{next(count)}"})
    for _ in range(rng.randint(1, 3)):
        message: dict[str, Any] = {"role": "assistant", "content": text()}
        if thinking and rng.random() < 0.7:
            # transformers gives it to gpt-oss' official template under its name, too
            message["reasoning_content"] = text() or "so"
        num_calls = rng.choice((0, 0, 1, 1, 1, 2))
        if num_calls:
            message["tool_calls"] = [random_call(count) for _ in range(num_calls)]
            message["content"] = rng.choice(("", message["content"]))
        if message["content"] or num_calls:
            messages.append(message)
            messages += [answer(call, text()) for call in message.get("tool_calls", ())]
        if rng.random() < 0.3:
            messages.append({"role": rng.choice(("user", "system")), "content": f"m{next(count)}"})
    return messages


def random_call(count: Iterator[int]) -> dict[str, Any]:
    arguments = {
        "k": f"a{next(count)}",
        "n": [1, None, True],
        "b": False,
        "x": None,
        "f": 2.5,
        "d": {"e": "z\n"},
    }
    return {
        "type": "function",
        "id": f"call{next(count):05d}",
        "function": {"name": f"f{next(count)}", "arguments": arguments},
    }


def answer(call: dict[str, Any], text: str) -> dict[str, Any]:
    return {
        "role": "tool",
        "name": call["function"]["name"],
        "tool_call_id": call["id"],
        "content": text,
    }


def is_faithful(
    render: Any,
    messages: Messages,
    *,
    tools: Any = (),
    family: Family | None = None,
    lstrip: str | None = "",
) -> bool:
    """Whether a template preserves every prefix of this conversation and loses nothing of it except
    the leading characters of an assistant's text in `lstrip`; pass `family` for an official one.

    An official template that writes the end of a message only as the beginning of the next one must
    write the right one.
    """
    # Gemma's lets a system message through at odd places, as a role that its models do not have
    if family and not family.official_tools and any(m["role"] == "system" for m in messages[1:]):
        return False
    try:
        full = render(messages)
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt, upto = (
                    render(messages[:index], add_generation_prompt=True),
                    render(messages[: index + 1]),
                )
                answered = [
                    *messages[: index + 1],
                    *(answer(call, "late") for call in message.get("tool_calls", ())),
                ]
                if not (
                    upto.startswith(prompt)
                    and full.startswith(upto)
                    and render(answered).startswith(upto)
                ):
                    return False
                if (
                    family
                    and not family.official_ends
                    and not (full + family.end_of(message)).startswith(
                        upto + family.end_of(message)
                    )
                ):
                    return False
    except RenderError:
        return False
    if not all(tool.name in full for tool in tools):
        return False
    for message in messages:
        content = message["content"]
        content = content.lstrip(lstrip) if message["role"] == "assistant" else content
        texts = [content, message.get("reasoning_content", "")]
        for call in message.get("tool_calls", ()):
            texts += [call["function"]["name"], call["function"]["arguments"]["k"]]
        if message["role"] == "tool":
            texts = [texts[0] if texts[0] in full else json.dumps(texts[0], ensure_ascii=False)]
        if not all(text in full for text in texts):
            return False
    return True


@pytest.mark.parametrize(("family", "fixture"), CASES)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_variant_is_the_official_template_wherever_that_one_is_faithful(
    family: str, fixture: str, tools: Any
) -> None:
    tokenizer = renderer(family, fixture).tokenizer
    known = FAMILIES[family]
    render = partial(render_template, tokenizer, tools=tool_messages(tools))
    theirs = partial(render, template=official(fixture), **known.options)
    ours = partial(render, template=known.template, **known.as_of_today())
    rng = random.Random(f"{family}{fixture}")
    faithful = 0
    for _ in range(300 if known.official_tools else 3000):
        messages = random_messages(rng, thinking=known.thinking == "kept")
        if is_faithful(theirs, messages, tools=tools, family=known, lstrip=known.lstrip):
            faithful += 1
            last = messages[-1]
            unwritten = (
                known.end_of(last)
                if last["role"] == "assistant" and not known.official_ends
                else ""
            )
            assert ours(messages) == theirs(messages) + unwritten
            if not unwritten and theirs(messages, add_generation_prompt=True).startswith(
                theirs(messages)
            ):
                assert ours(messages, add_generation_prompt=True) == theirs(
                    messages, add_generation_prompt=True
                )
    assert faithful >= 15 if known.official_tools or not tools else faithful == 0


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_variant_preserves_prefixes_and_text_always(family: str) -> None:
    tokenizer, known = tokenizer_for(family), FAMILIES[family]
    render = partial(
        render_template, tokenizer, tools=tool_messages(TOOLS), template=known.template
    )
    rng = random.Random(11)
    for _ in range(300):
        messages = random_messages(rng, thinking=known.thinking == "kept")
        assert is_faithful(render, messages, tools=TOOLS, lstrip=known.lstrip)


@pytest.mark.parametrize(("family", "fixture"), CASES)
@pytest.mark.parametrize("space", ["\n", "\n\n", " \n\t ", ""])
def test_leading_space_of_a_message_is_stripped_as_the_official_template_strips_it(
    family: str, fixture: str, space: str
) -> None:
    render = renderer(family, fixture)
    known = FAMILIES[family]
    ask = Turn(role="user", author="human", blocks=(Text("hi"),))
    turns = [ask, Turn(role="assistant", author="m", blocks=(Text(f"{space}well"),))]
    rendered = render.render(turns)
    a, b = rendered.spans[1].body
    kept = space.lstrip(known.lstrip)
    assert f"{kept}well" in render.codec.decode(rendered.ids[a:b])
    assert rendered.notes.get("leading_space", 0) == (kept != space)
    # without an empty reasoning_content, which gpt-oss' official template writes out
    messages = [
        {name: value for name, value in message.items() if value}
        for item in render.messages_of(turns)
        for message in item.messages
    ]
    text = render_template(
        render.tokenizer, messages, tools=None, template=official(fixture), **known.options
    )
    assert rendered.text.rstrip("\n").endswith(
        text.rstrip("\n").rpartition("hi")[2] + ("" if known.official_ends else known.end_token)
    )


def test_the_official_qwen3_template_rewrites_history_and_ours_does_not() -> None:
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "reasoning_content": "why"},
        {"role": "user", "content": "three"},
    ]
    render = partial(render_template, chatml_tokenizer(), tools=None)
    theirs, ours = (
        partial(render, template=official("qwen3")),
        partial(render, template=FAMILIES["qwen3-thinking"].template),
    )
    assert not theirs(messages).startswith(theirs(messages[:2]))
    assert ours(messages).startswith(ours(messages[:2]))


def test_llama_keeps_text_beside_calls_several_calls_and_one_date() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Both:", "tool_calls": [call, call]},
    ]
    text = render_template(
        llama_tokenizer(), messages, tools=None, template=FAMILIES["llama3"].template
    )
    body = (
        'Both:\n{"name": "f", "parameters": {"a": 1}}\n{"name": "f", "parameters": {"a":'
        " 1}}<|eot_id|>"
    )
    assert text.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n" + body)
    assert "Today Date: 26 Jul 2024\n" in text
    with pytest.raises(RenderError, match="only supports single tool-calls"):
        render_template(llama_tokenizer(), messages, tools=None, template=official("llama3_1"))


def test_tools_of_a_llama_conversation_without_a_user_message_stand_in_one_of_their_own() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "well"}]
    text = render_template(
        llama_tokenizer(),
        messages,
        tools=tool_messages(TOOLS),
        template=FAMILIES["llama3"].template,
    )
    assert text.count('"name": "Read"') == 1
    assert text.index('"name": "Read"') < text.index("<|start_header_id|>assistant")


@pytest.mark.parametrize(("family", "fixture"), CASES)
def test_a_family_is_recognised_by_text_and_by_what_it_renders(family: str, fixture: str) -> None:
    expected = NAMED.get(family, family)
    tokenizer = renderer(family, fixture).tokenizer
    render = partial(render_template, tokenizer)
    by_text = recognise("\n" + official(fixture) + "\n", render)
    edited = "{#- a comment that no list of hashes knows -#}" + official(fixture)
    by_rendering = recognise(edited, render)
    assert template_sha256(edited) not in {s for f in FAMILIES.values() for s in f.sha256}
    assert by_text is by_rendering is FAMILIES[expected]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_our_own_variants_are_recognised(family: str) -> None:
    tokenizer = tokenizer_for(family)
    render, tokens = partial(render_template, tokenizer), added_tokens(tokenizer)
    assert recognise(FAMILIES[family].template, render, tokens=tokens) is FAMILIES[family]
    assert FAMILIES[family].suits(tokens) and family in fitting_families(tokens)


def test_calls_as_text_need_no_tokens_of_their_own_and_are_written_as_qwen_writes_them() -> None:
    tools, qwen = FAMILIES["chatml-tools"], FAMILIES["qwen3-2507"]
    plain, with_tokens = added_tokens(tokenizer_for(tools.name)), added_tokens(chatml_tokenizer())
    assert tools.template == qwen.template
    assert fitting_families(plain) == ["chatml-tools"]
    assert {"qwen3-2507", "chatml-tools"} < set(fitting_families(with_tokens))
    for tokens, family in ((plain, tools), (with_tokens, qwen)):
        assert recognised_by_text(qwen.template, tokens=tokens) is family
        edited = "{#- a comment -#}" + qwen.template
        render = partial(render_template, chatml_tokenizer())
        assert recognise(edited, render, tokens=tokens) is family
    assert not tools.suits(plain - {"<|im_end|>"})


def test_another_template_is_not_mistaken_for_a_family() -> None:
    changed_template = official("qwen2_5").replace("<tool_call>\\n{", "<call>\\n{")
    assert recognise(changed_template, partial(render_template, chatml_tokenizer())) is None


def test_a_tokenizer_without_the_family_s_tokens_is_refused_by_name() -> None:
    with pytest.raises(
        RenderError, match=r"no token '<\|eot_id\|>', which the llama3 template writes"
    ):
        Renderer.for_tokenizer(chatml_tokenizer(), family="llama3")


def test_an_unknown_family_and_a_missing_template_say_which_there_are() -> None:
    with pytest.raises(RenderError, match=r"unknown template family 'qwen4'.*qwen2\.5, qwen3"):
        Renderer.for_tokenizer(chatml_tokenizer(), family="qwen4")
    tokenizer = chatml_tokenizer()
    before, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(RenderError, match="has no chat template"):
            Renderer.for_tokenizer(tokenizer)
    finally:
        tokenizer.chat_template = before


SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "n": {"type": "integer", "default": 3},
        },
    },
    {
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": ["a", "b"], "default": "a"}},
        "required": ["kind"],
    },
    {
        "type": "object",
        "properties": {
            "many": {"type": "array", "items": {"type": "integer"}, "nullable": True},
            "any": {"type": "array"},
        },
    },
    {
        "type": "object",
        "properties": {
            "deep": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}},
            }
        },
    },
    {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "items": {"type": "object", "properties": {"x": {"type": "string"}}},
            }
        },
    },
    {
        "type": "object",
        "properties": {
            "u": {"type": ["string", "null"]},
            "o": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "e": {},
        },
    },
    {
        "type": "object",
        "properties": {"name": {"type": "string", "nullable": True}, "free": {"type": "object"}},
    },
]


@pytest.mark.parametrize(("family", "fixture"), CASES)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_tools_are_written_as_the_official_template_writes_them(
    family: str, fixture: str, schema: dict[str, Any]
) -> None:
    known = FAMILIES[family]
    if not known.official_tools:
        return
    tools = tool_messages([ToolSpec(name="Look", description="Look at it.", parameters=schema)])
    render: Any = partial(
        render_template,
        tokenizer_for(family, fixture=fixture),
        [{"role": "user", "content": "hi"}],
        tools=tools,
    )
    assert render(template=known.template, **known.as_of_today()) == render(
        template=official(fixture), **known.options
    )


def test_ids_of_calls_are_hashed_so_that_ids_alike_at_either_end_stay_apart() -> None:
    ids = [
        "toolu_01ABCDEFGHIJ_x",
        "toolu_01ABCDEFGHIJ_y",
        "a_toolu_01ABCDEFGHIJ",
        "b_toolu_01ABCDEFGHIJ",
        "c1",
        "c2",
        "",
        "éééééééé1",
    ]
    short = [short_call_id(i) for i in ids]
    assert len(set(short)) == len(ids)
    assert all(len(s) == 9 and s.isascii() and s.isalnum() for s in short)
    assert short_call_id("abc123XYZ") == "abc123XYZ"


@pytest.mark.parametrize("fixture", ["mistral_v7", "mistral_v11"])
def test_results_carry_the_ids_of_their_calls(fixture: str) -> None:
    family = fixture.replace("_", "-")
    calls = (ToolCall("toolu_01A_first", "Read", {}), ToolCall("toolu_01A_second", "Read", {}))
    turns = [
        Turn(role="user", author="human", blocks=(Text("hi"),)),
        Turn(role="assistant", author="m", blocks=calls),
        Turn(
            role="tool",
            author="environment",
            blocks=(ToolResult("toolu_01A_second", "two"), ToolResult("toolu_01A_first", "one")),
        ),
    ]
    text = renderer(family, fixture).render(turns).text
    for call, result in zip(calls, ("one", "two"), strict=True):
        assert text.count(short_call_id(call.id)) == 2
        assert (
            f"[TOOL_RESULTS]{short_call_id(call.id)}[TOOL_CONTENT]{result}[/TOOL_RESULTS]" in text
        )


def test_several_calls_in_one_message_are_counted_where_each_is_a_message_of_its_own() -> None:
    calls = (ToolCall("c1", "Read", {"p": "a"}), ToolCall("c2", "Bash", {}))
    turns = [
        Turn(role="user", author="human", blocks=(Text("hi"),)),
        Turn(role="assistant", author="m", blocks=calls),
    ]
    rendered = renderer("gpt-oss", "gptoss").render(turns)
    assert rendered.notes == {"thinking_missing": 1, "parallel_calls": 1}
    assert rendered.text.endswith(
        '<|start|>assistant to=functions.Read<|channel|>commentary json<|message|>{"p":'
        ' "a"}<|call|><|start|>assistant to=functions.Bash<|channel|>commentary'
        " json<|message|>{}<|call|>"
    )
    assert "parallel_calls" not in renderer("mistral-v7", "mistral_v7").render(turns).notes


def test_a_result_that_no_call_stands_before_is_refused_by_gpt_oss() -> None:
    turns = [
        Turn(role="user", author="human", blocks=(Text("hi"),)),
        Turn(role="tool", author="environment", blocks=(ToolResult("lost", "x"),)),
    ]
    with pytest.raises(RenderError, match="names no tool and stands behind no call"):
        renderer("gpt-oss", "gptoss").render(turns)


def test_gemma_keeps_what_is_said_between_two_messages_in_one_user_turn() -> None:
    turns = [
        Turn(role="system", author="harness", blocks=(Text("Be brief."),)),
        Turn(role="user", author="human", blocks=(Text("hi"),)),
        Turn(role="assistant", author="m", blocks=(ToolCall("c1", "Read", {"p": "a"}),)),
        Turn(role="tool", author="environment", blocks=(ToolResult("c1", "no such tool."),)),
        Turn(role="assistant", author="m", blocks=(Text("Done."),)),
    ]
    render = renderer("gemma", "gemma3")
    view = render.hint_view(turns, target=4, hint="Tools: Look", site_id="s", kind="k")
    rendering = render.render(turns)
    teacher = render.codec.decode(
        rendering.ids[: view.at] + view.hint_ids + rendering.ids[view.at : view.span[1]]
    )
    assert (
        teacher
        == '<bos><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n{"name":'
        ' "Read", "parameters": {"p":'
        ' "a"}}<end_of_turn>\n<start_of_turn>user\n<tool_response>\nno such'
        " tool.\n</tool_response> \n\nTools:"
        " Look<end_of_turn>\n<start_of_turn>model\nDone.<end_of_turn>"
    )
    assert view.rendering == "appended"
