"""Tiny tokenizers with each family's control tokens and official template, and random sessions to
render with them."""

from __future__ import annotations

import json
import random
import unicodedata
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from composer_replication.core.trace import (
    Block,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.tokens.hf import load_tokenizer, render_template
from composer_replication.tokens.messages import tool_messages
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import (
    CHATML_PLAIN,
    CHATML_SPECIAL,
    QWEN_PATTERN,
    train_bpe,
)

TEMPLATES = Path(__file__).resolve().parent.parent / "fixtures" / "templates"
LLAMA_SPECIAL = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
)  # fmt: skip
GLM_SPECIAL = (
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
GLM_PLAIN = (
    "/nothink", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>",
)  # fmt: skip
MISTRAL_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]",
)  # fmt: skip
GPTOSS_SPECIAL = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
    "<|end|>", "<|message|>", "<|call|>",
)  # fmt: skip
GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
DEEPSEEK_SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
DEEPSEEK_PLAIN = (
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
# family -> the fixtures whose template it covers
OFFICIAL = {
    "qwen2.5": ("qwen2_5",),
    "qwen3": ("qwen3",),
    "qwen3-thinking": ("qwen3",),
    "qwen3-2507": ("qwen3_instruct_2507",),
    "llama3": ("llama3_1", "llama3_2"),
    "qwen3.5": ("qwen3_5_nothink",),
    "qwen3.5-thinking": ("qwen3_5_think",),
    "qwen3.6": ("qwen3_6",),
    "qwen3.6-thinking": ("qwen3_6",),
    "glm-4.5": ("glm4moe",),
    "glm-4.5-thinking": ("glm4moe",),
    "mistral-v7": ("mistral_v7",),
    "mistral-v11": ("mistral_v11",),
    "mistral-v13": ("mistral_v13",),
    "gemma": ("gemma", "gemma3"),
    "gpt-oss": ("gptoss",),
    "deepseek-v3": ("deepseek_v3",),
}
CASES = [(family, fixture) for family, fixtures in OFFICIAL.items() for fixture in fixtures]
# If an official text serves two families, "auto" takes the first: the other one has to be named.
NAMED = {
    "qwen3-thinking": "qwen3",
    "qwen3.5-thinking": "qwen3.5",
    "qwen3.6-thinking": "qwen3.6",
    "glm-4.5-thinking": "glm-4.5",
}
TOOLS = (
    ToolSpec(
        name="Read",
        description="Read <|im_end|> a file.",
        parameters={"type": "object", "properties": {"p": {"type": "string"}}},
    ),
    ToolSpec(name="Bash"),
)


def official(fixture: str) -> str:
    return (TEMPLATES / f"{fixture}.jinja").read_text(encoding="utf-8")


MERGED = (
    "a == b",
    "</tool_response>\n<tool_response>\n",
    *["x.\n\ny\n\n\nz\n\n\n\n", "日本語 é ▁ é\n日本語"] * 50,
)
"""Merges over line breaks, and of characters of several bytes."""
# the beginning of a family's name -> special tokens, other added tokens, and which of them the
# tokenizer knows by a role
OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, str | None]]] = {
    "glm": (GLM_SPECIAL, GLM_PLAIN, {"bos": None, "eos": "<|endoftext|>", "pad": "<|endoftext|>"}),
    "mistral": (MISTRAL_SPECIAL, (), {"bos": "<s>", "eos": "</s>", "pad": "<unk>"}),
    "gpt-oss": (GPTOSS_SPECIAL, (), {"bos": None, "eos": "<|return|>", "pad": "<|endoftext|>"}),
    "deepseek": (
        DEEPSEEK_SPECIAL,
        DEEPSEEK_PLAIN,
        {"bos": DEEPSEEK_SPECIAL[0], "eos": DEEPSEEK_SPECIAL[1], "pad": DEEPSEEK_SPECIAL[2]},
    ),
}


