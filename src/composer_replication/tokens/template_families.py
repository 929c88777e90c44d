"""Chat-template families: which prefix-preserving variant replaces which official template.

An official template may rewrite history (Qwen3 strips the think block of earlier messages) or lose
text (Llama 3.x drops the words beside a call). Training tolerates neither, so a family names our
own variant, which equals the official template wherever that one preserves prefixes and loses
nothing (tests/tokens/test_template_families.py).

    family             official template (thinking in a log)        T of a message without thinking
    -----------------  -------------------------------------------  -------------------------------
    qwen2.5            Qwen2.5-*-Instruct, Qwen2.5-Coder-*-Instruct  text and calls
    qwen3              Qwen3-0.6B to 235B-A22B, thinking off         text and calls (1)
    qwen3-thinking     the same models, thinking on (kept)           an empty think block first (2)
    qwen3-2507         Qwen3-4B/30B-A3B/235B-A22B-Instruct-2507      text and calls
    chatml-tools       none: ChatML models without a format of calls text and calls (9)
    llama3             Llama 3.1, 3.2 and 3.3 Instruct               text and calls, JSON lines
    qwen3.5            Qwen3.5, thinking off                         text and calls (1) (3)
    qwen3.5-thinking   the same models, thinking on (kept)           an empty thought first (2) (3)
    qwen3.6            Qwen3.6, thinking off                         text and calls (1) (3)
    qwen3.6-thinking   Qwen3.6, preserve_thinking=True (kept)        an empty thought first (2) (3)
    glm-4.5            GLM-4.5, 4.5-Air and 4.6, thinking off        text and calls (1) (4)
    glm-4.5-thinking   the same models, thinking on (kept)           an empty think block (2) (4)
    mistral-v7         Mistral Small 3, 3.1, Devstral Small 2505     text and calls, one list (5)
    mistral-v11        Mistral Small 3.2, Devstral Small 2507        text and calls (5)
    mistral-v13        Ministral 3 and Devstral 2 Instruct           text and calls (5)
    gemma              Gemma 1, 2 and 3 Instruct                     text and calls, JSON lines (6)
    gpt-oss            gpt-oss-20b and 120b (kept)                   text and calls (7)
    deepseek-v3        DeepSeek-V3 (2024-12)                         text and calls (8)

Thinking in a log is left out and counted unless the table says (kept).

    (1) The empty think block belongs to the header, as the generation prompt writes it, and stays
        on every message.
    (2) The student learns not to think there; thinking_missing counts such messages.
    (3) Calls are <function=...> blocks whose values are bare text: "3" and 3 read the same. A
        system message in mid-conversation goes to the end of the user message or results above.
    (4) A message ends with the token that announces what follows: <|observation|> behind calls,
        <|user|> otherwise. Values as in (3).
    (5) No system message in mid-conversation: a hint is appended to the text above. v7 and v11
        write ids of nine letters and digits.
    (6) No system role, no tools: these are text in the user's turn, and a hint is joined to that
        turn.
    (7) Nothing replaces missing thinking. Text beside a call is analysis; several calls follow one
        another, counted as parallel_calls.
    (8) The official template writes calls only if the text is none, does not close them, and
        writes no tools. A hint is appended to the text above.
    (9) The format of qwen3-2507, for a tokenizer that has no tokens for <tool_call>: only
        <|im_start|> and <|im_end|> are control tokens, all else is text. The model has not seen
        the format before: it learns it in training. Always named, as no model's own template is
        replaced by it.

White space before the text of a message is left out if the official template strips it
(`Family.lstrip`), and counted as leading_space.

A student trained with a variant must be served with it: save `Renderer.template` as the model's
chat template.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from composer_replication.core.errors import RenderError

Messages = Sequence[Mapping[str, Any]]
# render(messages, *, tools, add_generation_prompt, template, **options) -> text
Render = Callable[..., str]

QWEN25_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One prefix-preserving template and the official template that it replaces.

    `constants` are written as `set` lines above the template's text; `options` are what the
    official template is called with to match the variant (enable_thinking, date_string); `sha256`
    are official texts recognised at once.

    `end_token` is the last token of a message as it is sampled, `call_end_token` that of a message
    with calls ("" = the same). `hint` says how a hint is rendered: "message", a system message; or,
    if the official template knows none in mid-conversation, "joined" (the variant writes a system
    message at the end of the user message or results above it) or "appended" to the text of the
    message above (as a user message if that is an assistant's). `short_ids`: calls and results
    carry ids of nine letters and digits. `call_each`: the format ends a message at its first call,
    so several calls become several messages. `rewrites_steps`: the official template renders a step
    differently once another follows it. `official_ends`, `official_tools`: whether the official
    template writes the end of a message whatever follows it, and tools and calls at all. `dated`:
    it writes today's date, the variant a fixed one. `inner_tokens`: what its models' tokenizers
    have as one token inside a message; without them it works by name, but is not advised. `lstrip`:
    the characters that the official template strips from the start of an assistant's text, as
    `str.lstrip` takes them (None = all white space); the variant strips them too, so no such text
    merges with its header's line break. Example: FAMILIES["qwen3"].end_token -> "<|im_end|>"
    """

    name: str
    file: str
    end_token: str
    header_tokens: tuple[str, ...]
    models: str
    note: str
    thinking: Literal["kept", "left out"] = "left out"
    hint: Literal["message", "joined", "appended"] = "message"
    call_end_token: str = ""
    short_ids: bool = False
    call_each: bool = False
    rewrites_steps: bool = False
    official_ends: bool = True
    official_tools: bool = True
    dated: bool = False
    inner_tokens: tuple[str, ...] = ()
    lstrip: str | None = ""
    constants: Mapping[str, str | bool] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sha256: tuple[str, ...] = ()

    @property
    def end_tokens(self) -> tuple[str, ...]:
        """Every token that can end a message, the one without calls first."""
        return (self.end_token, self.call_end_token) if self.call_end_token else (self.end_token,)

    def suits(self, tokens: Collection[str]) -> bool:
        """Whether a tokenizer with these tokens has all that the family's models have.

        >>> FAMILIES["chatml-tools"].suits(["<|im_start|>", "<|im_end|>"])
        True
        >>> FAMILIES["qwen3-2507"].suits(["<|im_start|>", "<|im_end|>"])
        False
        """
        return all(
            token in tokens for token in (*self.end_tokens, *self.header_tokens, *self.inner_tokens)
        )

    def is_variant_of(self, other: Family) -> bool:
        """Whether the two render one official template, with thinking or without.

        >>> FAMILIES["qwen3"].is_variant_of(FAMILIES["qwen3-thinking"])
        True
        """
        return self.name.removesuffix("-thinking") == other.name.removesuffix("-thinking")

    def as_of_today(self) -> dict[str, str]:
        """Options that make the variant write today's date.

        For comparison with an official template that accepts no other date.
        """
        return {"current_date": datetime.date.today().isoformat()} if self.dated else {}

    def end_of(self, message: Mapping[str, Any]) -> str:
        """The end token of this assistant message."""
        return self.end_tokens[-1] if message.get("tool_calls") else self.end_token

    @property
    def template(self) -> str:
        """The variant as one Jinja text that any chat-template engine can use."""
        body = (
            files("composer_replication.tokens")
            .joinpath("templates", self.file)
            .read_text(encoding="utf-8")
        )
        lines = [
            f"{{%- set {name} = {_literal(value)} %}}\n" for name, value in self.constants.items()
        ]
        return "".join(lines) + body


