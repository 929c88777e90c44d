"""From ids to final hidden states, and from hidden states to float32 logits, for any causal language model.

Logits are made only where a loss needs them. Shapes: B rows, T length, D hidden size, N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError


def final_hidden(model: Any, ids_BT: Tensor) -> Tensor:
    """The hidden states (B, T, D) that the output head reads; rows are padded on the right.

    A causal model never looks to the right, so padding there reaches no token, and no mask is given: a mask would change no bit of
    what is read, and would cost twice the time in attention. Works through wrappers such as peft's: adapters stay in effect.
    """
    return decoder_of(model)(input_ids=ids_BT, use_cache=False).last_hidden_state


def predictors(model: Any, ids_BT: Tensor, lengths_B: Tensor, *, row_N: Tensor, position_N: Tensor, max_tokens: int) -> Tensor:
    """Hidden states (N, D) that predict the tokens at (row, position), i.e. those one position before; for scoring many rows.

    At most `max_tokens` padded tokens (and at least one row) go through one forward; `row_N` must not decrease.
    """
    parts, start, lengths = [], 0, lengths_B.tolist()
    while start < len(lengths):
        end, longest = start + 1, lengths[start]
        while end < len(lengths) and max(longest, lengths[end]) * (end + 1 - start) <= max_tokens:
            longest, end = max(longest, lengths[end]), end + 1
        hidden_BTD = final_hidden(model, ids_BT[start:end, :longest])
        chosen_N = (row_N >= start) & (row_N < end)
        parts.append(hidden_BTD[row_N[chosen_N] - start, position_N[chosen_N] - 1])
        start = end
    return torch.cat(parts)


def decoder_of(model: Any) -> nn.Module:
    """The part of a causal language model below its head; raises ConfigError for a model that does not name it."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if decoder is None or decoder is model:
        decoder = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if not isinstance(decoder, nn.Module) or model.get_output_embeddings() is None:
        raise ConfigError(f"{type(model).__name__} names no decoder and output head", fix="use a causal language model of transformers")
    return decoder


def project(model: Any, hidden_ND: Tensor) -> Tensor:
    """Logits (N, V) in float32, whatever the precision of the weights: bfloat16 logits would drown small divergences.

    Includes what some families do behind the head: Gemma's soft cap, Granite's and Cohere's scale.
    """
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        bias = head.bias.float() if head.bias is not None else None
        logits_NV = F.linear(hidden_ND.float(), head.weight.float(), bias)
    else:
        logits_NV = head(hidden_ND).float()
    config = model.config.get_text_config()
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits_NV = logits_NV * config.logit_scale
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(logits_NV / cap) * cap if cap else logits_NV


def check_projection(model: Any) -> None:
    """Compare `project(final_hidden(...))` with the model's own logits on a few ids; raises ConfigError where they differ."""
    device = next(model.parameters()).device
    ids_BT = torch.arange(1, 7, device=device)[None] % model.config.get_text_config().vocab_size
    with scoring(model):
        ours_NV = project(model, final_hidden(model, ids_BT)[0])
        own_NV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.05
    if ours_NV.shape != own_NV.shape or not torch.allclose(ours_NV, own_NV, rtol=tolerance, atol=tolerance * float(own_NV.abs().max())):
        raise ConfigError(
            f"{type(model).__name__} does something between its head and its logits that is not known here",
            fix="use another student, or open an issue with the model's name",
        )


@contextmanager
def scoring(model: Any, *, adapters: bool = True) -> Iterator[None]:
    """Score without gradient and without dropout; `adapters=False` switches LoRA off, which gives the weights it started from."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), nullcontext() if adapters else model.disable_adapter():
            yield
    finally:
        model.train(was_training)
