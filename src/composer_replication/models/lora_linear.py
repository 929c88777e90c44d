"""peft's LoRA layers, without a float32 copy of their input for the backward.

    model = peft.get_peft_model(model, config)
    keep_inputs_once(model)          # the same values, gradients, names and files

peft's adapters are float32. Over a bfloat16 base each of them keeps the float32 copy of its input
that it multiplies: 19 KB for a token at a feed-forward of 4864. Here the input is kept as it came,
so that q, k and v, which read one tensor, keep it once; the backward casts it again, a few tokens
at a time. Dropout is drawn again from the state of the device's generator.

Shapes: N tokens, n tokens of a part, D inputs, E outputs, R the adapter's rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn

from composer_replication.models.activations import DrawnAgain, KeptInputs

_TOKENS = 2048  # at most, that are cast at a time


def keep_inputs_once(model: Any) -> int:
    """Let the LoRA layers of a peft model keep their inputs as they came; returns how many do.

    Layers of another kind (embeddings, convolutions) stay peft's own.
    """
    found = 0
    for module in model.modules():
        kind = _kind_of(type(module))
        if kind is not None:
            module.__class__ = kind
            found += 1
    return found


class _KeepsItsInput(nn.Module):
    """The forward of a layer with one plain adapter; any other is peft's."""

    rounds_the_update = False  # before it is added, as peft does over 4-bit weights

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        adapter = None if args or kwargs else _plain_adapter(self, x)
        if adapter is None:
            return super().forward(x, *args, **kwargs)
        weights = (self.lora_A[adapter].weight, self.lora_B[adapter].weight)
        dropout = self.lora_dropout[adapter]
        kept = KeptInputs.of(x, *weights)  # before the product: see KeptInputs
        options = {
            "scale": self.scaling[adapter],
            "dropout": getattr(dropout, "p", 0.0) if dropout.training else 0.0,
            "rounds": self.rounds_the_update,
        }
        return _WithUpdate.apply(options, kept, self.base_layer(x), x, *weights)


class LoraLinear(_KeepsItsInput, Linear):
    """peft's layer over weights that are a matrix."""


@cache
def _kind_of(kind: type) -> type | None:
    """The class that takes the place of a class of peft's; None if it stays."""
    if kind is Linear:
        return LoraLinear
    if kind.__module__ == "peft.tuners.lora.bnb" and kind.__name__ == "Linear4bit":
        fields = {
            "__doc__": "peft's layer over 4-bit weights.",
            "__module__": __name__,
            "rounds_the_update": True,
        }
        return type("LoraLinear4bit", (_KeepsItsInput, kind), fields)
    return None


def _plain_adapter(layer: Any, x: Tensor) -> str | None:
    """The name of the adapter, if it is the only one and nothing but s B A dropout(x)."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(names) != 1:
        return None
    (name,) = names
    is_plain = (
        name not in layer.lora_variant
        and not layer.lora_bias[name]
        and type(layer.lora_A[name]) is type(layer.lora_B[name]) is nn.Linear
        and isinstance(layer.lora_dropout[name], nn.Identity | nn.Dropout)
        and getattr(layer, "cast_input_dtype_enabled", True)
        and not torch.is_autocast_enabled(x.device.type)
    )
    return name if is_plain else None


class _WithUpdate(torch.autograd.Function):
    """result + s B A dropout(x), in the precision of `result`; computed in that of A."""

    @staticmethod
    def forward(
        ctx: Any,
        options: dict[str, Any],
        kept: Any,
        result: Tensor,
        x: Tensor,
        a_RD: Tensor,
        b_ER: Tensor,
    ) -> Tensor:
        ctx.options, ctx.kept = options, kept
        ctx.drawn = DrawnAgain.now(x) if options["dropout"] else None
        out = torch.empty_like(result, memory_format=torch.contiguous_format)
        for x_nD, _, result_nE, out_nE in _parts(x, a_RD, options, result, out):
            update_nE = F.linear(F.linear(x_nD, a_RD), b_ER) * options["scale"]
            if options["rounds"]:
                update_nE = update_nE.to(result.dtype)
            out_nE.copy_(result_nE + update_nE)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, a_RD, b_ER = ctx.kept.saved_tensors
        ctx.kept = None  # a trunk is walked back once
        of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        exact = torch.promote_types(a_RD.dtype, torch.float32)
        of_a_RD, of_b_ER = (torch.zeros_like(weight, dtype=exact) for weight in (a_RD, b_ER))

        def walk() -> None:
            for x_nD, mask_nD, grad_nE, of_x_nD in _parts(x, a_RD, ctx.options, *grads, of_x):
                grad_nE = grad_nE.to(a_RD.dtype) * ctx.options["scale"]
                grad_nR = grad_nE @ b_ER
                of_b_ER.add_(grad_nE.T @ F.linear(x_nD, a_RD))
                of_a_RD.add_(grad_nR.T @ x_nD)
                found_nD = grad_nR @ a_RD
                of_x_nD.copy_(found_nD if mask_nD is None else found_nD * mask_nD)

        if ctx.drawn is None:
            walk()
        else:
            with ctx.drawn.again():
                walk()
        return None, None, grads[0], of_x, of_a_RD.to(a_RD.dtype), of_b_ER.to(b_ER.dtype)


def _parts(
    x: Tensor, weight: Tensor, options: dict[str, Any], *others: Tensor
) -> Iterator[tuple[Tensor, Tensor | None, Tensor, Tensor]]:
    """The input in the precision of the adapter after its dropout, the mask of the dropout, and
    the other tensors, a part of the tokens at a time."""
    rows = (tensor.reshape(-1, tensor.shape[-1]).split(_TOKENS) for tensor in (x, *others))
    for x_nD, *other_n in zip(*rows, strict=True):
        x_nD, mask_nD = x_nD.to(weight.dtype), None
        if options["dropout"]:
            mask_nD = F.dropout(torch.ones_like(x_nD), options["dropout"])
            x_nD = x_nD * mask_nD
        yield x_nD, mask_nD, *other_n