def _literal(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def _chatml(
    name: str,
    *,
    default_system: str = "",
    think_header: str = "",
    keeps_thinking: bool = False,
    call_tokens: bool = True,
    **fields: Any,
) -> Family:
    return Family(
        name=name,
        file="chatml.jinja",
        end_token="<|im_end|>",
        header_tokens=("<|im_start|>",),
        thinking="kept" if keeps_thinking else "left out",
        inner_tokens=(
            *(("<tool_call>", "</tool_call>") if call_tokens else ()),
            *(("<think>", "</think>") if think_header or keeps_thinking else ()),
        ),
        rewrites_steps=bool(think_header),
        lstrip="\n" if think_header or keeps_thinking else "",
        constants={
            "default_system": default_system,
            "think_header": think_header,
            "keeps_thinking": keeps_thinking,
        },
        **fields,
    )


_QWEN3_SHA256 = (
    "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
    # the first one published, for text content only
    "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
)
_GLM_SHA256 = (
    "44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",
    "b1e56a48a6c16b1ccc8c3c8f2e2a28d6627efb93f15fbfe13eb1bbd175a4756b",  # 4.6
)
_QWEN35_SHA256 = (
    "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
    "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80",
)
_QWEN36_SHA256 = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"


def _qwen35(version: Literal["3.5", "3.6"], *, thinks: bool, also: str = "") -> Family:
    """The two versions write argument values differently, and 3.6 must be told to keep thinking.

    `also` ends `models`.
    """
    newer = version == "3.6"
    thinking_note = (
        "a message whose thinking the log lacks begins with an empty thought, inside T, so the"
        " student learns not to think there (counted as thinking_missing)"
        if thinks
        else (
            "every message keeps the empty think block of its generation prompt; thinking in a log"
            " is left out and counted"
        )
    )
    return Family(
        name=f"qwen{version}" + ("-thinking" if thinks else ""),
        file="qwen3_5.jinja",
        end_token="<|im_end|>",
        header_tokens=("<|im_start|>", "<think>", "</think>"),
        models=f"Qwen{version}, {'thinking on' if thinks else 'enable_thinking=False'}{also}",
        note=(
            f"{thinking_note}; the values of arguments are bare text; a system message in"
            " mid-conversation stands at the end of what a user or tool said above"
        ),
        thinking="kept" if thinks else "left out",
        hint="joined",
        lstrip=None,
        constants={"thinks": thinks, "json_values": newer},
        options={"enable_thinking": thinks}
        | ({"preserve_thinking": True} if newer and thinks else {}),
        sha256=(_QWEN36_SHA256,) if newer else _QWEN35_SHA256,
    )


def _glm(name: str, *, thinks: bool) -> Family:
    thinking_note = (
        "a message whose thinking the log lacks begins with an empty think block, inside T (counted"
        " as thinking_missing)"
        if thinks
        else (
            "user messages end with /nothink, the header holds an empty think block; thinking in a"
            " log is left out and counted"
        )
    )
    return Family(
        name=name,
        file="glm4.jinja",
        end_token="<|user|>",
        call_end_token="<|observation|>",
        header_tokens=("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
        models=f"GLM-4.5, GLM-4.5-Air and GLM-4.6, thinking {'on' if thinks else 'off'}",
        note=(
            f"{thinking_note}; a message ends with the token that announces what follows,"
            " <|observation|> behind calls and <|user|> otherwise; the values of arguments are bare"
            " text"
        ),
        thinking="kept" if thinks else "left out",
        official_ends=False,
        lstrip=None,
        constants={"thinks": thinks},
        options={} if thinks else {"enable_thinking": False},
        sha256=_GLM_SHA256,
    )


def _mistral(
    version: str, *, models: str, tokens: tuple[str, ...], ids: bool, sha256: str
) -> Family:
    common = (
        "<s>",
        "[INST]",
        "[/INST]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    )
    id_note = (
        "calls and results carry ids of nine letters and digits, hashed from the log's, and those"
        " of calls are inside T"
        if ids
        else "calls and results carry no ids, so results are told apart by their order alone"
    )
    return Family(
        name=f"mistral-{version}",
        file="mistral.jinja",
        end_token="</s>",
        header_tokens=(*common, *tokens),
        models=models,
        note=(
            f"the tools stand before the first message and stay there; {id_note}; thinking in a"
            " log is left out and counted; a hint is appended to the message above"
        ),
        hint="appended",
        short_ids=ids,
        constants={"version": version},
        sha256=(sha256,),
    )


_FAMILIES = (
    _chatml(
        "qwen2.5",
        default_system=QWEN25_SYSTEM,
        models="Qwen2.5-*-Instruct and Qwen2.5-Coder-*-Instruct (template of 2024-09)",
        note="thinking in a log has no place in this format: it is left out and counted",
        sha256=("55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",),
    ),
    _chatml(
        "qwen3",
        think_header="<think>\n\n</think>\n\n",
        models="Qwen3-0.6B to Qwen3-235B-A22B (hybrid models of 2025-04), enable_thinking=False",
        note=(
            "every assistant message keeps the empty think block of its generation prompt; thinking"
            " in a log is left out and counted"
        ),
        options={"enable_thinking": False},
        sha256=_QWEN3_SHA256,
    ),
    _chatml(
        "qwen3-thinking",
        keeps_thinking=True,
        models="Qwen3-0.6B to Qwen3-235B-A22B (hybrid models of 2025-04), thinking on",
        note=(
            "every assistant message keeps its think block; a message whose thinking the log lacks"
            " begins with an empty one, inside T, so the student learns not to think there (counted"
            " as thinking_missing)"
        ),
        options={"enable_thinking": True},
        sha256=_QWEN3_SHA256,
    ),
    _chatml(
        "qwen3-2507",
        models="Qwen3-4B-Instruct-2507, Qwen3-30B-A3B-Instruct-2507, Qwen3-235B-A22B-Instruct-2507",
        note="thinking in a log has no place in this format: it is left out and counted",
        sha256=("64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",),
    ),
    _chatml(
        "chatml-tools",
        call_tokens=False,
        models="ChatML models whose own template writes no calls, e.g. SmolLM2-*-Instruct",
        note=(
            "calls and results are text in the format of qwen3-2507, which the model learns in"
            " training; thinking in a log is left out and counted"
        ),
    ),
    Family(
        name="llama3",
        file="llama3.jinja",
        end_token="<|eot_id|>",
        header_tokens=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        models=(
            "Llama-3.1-*-Instruct, Llama-3.2-1B/3B-Instruct by text; Llama-3.3-70B-Instruct by"
            " behaviour"
        ),
        note=(
            "text is kept beside calls, several calls stand one JSON object a line, only white"
            " space before an assistant's text is stripped, the date is 26 Jul 2024; thinking in a"
            " log is left out and counted"
        ),
        lstrip=None,
        options={"date_string": "26 Jul 2024"},
        sha256=(
            "93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7",
            "d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f",
        ),
    ),
    _qwen35("3.5", thinks=False),
    _qwen35("3.5", thinks=True),
    _qwen35(
        "3.6",
        thinks=False,
        also="; Qwen3.8 by behaviour (its own leaves out an empty system message)",
    ),
    _qwen35("3.6", thinks=True, also=", preserve_thinking=True"),
    _glm("glm-4.5", thinks=False),
    _glm("glm-4.5-thinking", thinks=True),
    _mistral(
        "v7",
        models=(
            "Mistral with tokenizer v7-tekken: Mistral-Small-24B-Instruct-2501,"
            " Mistral-Small-3.1-24B-Instruct-2503, Devstral-Small-2505"
        ),
        tokens=("[TOOL_CONTENT]",),
        ids=True,
        sha256="165382433e4b79ea9fb6b75f1789089ee8582107ec09af5763ec58adf324f991",
    ),
    _mistral(
        "v11",
        models=(
            "Mistral with tokenizer v11: Mistral-Small-3.2-24B-Instruct-2506, Devstral-Small-2507"
        ),
        tokens=("[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]"),
        ids=True,
        sha256="d34521d2bef46ff983f8b5f6dc22e8c69d0b9e431c0cf385f35605df63cc988d",
    ),
    _mistral(
        "v13",
        models="Mistral with tokenizer v13: Ministral 3 and Devstral 2 Instruct",
        tokens=("[ARGS]",),
        ids=False,
        sha256="e1129c91272d2a790668ec4596345ba983b9e29a96073b81f2a56affb4d2e2d1",
    ),
    Family(
        name="gemma",
        file="gemma.jinja",
        end_token="<end_of_turn>",
        header_tokens=("<bos>", "<start_of_turn>"),
        models="Gemma 1, 2 and 3 Instruct",
        note=(
            "no official format of tools, calls and results: here they are words in the user's and"
            " the model's turns; what is said between two messages of the model, hints and system"
            " messages too, stands in one user turn; thinking in a log is left out and counted"
        ),
        hint="joined",
        official_tools=False,
        lstrip=None,
        sha256=(
            "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",
            "8d9e3a3c114fb2053ec500184677af4f7e5f8ec2582443cd535834e68b3ade29",
        ),
    ),
    Family(
        name="gpt-oss",
        file="gptoss.jinja",
        end_token="<|return|>",
        call_end_token="<|call|>",
        header_tokens=("<|start|>", "<|message|>", "<|channel|>", "<|end|>"),
        models="gpt-oss-20b and gpt-oss-120b",
        note=(
            "thinking is the analysis channel, a message without it has none; words beside a call"
            " are analysis too, commentary if there is thinking; a message ends with <|call|> or"
            " <|return|> also in mid-conversation; several calls of a message follow one another,"
            " each with its own <|call|> (counted as parallel_calls); a system message in"
            " mid-conversation is a developer message; the date is 2025-08-05"
        ),
        thinking="kept",
        call_each=True,
        rewrites_steps=True,
        dated=True,
        sha256=("a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",),
    ),
    Family(
        name="deepseek-v3",
        file="deepseek.jinja",
        end_token="<｜end▁of▁sentence｜>",
        header_tokens=(
            *(f"<｜{name}｜>" for name in ("begin▁of▁sentence", "User", "Assistant", "tool▁sep")),
            *(
                f"<｜tool▁{name}▁{edge}｜>"
                for name in ("calls", "call", "outputs", "output")
                for edge in ("begin", "end")
            ),
        ),
        models="DeepSeek-V3 (2024-12)",
        note=(
            "no official format of tools: here they stand in words behind the system messages;"
            " calls have the official format, beside text too and always closed; a message behind"
            " results has no header; a system message in mid-conversation is a user's; thinking in"
            " a log is left out and counted; a hint is appended to the message above"
        ),
        hint="appended",
        official_tools=False,
        sha256=("3b8267e54b67df6500f231ffa969955cc9d26b3444a291ced4eb96ca7d3ca1ea",),
    ),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _FAMILIES}

_CALL = {
    "id": "callabc01",
    "type": "function",
    "function": {
        "name": "look",
        "arguments": {"path": "a b/ö.py", "n": 2, "ok": True, "deep": {"x": [1, None]}},
    },
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at it.",
        "parameters": {"type": "object", "properties": {}},
    },
}
# Conversations on which an official template preserves prefixes and loses nothing; (messages, with
# tools, generation prompt).
PROBES: tuple[tuple[Messages, bool, bool], ...] = (
    (({"role": "user", "content": "hello"},), False, True),
    (
        ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}),
        True,
        True,
    ),
    (
        ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "well"}),
        False,
        False,
    ),
    (
        (
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [_CALL]},
            {"role": "tool", "name": "look", "tool_call_id": "callabc01", "content": 'one\n"two"'},
            {"role": "assistant", "content": "done", "reasoning_content": "so"},
        ),
        True,
        False,
    ),
)


