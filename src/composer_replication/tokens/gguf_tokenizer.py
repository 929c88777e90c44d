"""The tokenizer of a GGUF file, cut into words as llama.cpp cuts text for it.

A GGUF file names its pre-tokenizer (tokenizer.ggml.pre). transformers knows some of these names and
reads every other byte-level vocabulary as GPT-2's, without a word: SmolLM2's then joins digits that
it was trained to read one by one. Names known here are mended, all others are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.errors import ConfigError, need
from composer_replication.models.gguf_file import read_gguf

DIGITS = frozenset(
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
)
"""Pre-tokenizers that make every digit a word of its own, and cut the rest as GPT-2 does."""
GPT2 = frozenset(
    ("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "mpt", "olmo", "jais", "trillion")
)
"""Pre-tokenizers that cut as GPT-2 does, which is what transformers falls back to."""


def gguf_tokenizer(path: Path) -> Any:
    """The tokenizer of a GGUF file; raises ConfigError if its pre-tokenizer is unknown."""
    need("gguf", extra="gguf")
    facts = read_gguf(path)
    check_pre_tokenizer(facts.tokenizer, facts.pre, path=path)
    transformers: Any = need("transformers", extra="train")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        str(path.parent), gguf_file=path.name, trust_remote_code=False
    )
    if facts.tokenizer == "gpt2" and facts.pre in DIGITS:
        pre: Any = need("tokenizers", extra="train").pre_tokenizers
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre.Sequence(
            [pre.Digits(individual_digits=True), backend.pre_tokenizer]
        )
    tokenizer.name_or_path = str(path)
    return tokenizer


def check_pre_tokenizer(kind: str, pre: str, *, path: Path) -> None:
    """Raise ConfigError if a byte-level tokenizer names a pre-tokenizer that nobody here knows.

    A tokenizer of another kind (SentencePiece) has none.
    """
    splits: Any = need(
        "transformers.integrations.gguf.gguf_tokenizer_mapping", extra="train"
    ).GGUF_PRE_TOKENIZER_SPLITS
    if kind == "gpt2" and pre not in DIGITS | GPT2 and pre not in splits:
        raise ConfigError(
            f"its pre-tokenizer {pre!r} is unknown: text would be cut into other tokens than the"
            " model was trained on",
            where=str(path),
            fix="give the model's own folder, with tokenizer.json, in student.model",
        )
