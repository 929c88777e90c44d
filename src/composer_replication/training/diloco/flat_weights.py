"""A model's trainable weights as one flat float32 vector, in the order of `named_parameters`.

    flat = FlatWeights.of(model)
    theta = flat.read()             # float32 masters, whatever the model's dtype
    flat.write(theta)               # back into the model, rounded to each weight's dtype

Frozen weights are no part of it: a LoRA run ships its adapter and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from composer_replication.core.errors import DataError


@dataclass(frozen=True, slots=True)
class FlatWeights:
    """The trainable weights of a model by name, e.g. FlatWeights.of(model).num_weights."""

    named: tuple[tuple[str, Tensor], ...]

    @classmethod
    def of(cls, model: Any) -> Self:
        """Those of a model's weights that have a gradient; raises DataError if it has none."""
        named = tuple((name, p) for name, p in model.named_parameters() if p.requires_grad)
        if not named:
            raise DataError("no weight of the model is trained", fix="train an adapter, or all")
        return cls(named)

    @property
    def num_weights(self) -> int:
        """How many numbers there are."""
        return sum(p.numel() for _, p in self.named)

    def schema(self) -> list[tuple[str, list[int], str]]:
        """Name, shape and dtype of each weight: replicas that share a store must agree on it."""
        named = ((name, p, str(p.dtype)) for name, p in self.named)
        return [(name, list(p.shape), dtype.removeprefix("torch.")) for name, p, dtype in named]

    def read(self) -> Tensor:
        """The weights now, as float32 on the CPU."""
        return torch.cat([p.detach().to("cpu", torch.float32).reshape(-1) for _, p in self.named])

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Put weights into the model, each rounded to its own dtype."""
        for (_, p), part in zip(self.named, self._parts(theta), strict=True):
            p.copy_(part.view(p.shape))

    def rounded(self, theta: Tensor) -> Tensor:
        """What `read` returns after `write(theta)`: a model in bfloat16 keeps less than theta, one
        in float32 theta itself."""
        if all(p.dtype == torch.float32 for _, p in self.named):
            return theta
        parts = zip(self.named, self._parts(theta), strict=True)
        return torch.cat([part.to(p.dtype).float() for (_, p), part in parts])

    def _parts(self, theta: Tensor) -> Sequence[Tensor]:
        return theta.split([p.numel() for _, p in self.named])


def schema_sha256(schema: Sequence[Sequence[Any]]) -> str:
    """The hash of a schema.

    >>> schema_sha256([("w", [2, 3], "float32")])[:8]
    'ff5f9038'
    """
    return hashlib.sha256(json.dumps(schema).encode()).hexdigest()


def vector_sha256(theta: Tensor) -> str:
    """The hash of a flat vector's bytes; equal on two replicas if every bit is."""
    return hashlib.sha256(raw_bytes(theta)).hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; its own memory if it is contiguous."""
    array: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
