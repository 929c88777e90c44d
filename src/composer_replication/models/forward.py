"""From ids to final hidden states, and from hidden states to float32 logits.

Works for any causal language model of Transformers. Logits are computed only where a loss needs
them. Shapes: B rows, T length, D hidden size, N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError


def final_hidden(model: Any, ids_BT: Tensor) -> Tensor:
    """The hidden states (B, T, D) that the output head reads; rows are padded on the right.

    No attention mask is passed: in a causal model padding on the right reaches no token, so a mask
    would change no bit that is read and would double the time of attention. Works through wrappers
    such as peft's, with adapters in effect.
    """
    return decoder_of(model)(input_ids=ids_BT, use_cache=False).last_hidden_state


def predictors(states_BTD: Tensor, row_N: Tensor, position_N: Tensor) -> Tensor:
    """The states (N, D) that predict the tokens at (row, position): those one position before.

    Nothing else in the package takes this step back. `states_BTD` may as well be the places (B, T)
    at which the states of rows are found.
    """
    return states_BTD[row_N, position_N - 1]


def sliced_predictors(
    model: Any,
    ids_BT: Tensor,
    lengths_B: Tensor,
    *,
    row_N: Tensor,
    position_N: Tensor,
    max_tokens: int,
) -> Tensor:
    """The hidden states (N, D) that predict the tokens at (row, position), for scoring many rows.

    At most `max_tokens` padded tokens (and at least one row) go through one forward; `row_N` must
    not decrease.
    """
    hidden_parts, start, lengths = [], 0, lengths_B.tolist()
    while start < len(lengths):
        end, longest = start + 1, lengths[start]
        while end < len(lengths) and max(longest, lengths[end]) * (end + 1 - start) <= max_tokens:
            longest, end = max(longest, lengths[end]), end + 1
        hidden_BTD = final_hidden(model, ids_BT[start:end, :longest])
        chosen_N = (row_N >= start) & (row_N < end)
        hidden_parts.append(predictors(hidden_BTD, row_N[chosen_N] - start, position_N[chosen_N]))
        start = end
    return torch.cat(hidden_parts)


def decoder_of(model: Any) -> nn.Module:
    """The part of a causal language model below its head; ConfigError if the model names none."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if decoder is None or decoder is model:
        decoder = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if not isinstance(decoder, nn.Module) or model.get_output_embeddings() is None:
        raise ConfigError(
            f"{type(model).__name__} names no decoder and output head",
            fix="use a causal language model of transformers",
        )
    return decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """An output head: logits = cap(scale * (h W^T + b)), cap(z) = softcap * tanh(z / softcap).

    Example: Head(weight_VD=model.lm_head.weight, softcap=30.0). The tensors are the model's own if
    possible, so a loss on the logits reaches its parameters. losses/fused.py reads these four names
    from any object (`HeadLike`), because it must not import models.
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def raised(self) -> Head:
        """The same head in float32 (float64 stays): for many products in a row, as each product
        with a head of lower precision copies it."""
        dtype = torch.promote_types(self.weight_VD.dtype, torch.float32)
        bias_V = None if self.bias_V is None else self.bias_V.to(dtype)
        return replace(self, weight_VD=self.weight_VD.to(dtype), bias_V=bias_V)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits (N, V) in float32 (float64 stays), whatever the precision of weights and states.

        The products of two bfloat16 numbers are exact in float32, so these are the logits that the
        losses compute from the same states, up to the order of the sum; autocast does not lower
        the precision.
        """
        weight_VD, bias_V = self.weight_VD, self.bias_V
        dtype = torch.promote_types(
            torch.promote_types(hidden_ND.dtype, weight_VD.dtype), torch.float32
        )
        with torch.autocast(hidden_ND.device.type, enabled=False):
            logits_NV = F.linear(
                hidden_ND.to(dtype),
                weight_VD.to(dtype),
                None if bias_V is None else bias_V.to(dtype),
            )
            if self.scale != 1.0:
                logits_NV = logits_NV * self.scale
            return (
                torch.tanh(logits_NV / self.softcap) * self.softcap if self.softcap else logits_NV
            )


def head_of(model: Any) -> Head:
    """The output head of a causal language model as one matrix, differentiable.

    LoRA on the head gives its effective weight W + sum s B A. A weight that is sharded over ranks
    (FSDP2) is gathered; its gradient returns to the shards as the mean over the ranks, as FSDP2
    does for every other parameter. All ranks must call this.

    Raises ConfigError for a head that is not one linear map: DoRA, dropout between the adapter and
    the hidden state, quantised weights.
    """
    weight_VD, bias_V = _linear(model.get_output_embeddings())
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
        getattr(config, "logits_scaling", None) or 1.0
    )
    return Head(
        weight_VD=weight_VD,
        bias_V=bias_V,
        scale=scale,
        softcap=getattr(config, "final_logit_softcapping", None) or None,
    )