def template_sha256(text: str) -> str:
    """The hash of a template's text, without white space at either end."""
    return hashlib.sha256(text.strip().encode()).hexdigest()


def fitting_families(tokens: Collection[str]) -> list[str]:
    """The names of the families that suit a tokenizer with these control tokens.

    >>> fitting_families(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    ['chatml-tools']
    """
    return [family.name for family in FAMILIES.values() if family.suits(tokens)]


def recognised_by_text(own_template: str, *, tokens: Collection[str] = ()) -> Family | None:
    """The family whose official template, or variant, has this text; None if none has.

    Of several with the same text, one that suits the tokenizer's `tokens` is taken first.
    """
    fingerprint = template_sha256(own_template)
    for family in _suited_first(tokens):
        if fingerprint in family.sha256 or fingerprint == template_sha256(family.template):
            return family
    return None


def recognise(own_template: str, render: Render, *, tokens: Collection[str] = ()) -> Family | None:
    """The family that replaces a tokenizer's own template; None if it is unknown.

    It is recognised by its text, else by what it renders. `render(messages, tools=...,
    add_generation_prompt=..., template=..., **options)` renders with the tokenizer's special
    tokens, `tokens` are all that it has beside its vocabulary. Qwen3's hybrid template has two
    families; the non-thinking one is taken unless settings name the other.
    """
    if (family := recognised_by_text(own_template, tokens=tokens)) is not None:
        return family
    for family in _suited_first(tokens):
        if all(_renders_equal(probe, family, own_template, render) for probe in PROBES):
            return family
    return None


