"""A byte-level BPE tokenizer trained on the spot, with qwen3's special tokens and chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from composer_replication.core.errors import ConfigError, need
from composer_replication.tokens.template_families import FAMILIES

# Pre-tokenization of Qwen2, Qwen2.5 and Qwen3: contractions, words, single digits, punctuation with
# its newlines, blank lines.
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_PLAIN = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
MIN_VOCAB = 256 + len(CHATML_SPECIAL) + len(CHATML_PLAIN)


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    pattern: str = QWEN_PATTERN,
    special: tuple[str, ...],
    plain: tuple[str, ...] = (),
) -> Any:
    """A `tokenizers.Tokenizer` with at most `vocab_size` entries.

    `special` and `plain` tokens come at the end of the vocabulary. The same texts in the same order
    give the same tokenizer. Example: train_bpe(["a b"], vocab_size=300, special=("<|end|>",))
    """
    tk: Any = need("tokenizers", extra="train")
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.normalizer = tk.normalizers.NFC()
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence(
        [
            tk.pre_tokenizers.Split(tk.Regex(pattern), behavior="isolated"),
            tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=vocab_size - len(special) - len(plain),
        min_frequency=2,
        initial_alphabet=sorted(tk.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_special_tokens(
        [tk.AddedToken(token, normalized=False, special=True) for token in special]
    )
    tokenizer.add_tokens([tk.AddedToken(token, normalized=False, special=False) for token in plain])
    return tokenizer


def train_tiny_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 2048,
    pattern: str = QWEN_PATTERN,
    phrases: Sequence[str] = (),
    family: str = "qwen3",
) -> Any:
    """A PreTrainedTokenizerFast for the tiny student, with our chat template of a family.

    It has Qwen's special tokens, with pad distinct from eos. Any text can be encoded (the 256 bytes
    are always in the vocabulary), so `texts` only decides how compactly. Each of `phrases` is one
    token wherever it occurs; they count towards `vocab_size`. Training has no randomness: the same
    texts in the same order give the same tokenizer. Raises ConfigError if the vocabulary has no
    room for the bytes.
    """
    if vocab_size < MIN_VOCAB + len(phrases):
        raise ConfigError(
            f"a byte-level tokenizer needs at least {MIN_VOCAB + len(phrases)} entries, not"
            f" {vocab_size}"
        )
    transformers = need("transformers", extra="train")
    backend = train_bpe(
        texts,
        vocab_size=vocab_size,
        pattern=pattern,
        special=CHATML_SPECIAL,
        plain=(*CHATML_PLAIN, *phrases),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = FAMILIES[family].template
    return tokenizer