def project(model: Any, hidden_ND: Tensor) -> Tensor:
    """Logits (N, V) in float32 (float64 stays), whatever the weights' precision.

    bfloat16 logits would drown small divergences. Includes what some families do behind the head:
    Gemma's soft cap, Granite's and Cohere's scale.
    """
    return head_of(model).logits(hidden_ND)


def _linear(module: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a head, through peft's wrappers."""
    # peft's modules_to_save: it trains a copy of the whole head
    if hasattr(module, "modules_to_save") and hasattr(module, "active_adapters"):
        active = [name for name in module.active_adapters if name in module.modules_to_save]
        module = (
            module.modules_to_save[active[0]]
            if active and not module.disable_adapters
            else module.original_module
        )
    if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
        return _with_adapters(module)
    if (
        not isinstance(module, nn.Linear)
        or type(module).forward is not nn.Linear.forward
        or not module.weight.is_floating_point()
    ):
        raise ConfigError(
            f"the output head is a {type(module).__name__}, not a plain linear layer",
            fix="leave the head out of quantisation and adapters",
        )
    return _gathered(module.weight), None if module.bias is None else _gathered(module.bias)


def _with_adapters(module: Any) -> tuple[Tensor, Tensor | None]:
    """The effective weight of a head under LoRA; a merged adapter is already in the base weight."""
    weight_VD, bias_V = _linear(module.base_layer)
    if module.merged or module.disable_adapters:
        return weight_VD, bias_V
    for name in module.active_adapters:
        if name not in module.lora_A:
            continue
        dropout = module.lora_dropout[name]
        if (
            (module.training and getattr(dropout, "p", 0.0) > 0)
            or getattr(module, "use_dora", {}).get(name)
            or module.lora_bias.get(name)
        ):
            raise ConfigError(
                f"the adapter {name!r} of the output head is not W + s B A",
                fix="use LoRA on the head without dropout, DoRA and bias",
            )
        up_VR, down_RD = (
            _gathered(module.lora_B[name].weight),
            _gathered(module.lora_A[name].weight),
        )
        dtype = torch.promote_types(
            torch.promote_types(weight_VD.dtype, up_VR.dtype), torch.float32
        )
        with torch.autocast(weight_VD.device.type, enabled=False):
            weight_VD = torch.addmm(
                weight_VD.to(dtype),
                up_VR.to(dtype),
                down_RD.to(dtype),
                alpha=float(module.scaling[name]),
            )
    return weight_VD, bias_V


def _gathered(parameter: Tensor) -> Tensor:
    """A parameter as a plain tensor: a sharded one is gathered, its gradient averaged back."""
    if not hasattr(parameter, "full_tensor"):
        return parameter
    from torch.distributed.tensor import DTensor, Partial

    if not isinstance(parameter, DTensor):
        return parameter
    mesh = parameter.device_mesh
    # Each rank's gradient is one term of a sum. Without `Partial` each shard would keep only the
    # gradient of its own rank.
    gathered = parameter.full_tensor(grad_placements=[Partial()] * mesh.ndim)
    if gathered.requires_grad:
        gathered.register_hook(lambda grad: grad / mesh.size())
    return gathered


def check_projection(model: Any) -> None:
    """Compare `project(final_hidden(...))` with the model's own logits on a few ids.

    Raises ConfigError if they differ.
    """
    device = next(model.parameters()).device
    ids_BT = torch.arange(1, 7, device=device)[None] % model.config.get_text_config().vocab_size
    with scoring(model):
        projected_NV = project(model, final_hidden(model, ids_BT)[0])
        logits_NV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.05
    if projected_NV.shape != logits_NV.shape or not torch.allclose(
        projected_NV, logits_NV, rtol=tolerance, atol=tolerance * float(logits_NV.abs().max())
    ):
        raise ConfigError(
            f"{type(model).__name__} applies something between its head and its logits that is not"
            " known here",
            fix="use another student, or open an issue with the model's name",
        )


@contextmanager
def scoring(model: Any, *, adapters: bool = True) -> Iterator[None]:
    """Score without gradient and without dropout; `adapters=False` switches LoRA off.

    Without adapters the model has the weights that LoRA started from. Afterwards every module is
    back in its own mode: a dropout that its owner keeps in eval stays in eval.
    """
    was_training, modes = model.training, [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), nullcontext() if adapters else model.disable_adapter():
            yield
    finally:
        model.train(was_training)
        for module, mode in modes:
            module.training = mode
