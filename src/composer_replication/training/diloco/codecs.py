"""Codecs: a pseudo-gradient as bytes, each with the same error feedback.

    blob = encode_delta(delta, base, codec="int8")
    sent = decode_delta(blob, base)       # what every replica adds up; delta - sent is fed back

- none     float32
- bf16     half the bytes
- int8     blocks of 256 with a float32 scale: 3.9 x fewer
- int4     blocks of 64 with a bfloat16 scale: 7.5 x fewer
- topk     the 64 largest of each 4096, in bfloat16: 64 x fewer
- visible  float32 where the weight's bfloat16 value changes (Miahi and Belilovsky 2026, PULSELoCo,
           2602.03839): small steps leave most weights as they look; dense if that is smaller

A blob is a safetensors file. Integers are compressed by zstd where that saves 5 % or more.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import DataError, need
from composer_replication.training.diloco.flat_weights import raw_bytes

Tensors = dict[str, Tensor]

_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ZSTD = "|zstd"
_SAMPLE = 1 << 20
_WORTH = 0.95
_INT8_BLOCK, _INT4_BLOCK = 256, 64
_CHUNK, _KEPT = 4096, 64


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[Tensor, Tensor], Tensors]
    decode: Callable[[Tensors, int], Tensor]


def encode_delta(delta: Tensor, base: Tensor, *, codec: str) -> bytes:
    """A pseudo-gradient as a blob; `base` are the weights it was taken at.

    >>> delta = torch.tensor([1.0, -2.0])
    >>> decode_delta(encode_delta(delta, torch.zeros(2), codec="bf16"), torch.zeros(2)).tolist()
    [1.0, -2.0]
    """
    return pack(CODECS[codec].encode(delta, base), {"codec": codec})


def decode_delta(blob: bytes, base: Tensor) -> Tensor:
    """The pseudo-gradient of a blob, as float32; raises DataError for one that does not fit."""
    tensors, about = unpack(blob)
    codec = CODECS.get(str(about.get("codec")))
    if codec is None:
        raise DataError(f"a blob of an unknown codec: {about.get('codec')!r}")
    try:
        delta = codec.decode(tensors, base.numel())
    except (KeyError, RuntimeError, IndexError) as error:
        raise DataError(f"a blob whose tensors do not fit its codec: {error}") from error
    if delta.shape != base.shape:
        raise DataError(f"a blob of {delta.numel()} numbers, not {base.numel()}")
    return delta


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """Tensors as one safetensors file, integers compressed where it pays."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    parts: list[Any] = []
    start = 0
    for name, tensor in tensors.items():
        dtype, shape = _NAMES[tensor.dtype], list(tensor.shape)
        raw: Any = raw_bytes(tensor)
        squeezed = _squeeze(raw) if not tensor.is_floating_point() else None
        if squeezed is not None:
            header["__metadata__"][name + _ZSTD] = json.dumps([dtype, shape])
            raw, dtype, shape, name = squeezed, "U8", [len(squeezed)], name + _ZSTD
        end = start + len(raw)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        parts.append(raw)
        start = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([struct.pack("<Q", len(head)), head, *parts])


def unpack(blob: bytes) -> tuple[Tensors, dict[str, str]]:
    """The tensors and the metadata of `pack`; raises DataError for other bytes."""
    try:
        (size,) = struct.unpack_from("<Q", blob)
        header = json.loads(blob[8 : 8 + size])
        about = header.pop("__metadata__", {})
        data = memoryview(blob)[8 + size :]
        tensors: Tensors = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            dtype, shape, raw = entry["dtype"], entry["shape"], data[start:end]
            if name.endswith(_ZSTD):
                dtype, shape = json.loads(about[name])
                raw = _expand(raw, _DTYPES[dtype].itemsize * prod(shape))
            tensors[name.removesuffix(_ZSTD)] = _tensor(raw, dtype, shape)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"not a blob of weights: {error}") from error
    return tensors, about


def _tensor(raw: Any, dtype: str, shape: Sequence[int]) -> Tensor:
    """A tensor of these bytes, in memory of its own."""
    tensor = torch.empty(tuple(shape), dtype=_DTYPES[dtype])
    if tensor.numel():
        raw_bytes(tensor)[:] = raw
    return tensor


