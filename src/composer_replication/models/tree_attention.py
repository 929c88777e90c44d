"""Attention over several branches at once (models/tree_plan.py), without a T x T matrix.

Exact for full and sliding layers, soft caps and sinks. Three modes give the same values:

    chains   chain by chain: a chain's queries over [the keys above it + its own], causal, aligned
             to the lower right (any device)
    dense    one masked call; the mask comes from the intervals of the nodes, not from the chains,
             so it checks both other modes
    flex     FlexAttention with the intervals as its mask (CUDA)

A chain's keys are at consecutive positions, so a chunk of its queries needs a mask of at most chunk
x keys, and in a window layer only the keys within the window. Shapes: H query heads, G key heads, E
head size, Q queries, K keys, n queries of a chunk, k keys that they see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from composer_replication.models.tree_blocks import BLOCK, visible_blocks
from composer_replication.models.tree_plan import ForwardSpan, TreePlan, dense_mask

NAME = "token_tree"
Mode = Literal["chains", "dense", "flex"]

_MASK_ENTRIES = 1 << 22  # entries of a chunk's mask
_WINDOW_CHUNK = 1024  # queries of a window layer that share their keys, at most
# Keys that chains may copy per layer and keep for the backward; with more, the backward gathers
# them again.
_COPIED_KEYS = 1 << 16


@dataclass(slots=True)
class KeyValues:
    """Keys and values of every layer of one pass, without gradient: (1, G, Q, E) each.

    `place_K` are the places of the tokens that are kept, as a copy; None = all, without a copy.
    With `on_host` they wait in host memory, and a layer's are on the device while it reads them.
    """

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    place_K: Tensor | None = None
    on_host: bool = False

    def add(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keep what a layer computed, detached by the caller."""
        if self.place_K is not None:
            key, value = (t.index_select(2, self.place_K.to(t.device)) for t in (key, value))
        if self.on_host:
            key, value = _moved(key, "cpu"), _moved(value, "cpu")
        self.layers[layer] = (key, value)

    def of(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Those of a layer, on the device that reads them."""
        key, value = self.layers[layer]
        return _moved(key, device), _moved(value, device)


def _moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    return tensor.to(device)


@dataclass(slots=True, kw_only=True)
class TreeCall:
    """The arguments of each layer's attention; masks are built once for all layers."""

    plan: TreePlan
    mode: Mode
    keep: KeyValues | None = None
    cache: KeyValues | None = None
    masks: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """The settings by which one layer turns scores into weights."""

    scale: float | None
    dropout: float
    softcap: float | None
    sinks_H: Tensor | None

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks_H is None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """(1, H, n, E) from queries (1, H, n, E) and keys (1, G, k, E).

        `mask` is (n, k); None = causal, with the first query at the first key.
        """
        if self.plain:
            options = {
                "dropout_p": self.dropout,
                "scale": self.scale,
                "enable_gqa": query.shape[1] != key.shape[1],
            }
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, **options
            )
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = (
            query
            @ key.transpose(2, 3)
            * (self.scale if self.scale is not None else query.shape[-1] ** -0.5)
        )
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if mask is None:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        if self.sinks_H is not None:  # one more column, which takes weight and contributes nothing
            column = self.sinks_H.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
            query.dtype
        )
        return F.dropout(weights[..., : key.shape[2]], p=self.dropout) @ value


