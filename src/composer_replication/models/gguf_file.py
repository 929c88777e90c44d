"""A GGUF file as the student: its weights, de-quantised, and what it says without reading them.

    facts = read_gguf(Path("SmolLM2.Q4_1.gguf"))
    facts.quantisation          # "Q4_1, Q8_0, F32"
    model = load_gguf(Path("SmolLM2.Q4_1.gguf"), dtype=torch.float32)

Training needs plain numbers, so the blocks are unpacked into student.dtype: the student starts from
the rounded weights of the file, not from those that it was made from, and is saved as safetensors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ConfigError, first_line, need
from composer_replication.models.model_files import model_kind

_PLAIN = {0: "F32", 1: "F16", 30: "BF16"}
_LINEAR = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""Names of linear layers in llama.cpp (gguf-py/gguf/constants.py) and in transformers' models."""


_WIDTHS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}  # fmt: skip
"""Fields of a config.json, and the keys under which llama.cpp keeps them."""
_MODEL_TYPES = {"gemma3": "gemma3_text"}
"""Architectures that transformers names otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """The metadata of a GGUF file.

    `quantisation` lists the types of its tensors, the one that holds most of the weights first.
    `tokenizer` is the kind of tokenizer ("gpt2", "llama"), `pre` the name of its pre-tokenizer.
    `config` are its widths, named as in a config.json, `linear_shapes` the (out, in) of the linear
    layers, under their names in transformers.
    """

    architecture: str
    quantisation: str
    num_weights: int
    num_bytes: int
    context: int | None
    embedded_tokens: int | None
    tokenizer: str
    pre: str
    linear_shapes: dict[str, tuple[int, ...]]
    config: dict[str, Any]


def read_gguf(path: Path) -> GgufFacts:
    """The metadata of a GGUF file; raises ConfigError if it is none."""
    if not path.is_file():
        raise ConfigError("no such file", where=str(path), fix="give the path of a GGUF file")
    reader: Any = need("transformers.integrations.gguf.reader", extra="train")
    names: Any = need("transformers.integrations.gguf.dequant", extra="train").GGML_NAME
    try:
        metadata, _ = reader.read_gguf_metadata(str(path))
        header = reader.GgufHeader.from_file(str(path))
        tensors = header.tensors
        ends = [tensor.offset + tensor.nbytes for tensor in tensors]
        needed, present = header.data_start + max(ends, default=0), path.stat().st_size
        if present < needed:
            raise ValueError(f"it is cut off: {present} of {needed} bytes")
    except (OSError, ValueError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise ConfigError(
            f"no GGUF file that can be read: {first_line(error)}",
            where=str(path),
            fix="copy or download it again",
        ) from error
    weights: Counter[str] = Counter()
    for tensor in tensors:
        kind = tensor.ggml_type
        weights[_PLAIN.get(kind) or names.get(kind, f"type {kind}")] += prod(tensor.shape)
    architecture = str(metadata["general.architecture"])
    rows = [tensor.shape[0] for tensor in tensors if tensor.name == "token_embd.weight"]
    return GgufFacts(
        architecture=architecture,
        quantisation=", ".join(name for name, _ in weights.most_common()),
        num_weights=sum(weights.values()),
        num_bytes=path.stat().st_size,
        context=metadata.get(f"{architecture}.context_length"),
        embedded_tokens=rows[0] if rows else None,
        tokenizer=str(metadata.get("tokenizer.ggml.model", "")),
        pre=str(metadata.get("tokenizer.ggml.pre", "")),
        linear_shapes={
            name: tuple(tensor.shape)
            for tensor in tensors
            if (name := _name_in_transformers(tensor.name)) is not None
        },
        config=_config(
            metadata,
            vocab=rows[0] if rows else None,
            tied=all(tensor.name != "output.weight" for tensor in tensors),
        ),
    )


def _config(metadata: Mapping[str, Any], *, vocab: int | None, tied: bool) -> dict[str, Any]:
    """The fields of a config.json that say how wide a model is; a missing one is left out."""
    architecture = str(metadata["general.architecture"])
    found = {name: metadata.get(f"{architecture}.{key}") for name, key in _WIDTHS.items()}
    found |= {
        "model_type": _MODEL_TYPES.get(architecture, architecture),
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    return {name: value for name, value in found.items() if value is not None}


def _name_in_transformers(name: str) -> str | None:
    """E.g. "blk.0.attn_q.weight" -> "model.layers.0.self_attn.q_proj.weight"; None for others."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _LINEAR:
        return None
    return f"model.layers.{match[1]}.{_LINEAR[match[2]]}.weight"


def describe_gguf(name: str, *, dtype: str) -> str:
    """The origin of a GGUF file's weights, as a text; "" for another model.

    Example: "Q4_1, Q8_0, F32, de-quantised to float32"
    """
    if model_kind(name) != "gguf":
        return ""
    return f"{read_gguf(Path(name)).quantisation}, de-quantised to {dtype}"


def load_gguf(path: Path, *, dtype: Any) -> Any:
    """The model of a GGUF file with plain weights of type `dtype`, ready to train and to save.

    Raises MissingExtraError without the package gguf, ConfigError for a file that cannot be read.
    """
    need("gguf", extra="gguf")
    read_gguf(path)
    check_no_kernels(path)
    transformers = need("transformers", extra="train")
    transformers.utils.logging.disable_progress_bar()  # a library must not draw on the terminal
    with contextlib.redirect_stderr(io.StringIO()):  # its reader draws a progress bar of its own
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            dtype=dtype,
            quantization_config=transformers.GgufConfig(dequantize=True),
            trust_remote_code=False,
        )
    # the weights are plain by now, but transformers would refuse to save them
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.name_or_path = model.name_or_path = str(path)
    return model


def check_no_kernels(path: Path) -> None:
    """Raise ConfigError if transformers would fetch code for GGUF layers from the hub."""
    if importlib.util.find_spec("kernels") is not None:
        raise ConfigError(
            "with the package kernels installed, transformers fetches code for GGUF files from the"
            " hub and runs it",
            where=str(path),
            fix="uninstall kernels, or give the model as a folder",
        )