def _squeeze(raw: memoryview) -> bytes | None:
    """The bytes compressed; None if a sample says that it does not pay."""
    zstd = need("zstandard", extra="diloco").ZstdCompressor(level=3)
    if not len(raw) or len(zstd.compress(raw[:_SAMPLE])) > _WORTH * len(raw[:_SAMPLE]):
        return None
    return zstd.compress(raw)


def _expand(raw: memoryview, size: int) -> bytes:
    """The bytes before compression; raises ValueError for more or fewer than `size`."""
    zstandard = need("zstandard", extra="diloco")
    if zstandard.frame_content_size(bytes(raw[:32])) != size:
        raise ValueError("a compressed part of another size")
    try:
        return zstandard.ZstdDecompressor().decompress(raw, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _dense(delta: Tensor, base: Tensor) -> Tensors:
    return {"delta": delta}


def _dense_back(tensors: Tensors, size: int) -> Tensor:
    return tensors["delta"].float()


def _half(delta: Tensor, base: Tensor) -> Tensors:
    return {"delta": delta.bfloat16()}


def _blocks(delta: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(delta, (0, -delta.numel() % size)).view(-1, size)


def _int8(delta: Tensor, base: Tensor) -> Tensors:
    blocks = _blocks(delta, _INT8_BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).clamp_min_(1e-30)
    codes = (blocks / scale).round_().clamp_(-127, 127).to(torch.int8)
    return {"codes": codes.view(-1)[: delta.numel()], "scale": scale.view(-1)}


def _int8_back(tensors: Tensors, size: int) -> Tensor:
    blocks = _blocks(tensors["codes"].float(), _INT8_BLOCK) * tensors["scale"][:, None]
    return blocks.view(-1)[:size].contiguous()


def _int4(delta: Tensor, base: Tensor) -> Tensors:
    blocks = _blocks(delta, _INT4_BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 7).clamp_min_(1e-30).bfloat16()
    codes = (blocks / scale.float()).round_().clamp_(-7, 7).add_(8).to(torch.uint8).view(-1, 2)
    return {"codes": codes[:, 0] | codes[:, 1] << 4, "scale": scale.view(-1)}


def _int4_back(tensors: Tensors, size: int) -> Tensor:
    pairs = tensors["codes"]
    codes = torch.stack([pairs & 15, pairs >> 4], dim=1).float().sub_(8).view(-1, _INT4_BLOCK)
    return (codes * tensors["scale"].float()[:, None]).view(-1)[:size].contiguous()


def _topk(delta: Tensor, base: Tensor) -> Tensors:
    chunks = _blocks(delta, _CHUNK)
    places = chunks.abs().topk(_KEPT, dim=1).indices.sort(dim=1).values
    return {"places": places.to(torch.int16), "values": chunks.gather(1, places).bfloat16()}


def _topk_back(tensors: Tensors, size: int) -> Tensor:
    places, values = tensors["places"].long(), tensors["values"].float()
    chunks = torch.zeros(len(places), _CHUNK).scatter_(1, places, values)
    return chunks.view(-1)[:size].contiguous()


def _visible(delta: Tensor, base: Tensor) -> Tensors:
    """Gaps between the visible places, as two planes of bytes: the high one is mostly zeros."""
    seen = base.bfloat16() != (base - delta).bfloat16()
    places = seen.nonzero().view(-1)
    if places.numel() * 5 >= delta.numel() * 4:
        return {"delta": delta}
    gaps = torch.diff(places, prepend=places.new_zeros(1))
    far = gaps >= 1 << 16
    return {
        "low": (gaps & 255).to(torch.uint8),
        "high": ((gaps >> 8) & 255).to(torch.uint8),
        "far": far.nonzero().view(-1).to(torch.int32),
        "jumps": (gaps[far] >> 16).to(torch.int32),
        "values": delta[places],
    }


def _visible_back(tensors: Tensors, size: int) -> Tensor:
    if "delta" in tensors:
        return tensors["delta"]
    gaps = tensors["low"].long() | tensors["high"].long() << 8
    gaps[tensors["far"].long()] += tensors["jumps"].long() << 16
    return torch.zeros(size).scatter_(0, gaps.cumsum(0), tensors["values"])


CODECS: dict[str, _Codec] = {
    "none": _Codec(_dense, _dense_back),
    "bf16": _Codec(_half, _dense_back),
    "int8": _Codec(_int8, _int8_back),
    "int4": _Codec(_int4, _int4_back),
    "topk": _Codec(_topk, _topk_back),
    "visible": _Codec(_visible, _visible_back),
}
