"""Tiny models of several families and random rows that share prefixes, for the tree's tests."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from composer_replication.models.forward import final_hidden
from composer_replication.models.tree_attention import KeyValues, Mode
from composer_replication.models.tree_forward import tree_attention, tree_hidden
from composer_replication.tokens.tree import Forest

VOCAB = 40
Row = tuple[int, ...]
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 5}),  # every layer slides
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_MIXED, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5},
    ),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_MIXED, "query_pre_attn_scalar": 8}),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**_MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _EXPERTS),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**_EXPERTS, **_DELTA, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _DELTA),
}


def make(family: str, *, seed: int = 0, **options: Any) -> Any:
    """A tiny model of a family in evaluation mode, with weights large enough for attention to
    matter."""
    model_class, config_class, family_options = FAMILIES[family]
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)(
        getattr(transformers, config_class)(**{**_SHAPE, **family_options, **options})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            (
                parameter.mul_(4.0)
                if parameter.ndim > 1
                else parameter.add_(0.3 * torch.randn_like(parameter))
            )
    return model.eval()


def random_rows(seed: int, *, trunk: int = 18, branches: int = 6, low: int = 0) -> list[Row]:
    """A trunk, rows that leave it or one another somewhere, and a row that shares nothing."""
    rng = random.Random(seed)

    def draw(least: int, most: int) -> Row:
        return tuple(rng.randrange(low, VOCAB) for _ in range(rng.randint(least, most)))

    rows = [draw(trunk, trunk)]
    for _ in range(branches):
        parent = rng.choice(rows)
        rows.append(parent[: rng.randint(1, len(parent))] + draw(1, 8))
    return [*rows, draw(2, 9)]


def loss_weights(rows: list[Row], hidden_size: int, dtype: torch.dtype) -> list[Tensor]:
    """Fixed random weights: the loss is their product with every hidden state of every row."""
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(len(row), hidden_size, generator=generator, dtype=torch.float64).to(dtype)
        for row in rows
    ]


def by_rows(model: Any, rows: list[Row]) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states of every row by itself, and every parameter's gradient of the weighted sum."""
    model.zero_grad()
    states, device = [], next(model.parameters()).device
    for row in rows:
        own_TD = final_hidden(model, torch.tensor([row], device=device))[0]
        (
            own_TD * loss_weights(rows, own_TD.shape[1], own_TD.dtype)[len(states)].to(device)
        ).sum().backward()
        states.append(own_TD.detach())
    return states, take_gradients(model)


def by_tree(
    model: Any, rows: list[Row], *, mode: Mode | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """The same from one pass over their forest."""
    model.zero_grad()
    plan = Forest.grow(rows).over(range(len(rows)))
    with tree_attention(model):
        hidden_QD = tree_hidden(model, plan, mode=mode)
        states = [
            hidden_QD[plan.packed(number).to(hidden_QD.device)] for number in range(len(rows))
        ]
        weights = loss_weights(rows, hidden_QD.shape[1], hidden_QD.dtype)
        torch.stack(
            [(s * w.to(s.device)).sum() for s, w in zip(states, weights, strict=True)]
        ).sum().backward()
    return [s.detach() for s in states], take_gradients(model)


def on_cache(
    model: Any, rows: list[Row], first: list[int], *, mode: Mode | None = None
) -> list[Tensor]:
    """Hidden states of every row: those of `first` from a separate pass, the remainders of the
    others on its keys and values."""
    forest, remaining = Forest.grow(rows), [n for n in range(len(rows)) if n not in first]
    below = forest.over(first)
    above, cache = forest.over(remaining, cached=below), KeyValues()
    with torch.no_grad():
        lower_QD = tree_hidden(model, below, keep=cache, mode=mode)
        both_KD = (
            torch.cat([lower_QD, tree_hidden(model, above, cache=cache, mode=mode)])
            if above.size
            else lower_QD
        )
    return [
        (lower_QD if n in first else both_KD)[(below if n in first else above).packed(n)]
        for n in range(len(rows))
    ]


def take_gradients(model: nn.Module) -> list[Tensor]:
    """The gradient of every trainable parameter, zeros for those without one."""
    return [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in model.parameters()
        if p.requires_grad
    ]


def gap(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference relative to the largest entry, over all tensors."""
    scale = max(float(t.abs().max()) for t in theirs)
    return (
        max(float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True))
        / scale
    )