def _suited_first(tokens: Collection[str]) -> list[Family]:
    """All families, those that suit these tokens first; in their order if there are none."""
    return sorted(FAMILIES.values(), key=lambda family: bool(tokens) and not family.suits(tokens))


def _renders_equal(
    probe: tuple[Messages, bool, bool], family: Family, own_template: str, render: Render
) -> bool:
    messages, with_tools, prompt = probe
    if not family.official_tools and (
        with_tools or any(m["role"] in ("tool", "system") for m in messages)
    ):
        return True
    if family.rewrites_steps and sum(m["role"] == "assistant" for m in messages) > 1:
        messages, prompt = messages[:2], False
    messages = [_for_official(m, family) for m in messages]
    tools = [_TOOL] if with_tools else None
    try:
        official_text = render(
            messages,
            tools=tools,
            add_generation_prompt=prompt,
            template=own_template,
            **family.options,
        )
    except RenderError:  # a template that rejects a tool or a role is of another family
        return False
    variant_text = render(
        messages,
        tools=tools,
        add_generation_prompt=prompt,
        template=family.template,
        **family.as_of_today(),
    )
    if not family.official_ends and messages[-1]["role"] == "assistant":
        variant_text = variant_text.removesuffix(family.end_of(messages[-1]))
    return official_text == variant_text


def _for_official(message: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """A message for the official template of a family.

    Thinking is left out, or given under both names that templates use for it.
    """
    official_message = {k: v for k, v in message.items() if k != "reasoning_content"}
    if family.thinking == "kept" and "reasoning_content" in message:
        official_message |= {
            "reasoning_content": message["reasoning_content"],
            "thinking": message["reasoning_content"],
        }
    return official_message