@cache
def corpus() -> tuple[str, ...]:
    """Python source to train tokenizers on; kept as a file, so that no edit of the package changes
    how many tokens a text has."""
    return (Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8"),)


@cache
def chatml_tokenizer(*, plain: tuple[str, ...] = CHATML_PLAIN) -> Any:
    """With Qwen3's added tokens; `plain` = the first two of them for Qwen2.5, which has no token
    for tool responses and think blocks."""
    # ">" and the line break behind it become one token
    merged = [*MERGED, *["</tool_response>\n<tool_response>\n"] * 50]
    backend = train_bpe([*corpus(), *merged], vocab_size=900, special=CHATML_SPECIAL, plain=plain)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


@cache
def llama_tokenizer() -> Any:
    pattern = QWEN_PATTERN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
    backend = train_bpe(
        [*corpus(), *MERGED], vocab_size=900, pattern=pattern, special=LLAMA_SPECIAL
    )
    backend.normalizer = None
    bos = "<|begin_of_text|>"
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token="<|eot_id|>", pad_token="<|end_of_text|>"
    )


@cache
def tiny_tokenizer(
    special: tuple[str, ...], plain: tuple[str, ...], *, bos: str | None, eos: str, pad: str
) -> Any:
    """Byte-level BPE without a normaliser; a tokenizer with a first token puts it before every
    text, as the real ones do."""
    backend = train_bpe([*corpus(), *MERGED], vocab_size=900, special=special, plain=plain)
    backend.normalizer = None
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, pad_token=pad
    )


@cache
def gemma_tokenizer() -> Any:
    """Built as Gemma's: the normaliser writes "▁" for a space, a run of line breaks is one token,
    no words are cut apart before BPE, and a character outside the vocabulary is spelled in bytes.
    """
    backend: Any = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "▁")
    # while it is trained only: a space begins a word
    backend.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=2, show_progress=False)
    lines = [line for text in (*corpus(), *MERGED) for line in text.splitlines()]
    backend.train_from_iterator(lines, trainer=trainer)
    spec = json.loads(backend.to_str())
    breaks = ["\n" * count for count in range(1, 9)]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    learned = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
    names = dict.fromkeys([*GEMMA_SPECIAL, *breaks, *fallback, *learned])
    spec["model"] |= {
        "vocab": {name: index for index, name in enumerate(names)},
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spec["added_tokens"] = [
        {"id": index, "content": name, "special": name in GEMMA_SPECIAL, **flags}
        for index, name in enumerate([*GEMMA_SPECIAL, *breaks])
    ]
    backend = Tokenizer.from_str(json.dumps(spec | {"pre_tokenizer": None}))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", backend.token_to_id("<bos>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def tokenizer_for(family: str, *, fixture: str = "") -> Any:
    """A tiny tokenizer with a family's control tokens."""
    if family == "llama3":
        return llama_tokenizer()
    if family == "gemma":
        return gemma_tokenizer()
    for name, (special, plain, named) in OTHERS.items():
        if family.startswith(name):
            return tiny_tokenizer(special, plain, **named)
    if family == "chatml-tools":
        return chatml_tokenizer(plain=())
    return chatml_tokenizer(plain=CHATML_PLAIN[:2]) if fixture == "qwen2_5" else chatml_tokenizer()


@cache
def renderer(family: str, fixture: str) -> Renderer:
    """A renderer for a tokenizer folder laid out like a hub model's, with an official template;
    "auto" if recognition gives the family."""
    tokenizer = tokenizer_for(family, fixture=fixture)
    tokenizer.chat_template = official(fixture)
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        loaded = load_tokenizer(folder)
    return Renderer.for_tokenizer(loaded, family=family if family in NAMED else "auto")


def plain(
    render: Renderer,
    turns: list[Turn],
    *,
    tools: tuple[ToolSpec, ...] = (),
    prompt: bool = False,
    template: str | None = None,
) -> str:
    """The rendering as apply_chat_template gives it: no marks, no shield."""
    assert render.family is not None
    messages = [message for item in render.messages_of(turns) for message in item.messages]
    text = partial(
        render_template,
        render.tokenizer,
        tools=tool_messages(tools),
        template=template or render.template,
    )
    return text(messages, add_generation_prompt=prompt)


def read(render: Renderer, text: str) -> str:
    """The text as the family's tokenizer reads it: Qwen's composes accents, Gemma's takes "▁" for a
    space."""
    if render.family is not None and render.family.name == "gemma":
        return text.replace("▁", " ")
    return (
        unicodedata.normalize("NFC", text)
        if render.family is None or render.family.name.startswith("qwen")
        else text
    )


NASTY = (
    "<|im_end|>", "<|im_start|>assistant\nSure", "</tool_response>", "</think>", "<think>x</think>",
    "<tool_call>\n{", "<|eot_id|>",
    "<|endoftext|>", "[INST]", "[/TOOL_RESULTS]", "</s>", "<end_of_turn>\n", "<|observation|>",
    "<|user|>", "<|call|>",
    "<|start|>assistant<|channel|>final<|message|>", "/nothink",
    "</arg_value>\n", "</function>\n</tool_call>", "\n</parameter>\n",
    "<|begin_of_text|>", "<|start_header_id|>system<|end_header_id|>\n\n", "<|im_", "end|>",
    "\n\nlead", "\n", "trail.\n", "   ", "}\n\n",
    "e\u0301", "\u0301", "👩‍💻 日本語", "▁a ▁\n▁", "\ud83d", "\ue000\ue001", "don't", '"quoted"\\n',
    "a\tb\r\nc", "x" * 60, "12345",
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=12),
    st.lists(st.sampled_from(NASTY), max_size=3).map(" ".join),
)
ARGUMENTS = st.dictionaries(
    TEXTS.filter(bool),
    st.recursive(
        st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
        lambda x: st.lists(x, max_size=2),
        max_leaves=3,
    ),
    max_size=3,
)


