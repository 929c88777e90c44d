"""One forward of a Hugging Face causal LM over a prefix tree of rows (train.layout = "tree").

Rows of a micro-batch that begin with the same ids share these tokens: each goes through the model
once. tokens/tree.py builds the tree and plans forwards over it (`Pass`); the training step runs
them in training/forwards/passes.py:

    require_tree(model)                  # raises ConfigError if the results would not be exact
    forest = Forest.grow([student_row, teacher_row])
    student = forest.over([0])
    hint = forest.over([1], cached=student)            # what the teacher's row has beyond it
    with tree_attention(model):          # around the backward too: checkpointed layers run again
        kept = KeyValues()
        hidden_QD = tree_hidden(model, student, keep=kept)     # keeps keys and values, detached
        with torch.no_grad():
            hint_QD = tree_hidden(model, hint, cache=kept)
        hidden_QD.backward(grad_QD)

Only the attention function is exchanged (models/tree_attention.py), by Transformers' attention
interface; position ids and visibility come from the plan.

Shapes: Q tokens of the forward, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError, first_line, need
from composer_replication.models.forward import decoder_of, final_hidden, scoring
from composer_replication.models.tree_attention import (
    NAME,
    KeyValues,
    Mode,
    TreeCall,
    tree_attention_forward,
)
from composer_replication.models.tree_plan import Chain, ForwardSpan, TreePlan

REMEDY = 'set train.layout = "rows"'
_EXACT_LAYERS = frozenset({"full_attention", "sliding_attention"})
# Parts of class names of layers with a recurrent state, which would run from branch to branch.
_STATEFUL = (
    "mamba",
    "rwkv",
    "recurrent",
    "gateddelta",
    "linearattention",
    "shortconv",
    "xlstm",
    "retention",
    "lightningattention",
)
# Settings of mixtures of experts that drop tokens beyond a capacity.
_DROPPING = ("expert_capacity", "capacity_factor", "moe_capacity", "drop_tokens")
# Types of rotary embedding whose frequencies depend on the longest row of a forward.
_PER_CALL_ROPE = frozenset({"dynamic", "longrope"})


@contextmanager
def tree_attention(model: Any) -> Iterator[None]:
    """A block in which the model attends by tree; forwards over a plan, and their backwards, belong
    inside."""
    need("transformers", extra="train").AttentionInterface.register(NAME, tree_attention_forward)
    decoder: Any = decoder_of(model)
    config = decoder.config
    previous = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = previous


def tree_hidden(
    model: Any,
    plan: TreePlan,
    *,
    keep: KeyValues | None = None,
    cache: KeyValues | None = None,
    mode: Mode | None = None,
) -> Tensor:
    """Final hidden states (Q, D) of a plan's tokens, differentiable unless under `no_grad`.

    `keep` receives the keys and values of every layer, detached. `cache` holds those of the forward
    that the plan continues (`plan.cached`). `mode` None is "flex" on CUDA, else "chains"; "dense",
    with a mask of (Q, K), is the slow one that tests compare both with. Raises ConfigError if a
    plan comes without the cache that it needs, or with one that it does not.
    """
    if (plan.cached is None) != (cache is None):
        raise ConfigError(
            "a pass that uses a cache needs one, and any other pass must not get one",
            fix="give cache= with plan.cached",
        )
    decoder: Any = decoder_of(model)
    device = decoder.get_input_embeddings().weight.device
    call = TreeCall(
        plan=plan,
        mode=mode or ("flex" if device.type == "cuda" else "chains"),
        keep=keep,
        cache=cache,
    )
    # Tree attention does not read the mask. An empty one makes any other attention function fail,
    # instead of silently treating the packed tokens as one row.
    no_mask = torch.empty(1, 1, 0, 0, dtype=torch.bool, device=device)
    inputs = {
        "input_ids": plan.ids_Q[None].to(device),
        "position_ids": plan.position_Q[None].to(device),
    }
    with tree_attention(model):
        out = decoder(**inputs, attention_mask=no_mask, use_cache=False, tree_call=call)
    call.keep = None  # a checkpointed layer runs again in the backward, and must not add to it
    return out.last_hidden_state[0]


def dropout_active(model: Any) -> bool:
    """Whether two forwards of the model in its current mode may differ (dropout, router jitter).

    The student's keys and values then cannot serve a teacher with the same weights, which must be
    scored without dropout.
    """
    if not model.training:
        return False
    markers = ("dropout", "pdrop", "jitter")
    decoder: Any = decoder_of(model)
    settings = decoder.config.to_dict()
    in_config = any(
        isinstance(value, float) and value > 0
        for key, value in settings.items()
        if any(marker in key for marker in markers)
    )
    return in_config or any(
        module.p > 0
        for module in model.modules()
        if isinstance(module, nn.modules.dropout._DropoutNd)
    )


def why_not_tree(model: Any) -> str:
    """Why this model's values over a tree would differ from those of plain rows; "" if they do not.

    Checks the configuration and the layers, then runs a small tree and its rows through the model.

    Example: why_not_tree(qwen3_next) -> "qwen3_next has linear_attention layers: their state runs
    through every token before, ..."
    """
    decoder: Any = decoder_of(model)
    config = decoder.config.get_text_config()
    name = config.model_type
    if reason := _inexact_reason(decoder, config):
        return f"{name} {reason}"
    try:
        gap = _relative_gap(model)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        return f"{name} cannot run over a tree: {first_line(error)}"
    return (
        f"{name} computes other values for a tree than for its rows (they differ by {gap:.1e})"
        if gap > _tolerance(model)
        else ""
    )


def require_tree(model: Any) -> None:
    """Raise ConfigError if this model's values over a tree would differ from those of its rows."""
    if reason := why_not_tree(model):
        raise ConfigError(f"no tree layout: {reason}", where="train.layout", fix=REMEDY)


