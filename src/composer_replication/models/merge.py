"""Merge LoRA adapters into the weights: W + s B A, computed in float64 and rounded once.

    merged = merge_adapters(student)
    merged.model, merged.num_merged     # a plain model
    merged.drift                        # the largest change of a log-prob on a few ids

The sum in the weights' own precision (peft's merge) rounds twice. In float32 the merged model gives
the adapter's logits up to rounding; in bfloat16 the rounding of W itself is larger than many
updates, so the drift is measured and recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError
from composer_replication.models.forward import scoring
from composer_replication.models.load_student import Student

MAX_DRIFT = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Largest change of a log-prob, in nats, that rounding explains; more means a failed merge."""
_PROBE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A model without adapters.

    `num_merged` counts the weights that absorbed an adapter; `drift` is the largest change of a
    log-prob, in nats.
    """

    model: Any
    num_merged: int
    drift: float


def merge_adapters(student: Student) -> Merged:
    """The student as a plain model with its adapters merged; consumes the student's own model.

    Raises ConfigError for adapters that are not W + s B A (DoRA, a bias, quantised weights), and if
    the merged model's log-probs differ by more than rounding explains.
    """
    model = student.model
    ids_BT = (torch.arange(_PROBE, device=next(model.parameters()).device) * 7 + 1)[
        None
    ] % model.config.get_text_config().vocab_size
    before = _logprobs(model, ids_BT)
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "base_layer")
    ]
    with torch.no_grad():
        for name, layer in layers:
            _merge(name, layer)
    plain = model.unload()
    drift = float((_logprobs(plain, ids_BT) - before).abs().max())
    if not drift <= MAX_DRIFT.get(plain.dtype, MAX_DRIFT[torch.float32]):
        raise ConfigError(
            f"the merged model's log-probs differ by up to {drift:.3g} nats",
            where=student.name,
            fix="export --adapter",
        )
    return Merged(model=plain, num_merged=len(layers), drift=drift)


def _merge(name: str, layer: Any) -> None:
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
            raise ConfigError(
                "an adapter that is not W + s B A", where=name, fix="export --adapter"
            )
        update = layer.lora_B[adapter].weight.double() @ layer.lora_A[adapter].weight.double()
        total += layer.scaling[adapter] * (
            update.T if getattr(layer, "fan_in_fan_out", False) else update
        )
    weight.copy_(total.to(weight.dtype))


def _logprobs(model: Any, ids_BT: Tensor) -> Tensor:
    with scoring(model):
        return model(input_ids=ids_BT, use_cache=False).logits[0].float().log_softmax(-1)