def tree_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    tree_call: TreeCall | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that Transformers calls, for `NAME`; returns (1, Q, H, E).

    The parameters are those of Transformers' attention interface. Raises ValueError outside a
    forward over a pass.
    """
    if tree_call is None or query.shape[:3:2] != (1, tree_call.plan.size):
        raise ValueError(f"attention {NAME!r} needs a pass of a forest: call tree_hidden")
    if tree_call.keep is not None:
        tree_call.keep.add(module.layer_idx, key.detach(), value.detach())
    cache = tree_call.cache
    below = None if cache is None else cache.of(module.layer_idx, query.device)
    kernel = _Kernel(scale=scaling, dropout=dropout, softcap=softcap, sinks_H=s_aux)
    window = sliding_window if sliding_window is not None else _window_by_type(module)
    attend = {"chains": _chains, "dense": _dense, "flex": _flex}[tree_call.mode]
    out = attend(tree_call, kernel, window=window, query=query, key=key, value=value, below=below)
    return out.transpose(1, 2).contiguous(), None


def _window_by_type(module: Any) -> int | None:
    """The window of a layer whose type is sliding but which passes no window to its attention."""
    types = getattr(module.config, "layer_types", None)
    return (
        module.config.sliding_window
        if types and types[module.layer_idx] == "sliding_attention"
        else None
    )


Below = tuple[Tensor, Tensor] | None


def _chains(
    call: TreeCall,
    kernel: _Kernel,
    *,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    below: Below,
) -> Tensor:
    num_copied_keys = sum(chain.span.depth for chain in call.plan.chains if chain.above)
    checkpointed = torch.is_grad_enabled() and (num_copied_keys > _COPIED_KEYS or not kernel.plain)
    outputs = []
    for chain in call.plan.chains:
        span = chain.span
        for start, end in _chunks(span, window, unmasked=kernel.plain and not chain.above):
            # positions of the queries
            first, last = span.depth + start - span.start, span.depth + end - span.start
            low = 0 if window is None else max(0, first - window + 1)
            parts = [
                part for s in (*chain.above, span) if (part := _clip(s, low, last)) is not None
            ]
            mask = _mask(call, low=low, first=first, last=last, window=window, device=query.device)
            attend = _gather(kernel, parts, mask)
            inputs = (query[:, :, start:end], key, value, *(below or ()))
            outputs.append(
                checkpoint(attend, *inputs, use_reentrant=False)
                if checkpointed
                else attend(*inputs)
            )
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]


def _gather(
    kernel: _Kernel, parts: list[ForwardSpan], mask: Tensor | None
) -> Callable[..., Tensor]:
    """The attention of one chunk over these parts of the keys, as a function of tensors alone.

    Checkpointing may run it twice.
    """

    def run(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        below_key: Tensor | None = None,
        below_value: Tensor | None = None,
    ) -> Tensor:
        def seen(fresh: Tensor, cached: Tensor | None) -> Tensor:
            pieces = [
                (cached if part.cached and cached is not None else fresh)[
                    :, :, part.start : part.end
                ]
                for part in parts
            ]
            return torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]

        return kernel(query, seen(key, below_key), seen(value, below_value), mask)

    return run


def _chunks(span: ForwardSpan, window: int | None, *, unmasked: bool) -> Iterator[tuple[int, int]]:
    """Parts of a chain's queries whose mask is small.

    `unmasked` = without a window no mask is needed, so one part is enough.
    """
    length, start = span.end - span.start, span.start
    if unmasked and (window is None or window >= span.depth + length):
        yield span.start, span.end
        return
    while start < span.end:
        keys = (
            span.depth + start - span.start
            if window is None
            else min(window, span.depth + start - span.start)
        )
        size = max(16, _MASK_ENTRIES // (keys + _WINDOW_CHUNK))
        size = min(size, _WINDOW_CHUNK)
        yield start, min(start + size, span.end)
        start += size


def _clip(span: ForwardSpan, low: int, high: int) -> ForwardSpan | None:
    """The part of a span at positions [low, high); None if there is none."""
    start = span.start + max(0, low - span.depth)
    end = min(span.end, span.start + high - span.depth)
    return (
        ForwardSpan(start, end, span.depth + start - span.start, span.cached)
        if start < end
        else None
    )


def _mask(
    call: TreeCall, *, low: int, first: int, last: int, window: int | None, device: torch.device
) -> Tensor | None:
    """Queries at positions [first, last) over keys at [low, last).

    None if plain causal attention gives the same.
    """
    if low == first and (window is None or window >= last - first):
        return None
    mask_key = (low, first, last, window)
    if mask_key not in call.masks:
        distance = torch.arange(first, last, device=device)[:, None] - torch.arange(
            low, last, device=device
        )
        call.masks[mask_key] = (
            distance >= 0 if window is None else (distance >= 0) & (distance < window)
        )
    return call.masks[mask_key]


def _dense(
    call: TreeCall,
    kernel: _Kernel,
    *,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    below: Below,
) -> Tensor:
    if window not in call.masks:
        call.masks[window] = dense_mask(call.plan, window=window).to(query.device)
    key, value = _joined(key, value, below)
    return kernel(query, key, value, call.masks[window])


def _joined(key: Tensor, value: Tensor, below: Below) -> tuple[Tensor, Tensor]:
    return (
        (key, value)
        if below is None
        else (torch.cat([below[0], key], dim=2), torch.cat([below[1], value], dim=2))
    )


def mask_mod(
    plan: TreePlan, *, window: int | None, device: torch.device | str
) -> Callable[..., Tensor]:
    """The mask of a pass in FlexAttention's form: a function of (batch, head, query, key).

    A query sees a key if the key's interval contains the query's node, the key's position is not
    behind the query's, and it lies in the window.
    """
    position_K, interval_K2 = (tensor.to(device) for tensor in plan.seen)
    enter_K, exit_K = interval_K2[:, 0].contiguous(), interval_K2[:, 1].contiguous()
    enter_Q, position_Q = plan.interval_Q2[:, 0].contiguous().to(device), plan.position_Q.to(device)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        visible = (
            (enter_K[k] <= enter_Q[q]) & (enter_Q[q] < exit_K[k]) & (position_K[k] <= position_Q[q])
        )
        return visible if window is None else visible & (position_Q[q] - position_K[k] < window)

    return sees


def block_mask(plan: TreePlan, *, window: int | None, device: torch.device | str) -> Any:
    """FlexAttention's BlockMask of a pass: `mask_mod`, and the blocks in which it has to be asked.

    That of torch's create_block_mask, but no (Q, K) mask is computed for it (models/tree_blocks.py)
    """
    from torch.nn.attention.flex_attention import BlockMask

    some_RC, every_RC = visible_blocks(plan, window=window)
    lists: list[Tensor] = []
    for blocks_RC in (some_RC & ~every_RC, every_RC):  # those to be masked, then those in full
        chosen_RC = blocks_RC.to(torch.int32)
        order_RC = chosen_RC.argsort(dim=-1, descending=True, stable=True)
        lists += [chosen_RC.sum(dim=-1), order_RC]
    return BlockMask.from_kv_blocks(
        *[numbers[None, None].to(device, torch.int32) for numbers in lists],
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod(plan, window=window, device=device),
        seq_lengths=(len(plan.position_Q), len(plan.seen[0])),
    )


_COMPILED: list[Callable[..., Any]] = []


def _flex(
    call: TreeCall,
    kernel: _Kernel,
    *,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    below: Below,
) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    if kernel.dropout:
        raise ValueError(
            "FlexAttention has no dropout: set the model's attention_dropout to 0, or use layout"
            " rows"
        )
    key, value = _joined(key, value, below)
    if window not in call.masks:
        call.masks[window] = block_mask(call.plan, window=window, device=query.device)
    if not _COMPILED:
        _COMPILED.append(torch.compile(flex_attention, dynamic=True))
    cap = kernel.softcap or 1.0

    def capped(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / cap) * cap

    options = {
        "score_mod": None if kernel.softcap is None else capped,
        "block_mask": call.masks[window],
        "scale": kernel.scale,
        "enable_gqa": True,
    }
    out, lse_HQ = _COMPILED[0](query, key, value, return_lse=True, **options)
    if kernel.sinks_H is None:
        return out
    return out * torch.sigmoid(lse_HQ - kernel.sinks_H.view(1, -1, 1)).unsqueeze(-1).to(out.dtype)