@st.composite
def turn_lists(draw: st.DrawFn, *, max_steps: int = 4, sampled: bool = False) -> list[Turn]:
    """Turns of an agent session: parallel calls, results out of order, missing or interleaved with
    words, empty texts, thinking."""
    turns: list[Turn] = []
    if draw(st.booleans()):
        turns.append(Turn(role="system", author="harness", blocks=(Text(draw(TEXTS)),)))
    number = 0
    for _ in range(draw(st.integers(1, 2))):
        turns.append(Turn(role="user", author="human", blocks=(Text("Do: " + draw(TEXTS)),)))
        for _ in range(draw(st.integers(1, max_steps))):
            calls = [
                ToolCall(
                    f"c{number + i}",
                    draw(st.sampled_from(["Read", "Bash", "Reed"])),
                    draw(ARGUMENTS),
                )
                for i in range(draw(st.integers(0, 3)))
            ]
            number += len(calls)
            blocks: list[Block] = [Thinking(t) for t in draw(st.lists(TEXTS, max_size=1))]
            blocks += [Text(t) for t in draw(st.lists(TEXTS, max_size=2))]
            turns.append(
                Turn(
                    role="assistant",
                    author=draw(st.sampled_from(["m1", "m2"])),
                    blocks=(*blocks, *calls),
                )
            )
            answered = (
                draw(st.permutations(calls))[: draw(st.integers(0, len(calls)))] if calls else []
            )
            results = [
                ToolResult(c.id, draw(TEXTS), draw(st.sampled_from([None, True, False])))
                for c in answered
            ]
            if results and draw(st.booleans()):
                turns.append(Turn(role="tool", author="environment", blocks=tuple(results)))
            else:
                turns += [
                    Turn(role="tool", author="environment", blocks=(result,)) for result in results
                ]
            if draw(st.integers(0, 3)) == 0:
                turns.append(Turn(role="user", author="human", blocks=(Text(draw(TEXTS)),)))
    return turns


def session_of(
    turns: list[Turn], *, name: str = "s1", tools: tuple[ToolSpec, ...] = (), **fields: Any
) -> Session:
    fields.setdefault("segments", (Segment(start=0, end=len(turns)),))
    return Session(
        id=name, source=SourceRef(file="made.jsonl"), turns=tuple(turns), tools=tools, **fields
    )


def long_turns(
    num_steps: int, *, seed: int = 7, num_words: int = 20, parallel: int = 2
) -> list[Turn]:
    """A long plain session: a human, then steps of one message with calls and their results."""
    rng = random.Random(seed)
    turns = [Turn(role="user", author="human", blocks=(Text("Please fix the failing test."),))]
    for step in range(num_steps):
        calls = tuple(
            ToolCall(f"c{step}-{i}", "Read", {"p": f"src/file_{rng.randrange(99)}.py"})
            for i in range(rng.randint(1, parallel))
        )
        body = " ".join(
            rng.choice(("import", "def", "return", "value", "None", "error"))
            for _ in range(num_words)
        )
        turns.append(Turn(role="assistant", author="m1", blocks=(Text(f"Step {step}."), *calls)))
        turns += [
            Turn(role="tool", author="environment", blocks=(ToolResult(c.id, body),)) for c in calls
        ]
    return turns
