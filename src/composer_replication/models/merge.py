"""Merge LoRA adapters into the weights: W + s B A, computed in float64 and rounded once.

    merged = merge_adapters(student, texts=[[5, 9, 2, ...], ...])
    merged.model, merged.num_merged         # a plain model
    merged.mean_kl, merged.rounding_kl      # KL of a token on the texts, and what rounding explains

The sum in the weights' own precision (peft's merge) rounds twice. In float32 the merged model gives
the adapter's logits up to rounding; in bfloat16 the rounding of W itself is larger than many
updates, and no fixed bound fits all models. So what rounding explains is measured: in a twelfth of
the merged weights the last bit is turned, which moves them by as much as rounding does (the error
of a rounding is uniform over one unit of the last place: its variance is a twelfth), and the KL to
that model is the scale that the KL to the unmerged one is compared with. On SmolLM2 the two differ
by less than a fifth, in bfloat16 as in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError
from composer_replication.models.forward import final_hidden, project, scoring
from composer_replication.models.load_student import Student
from composer_replication.models.quantised_base import dequantise, is_quantised

MAX_ROUNDINGS = 3.0
"""The largest mean KL of a merge, in multiples of what rounding explains; more means a failed
merge."""
NO_DIFFERENCE = 1e-9
"""A mean KL in nats that is the arithmetic of float32 itself, whatever the last bits explain: small
models differ by 1e-15, and processors in how they add."""
_TEXTS, _TEXT_TOKENS, _POSITIONS = 4, 512, 256  # at most; positions of all texts together
_ROWS = 32  # whose log-probs are compared at once, in float64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A model without adapters.

    `num_merged` counts the weights that absorbed an adapter. The KLs are those of the unmerged
    student to another model at `num_tokens` tokens of text, in nats per token: to the merged one
    (`mean_kl`, `max_kl`), to itself without its adapters (`adapter_kl`: what was learnt).
    `rounding_kl` is the mean that rounding explains. `dequantised`: the base was stored in 4 bits.
    """

    model: Any
    num_merged: int
    num_tokens: int
    mean_kl: float
    max_kl: float
    rounding_kl: float
    adapter_kl: float
    dequantised: bool = False


def merge_adapters(
    student: Student, *, texts: Sequence[Sequence[int]], otherwise: str = "export --adapter"
) -> Merged:
    """The student as a plain model with its adapters merged; consumes the student's own model.

    `texts` are ids of text that the student is meant for. A base in 4 bits is de-quantised first.
    Raises ConfigError for adapters that are not W + s B A (DoRA, a bias), and if the merged model
    differs on the texts by more than rounding explains; `otherwise` is what the error advises.
    """
    model = student.model
    before_NV = _sampled_logits(model, texts)
    adapter_N = _kl(before_NV, _sampled_logits(model, texts, adapters=False))
    if was_quantised := is_quantised(model):
        dequantise(model)
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "base_layer")
    ]
    weights = [layer.base_layer.weight for _, layer in layers]
    with torch.no_grad():
        for name, layer in layers:
            _merge(name, layer, otherwise=otherwise)
    plain = model.unload()
    merged_NV = _sampled_logits(plain, texts)
    merge_N = _kl(before_NV, merged_NV)
    with _last_bits_turned(weights):
        rounding_N = _kl(merged_NV, _sampled_logits(plain, texts))
    mean, rounding = float(merge_N.mean()), float(rounding_N.mean())
    if not mean <= max(MAX_ROUNDINGS * rounding, NO_DIFFERENCE):
        raise ConfigError(
            f"the merged model differs from the student by {mean:.3g} nats per token on"
            f" {len(merge_N)} tokens of text, where rounding explains {rounding:.3g}",
            where=student.name,
            fix=otherwise,
        )
    return Merged(
        model=plain,
        num_merged=len(layers),
        num_tokens=len(merge_N),
        mean_kl=mean,
        max_kl=float(merge_N.max()),
        rounding_kl=rounding,
        adapter_kl=float(adapter_N.mean()),
        dequantised=was_quantised,
    )


def _merge(name: str, layer: Any, *, otherwise: str) -> None:
    """Add every active adapter of one layer to its weight."""
    weight = layer.base_layer.weight
    total = weight.double()
    for adapter in layer.active_adapters:
        if adapter not in layer.lora_A:
            continue
        is_plain = (
            isinstance(layer.lora_A[adapter], nn.Linear)
            and weight.is_floating_point()
            and not layer.merged
        )
        if (
            not is_plain
            or getattr(layer, "use_dora", {}).get(adapter)
            or layer.lora_bias.get(adapter)
        ):
            raise ConfigError("an adapter that is not W + s B A", where=name, fix=otherwise)
        update = layer.lora_B[adapter].weight.double() @ layer.lora_A[adapter].weight.double()
        total += layer.scaling[adapter] * (
            update.T if getattr(layer, "fan_in_fan_out", False) else update
        )
    weight.copy_(total.to(weight.dtype))


def _sampled_logits(model: Any, texts: Sequence[Sequence[int]], *, adapters: bool = True) -> Tensor:
    """The float32 logits (N, V) at a few positions, evenly spread over the opening of each text."""
    device, parts = next(model.parameters()).device, list[Tensor]()
    texts = [text[:_TEXT_TOKENS] for text in texts[:_TEXTS]]
    step = -(-sum(map(len, texts)) // _POSITIONS)
    with scoring(model, adapters=adapters):
        for text in texts:
            hidden_TD = final_hidden(model, torch.tensor([list(text)], device=device))[0]
            parts.append(project(model, hidden_TD[::step]))
    return torch.cat(parts)


def _kl(of_NV: Tensor, to_NV: Tensor) -> Tensor:
    """KL(of || to) of each row of logits, in nats; float64, as a rounding of float32 would show."""

    def rows(of_RV: Tensor, to_RV: Tensor) -> Tensor:
        of_RV, to_RV = (z_RV.double().log_softmax(-1) for z_RV in (of_RV, to_RV))
        return (of_RV.exp() * (of_RV - to_RV)).sum(-1)

    return torch.cat(list(map(rows, of_NV.split(_ROWS), to_NV.split(_ROWS))))


@contextmanager
def _last_bits_turned(weights: Sequence[Tensor]) -> Iterator[None]:
    """Turn the last bit of a twelfth of the numbers, and turn it back afterwards."""

    def turn() -> None:
        generator = torch.Generator().manual_seed(0)
        for weight in weights:
            bits = weight.detach().view(_BITS[weight.element_size()])
            chosen = torch.rand(bits.shape, generator=generator) < 1 / 12
            bits.bitwise_xor_(chosen.to(device=bits.device, dtype=bits.dtype))

    turn()
    try:
        yield
    finally:
        turn()
