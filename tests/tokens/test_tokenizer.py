"""The tiny tokenizer, loading one from a folder, and the codec's own edges."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from composer_replication.core.errors import ConfigError, RenderError
from composer_replication.core.trace import Text, Turn
from composer_replication.tokens.hf import TextCodec, load_tokenizer
from composer_replication.tokens.messages import replace_surrogates
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.template_families import FAMILIES
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from tests.tokens.students import CASES, chatml_tokenizer, corpus, renderer


def test_the_tiny_tokenizer_is_the_same_every_time_and_reads_any_text() -> None:
    first, second = (
        train_tiny_tokenizer(corpus(), vocab_size=600),
        train_tiny_tokenizer(corpus(), vocab_size=600),
    )
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert len(first) == 600
    assert first.pad_token_id != first.eos_token_id and first.eos_token == "<|im_end|>"
    text = "def f():\n    return 'é日👩‍💻'\t\x00 <|im_end|>"
    assert first.decode(first(text)["input_ids"]) == text
    assert first.chat_template == FAMILIES["qwen3"].template
    family = Renderer.for_tokenizer(first).family
    assert family is not None and family.name == "qwen3"


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 265"):
        train_tiny_tokenizer(corpus(), vocab_size=200)


def test_a_tokenizer_folder_is_loaded_and_keeps_its_template(tmp_path: Path) -> None:
    train_tiny_tokenizer(corpus(), vocab_size=300).save_pretrained(tmp_path)
    render = Renderer.for_tokenizer(load_tokenizer(str(tmp_path)))
    assert render.family is FAMILIES["qwen3"]
    assert (
        render.describe()["tokenizer"] == str(tmp_path) and render.describe()["vocab_size"] == 300
    )


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
        load_tokenizer(str(tmp_path))


def test_control_tokens_are_the_special_ones_and_those_the_template_writes() -> None:
    codec = TextCodec(chatml_tokenizer(), template="<|im_start|>{{ x }}</think>")
    assert set(codec.control) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "</think>"}
    # ordinary vocabulary here
    assert codec.encode("<think>", cuts=()).ids == [
        chatml_tokenizer().convert_tokens_to_ids("<think>")
    ]
    hostile = codec.shield({"<|im_end|>": ["</think>", 1, None]}, "\ue000")
    assert hostile == {"<\ue000|im_end|>": ["<\ue000/think>", 1, None]}
    ids = codec.encode("<\ue000/think>", cuts=(), mark="\ue000").ids
    assert codec.decode(ids) == "</think>" and codec.control["</think>"] not in ids


def test_every_added_token_keeps_its_number() -> None:
    """A copy of the tokenizer that merely dropped the control tokens would renumber the remaining
    added tokens."""
    tokenizer = chatml_tokenizer()
    codec = TextCodec(tokenizer, template="")
    for token in ("<tool_call>", "</think>"):
        assert codec.encode(f"a{token}b", cuts=()).ids == codec.one_go(f"a{token}b")


def test_a_cut_inside_a_control_token_and_a_slow_tokenizer_are_refused() -> None:
    codec = TextCodec(chatml_tokenizer(), template="")
    with pytest.raises(RenderError, match="inside the control token"):
        codec.encode("a<|im_end|>", cuts=[3])
    with pytest.raises(RenderError, match="not a fast tokenizer"):
        TextCodec(object(), template="")


def test_token_at_maps_characters_to_tokens_across_the_shield() -> None:
    codec = TextCodec(chatml_tokenizer(), template="")
    text = "ab<|im_end|>x<\ue000|im_end|>yé!"
    encoded = codec.encode(text, cuts=[1], mark="\ue000")
    decoded = codec.decode(encoded.ids)
    assert decoded == text.replace("\ue000", "")
    for char in range(len(text) + 1):
        before = codec.decode(encoded.ids[: codec.token_at(encoded, char, mark="\ue000")])
        assert len(before) >= len(text[:char].replace("\ue000", "")), char
    assert [codec.token_at(encoded, c) for c in (0, 1, 2, 12)] == [0, 1, 2, 3]
    assert codec.token_at(encoded, len(text)) == len(encoded.ids)


def test_a_text_with_every_private_character_is_refused() -> None:
    with pytest.raises(RenderError, match="every private character"):
        TextCodec(chatml_tokenizer(), template="").free_characters(
            ["".join(map(chr, range(0xE000, 0xF8FF)))], 1
        )


def test_memory_of_runs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    import composer_replication.tokens.hf as hf

    monkeypatch.setattr(hf, "_MEMO_CHARS", 50)
    codec = TextCodec(chatml_tokenizer(), template="")
    for number in range(20):
        text = f"run {number} of a long session"
        assert codec.encode(text, cuts=[4]).ids == codec.encode(text, cuts=[4]).ids
        assert codec._memo_chars <= 50


def test_a_tokenizer_that_reads_text_as_a_control_token_is_refused() -> None:
    """WordLevel has "<|im_end|>" as a word: its text can not be told apart from the token."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<|im_end|>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<|im_end|>"])
    codec = TextCodec(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>"), template=""
    )
    with pytest.raises(RenderError, match="reads plain text as a control token"):
        codec.encode("<\ue000|im_end|>", cuts=(), mark="\ue000")


def test_a_template_of_several_is_the_one_for_tools() -> None:
    import copy

    tokenizer = copy.copy(chatml_tokenizer())
    tokenizer.chat_template = {"default": "{{ 'x' }}", "tool_use": FAMILIES["qwen2.5"].template}
    render = Renderer.for_tokenizer(tokenizer)
    assert render.family is FAMILIES["qwen2.5"]
    assert render.render([Turn(role="user", author="human", blocks=(Text("hi"),))]).text.endswith(
        "<|im_start|>user\nhi<|im_end|>\n"
    )


def test_surrogates_join_where_they_pair_and_are_counted_where_they_do_not() -> None:
    notes: Counter[str] = Counter()
    pair = json.loads('"\\ud83d"') + json.loads('"\\udc4d"')
    assert replace_surrogates({"a": [pair, "x\ud83d"], 1: True}, notes) == {
        "a": ["👍", "x\ufffd"],
        "1": True,
    }
    assert notes["lone_surrogate"] == 2  # two strings were changed


@pytest.mark.parametrize(("family", "fixture"), CASES)
def test_every_familys_tiny_tokenizer_has_what_makes_real_ones_hard(
    family: str, fixture: str
) -> None:
    """Without these, no fast test sees a fault that a real tokenizer shows: all tests of renderer,
    dataset and hints run on them."""
    codec = renderer(family, fixture).codec
    # a run of line breaks is one token, as it is across the border of a header and a message
    assert [codec.count("\n" * n) for n in (1, 2, 3)] == [1, 1, 1]
    # a character lies in several tokens, none of which is text alone; digits stand alone
    split = codec.encode("👩", cuts=()).ids
    assert len(split) > 1 and codec.decode(split) == "👩" != codec.decode(split[:1])
    assert codec.count("12345") == 5
    # Gemma's writes another character for a space, which decoding undoes
    backend = codec.tokenizer.backend_tokenizer
    space = backend.normalizer.normalize_str(" ") if backend.normalizer is not None else " "
    assert space == ("▁" if family == "gemma" else " ") and codec.normalise(" a") == " a"
