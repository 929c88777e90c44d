"""A small GGUF file by the format's description (ggml/docs/gguf.md): metadata, a table of tensors,
zeros."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

STRING, UINT32 = 8, 4
Q8_0 = 8
"""Blocks of 32 weights: a float16 scale and 32 bytes."""


def write_gguf(
    path: Path, *, metadata: Mapping[str, str | int], tensors: Mapping[str, tuple[int, ...]]
) -> Path:
    """A file whose tensors, given by their shapes as PyTorch has them, are zeros in Q8_0."""
    head, table, size = bytearray(b"GGUF"), bytearray(), 0
    head += struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind = STRING if isinstance(value, str) else UINT32
        head += _text(key) + struct.pack("<I", kind)
        head += _text(value) if isinstance(value, str) else struct.pack("<I", value)
    for name, shape in tensors.items():
        table += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        table += struct.pack("<IQ", Q8_0, size)
        size += prod(shape) // 32 * 34
        size += -size % 32
    head += table
    path.write_bytes(bytes(head) + bytes(-len(head) % 32 + size))
    return path


def qwen3_gguf(path: Path) -> Path:
    """A Qwen3 of two layers, 64 wide."""
    sizes = {
        "context_length": 8192,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
    }
    metadata = {f"qwen3.{name}": value for name, value in sizes.items()}
    layer = {
        "attn_q": (128, 64), "attn_k": (64, 64), "attn_v": (64, 64), "attn_output": (64, 128),
        "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128),
        "attn_norm": (64,), "ffn_norm": (64,), "attn_q_norm": (32,), "attn_k_norm": (32,),
    }  # fmt: skip
    tensors = {f"blk.{i}.{name}.weight": shape for i in (0, 1) for name, shape in layer.items()}
    tensors |= {"token_embd.weight": (512, 64), "output_norm.weight": (64,)}
    return write_gguf(path, metadata={"general.architecture": "qwen3", **metadata}, tensors=tensors)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
