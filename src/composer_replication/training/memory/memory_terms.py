"""Bytes that one decoder layer takes for a token: what autograd keeps of it, and the most that
exists beside that while the layer is walked back.

What is kept is counted: every saved tensor of the layer has a summand here, and
tests/training/test_memory_model.py counts them again on a tiny model of each family. What exists
beside it is measured: `python benchmarks/memory_model.py --widths` takes the peak of PyTorch's
allocator of one forward and backward at two lengths, and its slope over each width; the numbers of
`_BESIDE` are those slopes.

Widths of a token: D hidden, I inner states of the feed-forward, q all its queries, k all its keys.
b is the bytes of a hidden state (4 or 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.losses.chunk_size import AUTOGRAD_BLOCKS, BLOCKS
from composer_replication.models.model_shape import ModelShape

FLOAT32 = 4
Moment = Literal["feed-forward", "norms", "attention"]


class Widths(NamedTuple):
    """Bytes per number of each width. Example: Widths(8, 8, 0, 0).bytes(shape)"""

    hidden: float
    inner: float
    query: float
    key: float

    def bytes(self, shape: ModelShape) -> float:
        """The sum for a token of a model of this shape."""
        return (
            self.hidden * shape.hidden
            + self.inner * shape.intermediate
            + self.query * shape.query
            + self.key * shape.key
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What a layer keeps for a token: norms and attention with the inputs of all linear maps, and
    the inner states of the feed-forward."""

    attention: int
    feed_forward: int

    @property
    def total(self) -> int:
        """Both parts."""
        return self.attention + self.feed_forward


def layer_bytes(
    shape: ModelShape, *, state: int, all_weights: bool, tiled: bool = False
) -> LayerBytes:
    """What autograd keeps of a layer for a token, with all weights trained or adapters alone.

    Counted from the graph of transformers 5: a norm keeps its input in float32 and the root of
    its mean square, and what its weight multiplies if that is trained (Gemma: in float32); a
    linear map its input, of which q, k and v share one and gate and up another, with LoRA too
    (models/lora_linear.py); attention its rotated q and k, v, the output, which the last
    projection shares, and a logarithm per head; the feed-forward gate, up, the activation and
    their product. In tiles a feed-forward and a norm keep their inputs alone. Example: of a token
    of Qwen3-4B in bfloat16 under LoRA layer_bytes(...).total == 149_800.
    """

    def norm(width: int, roots: int = 1) -> int:
        if tiled:
            return state * width
        product = FLOAT32 if shape.family == "gemma3_text" else state
        return (FLOAT32 + product * all_weights) * width + FLOAT32 * roots

    attention = shape.norms * norm(shape.hidden)
    if shape.normed_heads:
        attention += norm(shape.query, shape.heads) + norm(shape.key, shape.kv_heads)
    attention += 2 * state * (shape.query + shape.key) + FLOAT32 * shape.heads
    attention += 2 * state * shape.hidden
    if tiled and shape.family == "gemma3_text":  # its heads lie one after another: the output is
        attention += state * shape.query  # copied for the last projection
    feed_forward = 0 if tiled else 4 * state * shape.intermediate
    return LayerBytes(attention=attention, feed_forward=feed_forward)


_START: Mapping[tuple[int, bool], float] = {
    (4, True): 28,
    (4, False): 24,
    (2, True): 26,
    (2, False): 22,
}
"""By the bytes of a hidden state and whether all weights are trained: bytes over D when the
backward starts, at the final norm, beside what the layers keep."""

_BESIDE: Mapping[tuple[int, bool], Mapping[Moment, Widths]] = {
    (4, True): {
        "feed-forward": Widths(8, 8, 0, 0),
        "norms": Widths(12, 4, 0, 0),
        "attention": Widths(-8, 0, 8, 8),
    },
    (4, False): {
        "feed-forward": Widths(8, 8, 0, 0),
        "norms": Widths(16, 8, 0, 0),
        "attention": Widths(-4, 0, 8, 8),
    },
    (2, True): {
        "feed-forward": Widths(4, 4, 0, 0),
        "norms": Widths(20, 0, 0, 0),
        "attention": Widths(-2, 0, 13.75, -10.125),
    },
    (2, False): {
        "feed-forward": Widths(-6, 4, 0, 0),
        "norms": Widths(22, 0, 0, 0),
        "attention": Widths(0, 0, 15.75, -8.125),
    },
}
"""What exists for a token at three moments of a layer's backward, beside what the layer keeps; at
the latter two the feed-forward's inner states are gone."""

_BESIDE_TILED: Mapping[tuple[int, bool], Mapping[Moment, Widths]] = {
    (4, True): {
        "feed-forward": Widths(8, 0, 0, 0),
        "attention": Widths(-4, 0, 8, 8),
    },
    (4, False): {
        "feed-forward": Widths(8, 0, 0, 0),
        "attention": Widths(-4, 0, 8, 8),
    },
    (2, True): {
        "feed-forward": Widths(4, 0, 0, 0),
        "attention": Widths(-2, 0, 4, 4),
    },
    (2, False): {
        "feed-forward": Widths(4, 0, 0, 0),
        "attention": Widths(-2, 0, 4, 4),
    },
}
"""The same with train.tile: norms and feed-forwards have no moment of their own but their edges."""