def _inexact_reason(decoder: nn.Module, config: Any) -> str:
    """What in the architecture would mix branches, to follow the model's name; "" if nothing is
    known to."""
    runs_across = "their state runs through every token before, across branches"
    types = {
        *(getattr(config, "layer_types", None) or ()),
        *(getattr(config, "layers_block_type", None) or ()),
    } - {"attention"}
    if inexact := sorted(types - _EXACT_LAYERS):
        return f"has {', '.join(inexact)} layers: {runs_across}"
    classes = sorted(
        {
            type(m).__name__
            for m in decoder.modules()
            if any(marker in type(m).__name__.lower() for marker in _STATEFUL)
        }
    )
    if classes or any(isinstance(m, nn.Conv1d) for m in decoder.modules()):
        return f"has {', '.join(classes) or 'convolution'} layers: {runs_across}"
    if dropping := [key for key in _DROPPING if getattr(config, key, None)]:
        return (
            f"is a mixture of experts that drops tokens beyond a capacity ({dropping[0]}): the"
            " values of a branch depend on the others"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {r.get("rope_type") for r in (rope, *(v for v in rope.values() if isinstance(v, dict)))}
    if kinds & _PER_CALL_ROPE:
        return "has rotary frequencies that depend on the longest row of a forward"
    if (
        getattr(config, "use_bidirectional_attention", None)
        or getattr(config, "is_causal", True) is False
    ):
        return "is not causal: a token sees the tokens behind it"
    if not getattr(decoder, "_supports_attention_backend", False):
        return "has its own attention, which Transformers cannot exchange"
    return ""


def _tolerance(model: Any) -> float:
    """The largest relative gap that is only rounding, by the model's precision."""
    return 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05


@dataclass(frozen=True, slots=True)
class _ProbePlan:
    """A `TreePlan` written by hand, as models may not import tokens/tree.py: a row of seven tokens,
    two rows that branch off behind its third and fourth token, and a separate row."""

    vocab: int
    chains: tuple[Chain, ...] = (
        Chain(ForwardSpan(0, 7, 0), ()),
        Chain(ForwardSpan(7, 9, 3), (ForwardSpan(0, 3, 0),)),
        Chain(ForwardSpan(9, 11, 4), (ForwardSpan(0, 4, 0),)),
        Chain(ForwardSpan(11, 13, 0), ()),
    )
    rows: tuple[tuple[int, ...], ...] = (
        (0, 1, 2, 3, 4, 5, 6),
        (0, 1, 2, 7, 8),
        (0, 1, 2, 3, 9, 10),
        (11, 12),
    )
    size: int = 13
    offset: int = 0
    cached: None = None

    @property
    def ids_Q(self) -> Tensor:
        return torch.arange(3, 16) % self.vocab

    @property
    def position_Q(self) -> Tensor:
        return torch.tensor([0, 1, 2, 3, 4, 5, 6, 3, 4, 4, 5, 0, 1])

    @property
    def interval_Q2(self) -> Tensor:
        return torch.tensor(
            [(0, 5)] * 3 + [(1, 4)] + [(2, 3)] * 3 + [(4, 5)] * 2 + [(3, 4)] * 2 + [(5, 6)] * 2
        )

    @property
    def seen(self) -> tuple[Tensor, Tensor]:
        return self.position_Q, self.interval_Q2


def _relative_gap(model: Any) -> float:
    """The largest difference between the final hidden states of a small tree and those of its rows,
    over the largest hidden state."""
    decoder: Any = decoder_of(model)
    probe = _ProbePlan(decoder.config.get_text_config().vocab_size)
    device = decoder.get_input_embeddings().weight.device
    largest_gap = scale = 0.0
    with scoring(model):
        hidden_QD = tree_hidden(model, probe)
        for row in probe.rows:
            row_TD = final_hidden(model, probe.ids_Q[list(row)][None].to(device))[0].float()
            largest_gap = max(
                largest_gap, float((hidden_QD[list(row)].float() - row_TD).abs().max())
            )
            scale = max(scale, float(row_TD.abs().max()))
    return largest_gap / max(scale, 1e-30)