PART = 2048
"""Tokens that an adapter casts to float32 at a time (models/lora_linear.py)."""
_OF_A_PART = Widths(16, 8, 0, 0)
"""What exists for a token of such a part, beside `_BESIDE`, where the states are not float32."""


def at_the_start(shape: ModelShape, *, state: int, all_weights: bool) -> float:
    """Bytes for a token at the start of the backward: the final norm and its gradients."""
    return _START[state, all_weights] * shape.hidden


def in_a_layer(
    shape: ModelShape, *, state: int, all_weights: bool, tiled: bool
) -> dict[Moment, float]:
    """Bytes for a token at each moment of one layer's backward, all that it keeps included.

    Example: with tiles the feed-forward's inner states are in no moment: they exist for one tile
    (`tile_bytes`).
    """
    kept = layer_bytes(shape, state=state, all_weights=all_weights, tiled=tiled)
    beside = (_BESIDE_TILED if tiled else _BESIDE)[state, all_weights]
    return {
        moment: widths.bytes(shape) + (kept.total if moment == "feed-forward" else kept.attention)
        for moment, widths in beside.items()
    }


def part_bytes(shape: ModelShape, *, state: int, all_weights: bool) -> float:
    """Bytes for a token of the part whose adapters are computed in float32; 0 without a cast."""
    return 0.0 if all_weights or state == FLOAT32 else _OF_A_PART.bytes(shape)


def tile_bytes(shape: ModelShape, *, state: int, all_weights: bool, tokens: int) -> float:
    """Bytes of a tile of so many tokens while it is walked back: its inner states, and with all
    weights the sums of their gradients in float32 beside those of the tile."""
    inner = (4 * state + _BESIDE[state, all_weights]["feed-forward"].inner) * shape.intermediate
    inner += part_bytes(shape, state=state, all_weights=all_weights)
    matrices = 3 * shape.hidden * shape.intermediate * (FLOAT32 + state)
    return tokens * inner + matrices * all_weights


_SCORING: Mapping[int, tuple[Widths, ...]] = {
    4: (Widths(16, 12, 0, 0), Widths(12, 0, 16, 8), Widths(12, 0, 12, 16)),
    2: (Widths(8, 6, 0, 0), Widths(14, 0, 0, 0), Widths(6, 0, 10.25, 0), Widths(6, 0, 6.5, 7.5)),
}
"""What exists for a token of a forward without a gradient, at its widest moments."""


_SCORING_TILED: Mapping[int, tuple[Widths, ...]] = {
    4: (Widths(20, 0, 0, 0), Widths(12, 0, 16, 8), Widths(12, 0, 12, 16)),
    2: (Widths(10, 0, 0, 0), Widths(6, 0, 10.25, 0), Widths(6, 0, 6.5, 7.5)),
}
"""The same with train.tile, beside the inner states of one tile."""


def scoring_bytes(shape: ModelShape, *, state: int, tokens: int, tile: int = 0) -> float:
    """Bytes of a forward of so many tokens without a gradient, at the widest moment of a layer."""
    if not 0 < tile < tokens:
        return tokens * max(widths.bytes(shape) for widths in _SCORING[state])
    feed_forward, *attention = _SCORING_TILED[state]
    inner = _SCORING[state][0].inner * shape.intermediate * tile
    moments = [tokens * widths.bytes(shape) for widths in attention]
    return max(tokens * feed_forward.bytes(shape) + inner, *moments)


# ---- the hint's loss ----

_FUSED: Mapping[str, float] = {"jsd": 3.2}
_ROW_BY_ROW: Mapping[str, float] = {"jsd": 12.1, "taid": 5.3, "eopd": 11.3, "soft_gate": 10.3}
_KL, _KL_ROW_BY_ROW = 5.4, 10.3
_TOP_K, _ENTRY_CLIP, _SAMPLED = 6.2, 14.1, 6.1


def hint_block(hint: HintSettings) -> tuple[Mapping[str, int], float]:
    """Numbers of a block of logits that the hint's loss takes at once, by device, and how many
    matrices of that size it makes beside the logits: measured with PyTorch's allocator, which
    tests/training/test_memory_losses.py repeats.

    Example: hint_block(HintSettings())[1] == 3.2, the scratch of the fused JSD.
    """
    mixed = hint.contrast or hint.teacher == "trust_region"
    if hint.estimator == "sampled_token" and hint.divergence != "eopd":
        return (AUTOGRAD_BLOCKS, _SAMPLED) if mixed else (BLOCKS, 0.0)
    plain = not mixed and not hint.entry_clip and hint.estimator == "full"
    if plain and hint.divergence not in ("taid", "eopd", "soft_gate"):
        return BLOCKS, _FUSED.get(hint.divergence, _KL)
    matrices = _ROW_BY_ROW.get(hint.divergence, _KL_ROW_BY_ROW)
    if hint.estimator == "top_k":
        matrices = _TOP_K
    elif hint.entry_clip:
        matrices = _ENTRY_CLIP
    return AUTOGRAD_BLOCKS, matrices + mixed
