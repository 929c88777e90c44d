"""A key-value cache for conversations of different lengths, fed in lock-step over many turns.

    cache = RaggedCache(model, num_rows=3)
    logits_BV = cache.feed([[5, 6, 7], [8], [9]])     # at each row's last token
    logits_BV = cache.feed([[2], [9], []])            # an empty row waits
    cache.cut(0, 2)                                   # the first row begins anew behind two tokens
    cache.keep([0, 2])                                # the second row is finished: drop its cache

Each feed is aligned on the right, so a shorter row gets a gap on the left. Gaps are masked out and
do not count as positions: every row is scored as if it were alone. They are squeezed out once they
make up a fifth of the cache. In the first feed a beginning that rows share (the samples of one task
or site, the tools of all tasks, the sites of one session) goes through the model once. Shapes: B
rows, N columns of one feed, L columns of the cache, V vocabulary.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import need
from composer_replication.models.forward import decoder_of, head_of
from composer_replication.rollouts.key_value_buffer import KeyValueBuffer
from composer_replication.tokens.layout import shared_prefix_length

_SLACK = 1.25  # columns of the cache per token of its longest row, at most
_SLACK_COLUMNS = 32
_FORWARD_TOKENS = {"cpu": 32}
"""The fixed cost of a forward, in tokens; measured on a CPU."""
_FORWARD_TOKENS_GPU = 1024  # an estimate; not measured


_WINDOWED = ("gemma3_text", "mistral", "qwen2", "qwen3")
"""Families with sliding windows whose masks are given here, by positions; tested for each."""


def holds_ragged_rows(model: Any) -> bool:
    """Whether rows of different lengths can share one cache of this model.

    Every layer must attend to everything, at given positions, or to a sliding window for which a
    mask can be given. Recurrent layers and other windows count columns, gaps included, so such a
    model is sampled one row at a time.
    """
    cache_utils = need("transformers.cache_utils", extra="train")
    parameters = inspect.signature(decoder_of(model).forward).parameters
    types = {type(layer) for layer in cache_utils.DynamicCache(config=model.config).layers}
    return {"position_ids", "attention_mask"} <= set(parameters) and (
        types == {cache_utils.DynamicLayer}
        or (
            types <= {cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer}
            and model.config.get_text_config().model_type in _WINDOWED
            and _takes_masks(model)
        )
    )


class RaggedCache:
    """The cache of one batch; use it under `models.forward.scoring`.

    `lengths` are the numbers of tokens that each row holds. The head is raised to float32 once:
    like the keys and values, it is that of the weights when the cache was made. `num_fed` counts
    the tokens that went through the model.
    """

    def __init__(self, model: Any, *, num_rows: int) -> None:
        self.model = model
        self.decoder = decoder_of(model)
        self.head = head_of(model).raised()
        self.device = next(model.parameters()).device
        self._ragged = ragged = holds_ragged_rows(model)
        self.cache = self._empty()
        self.mask_BL = torch.zeros(num_rows, 0, dtype=torch.bool, device=self.device)
        self.lengths = [0] * num_rows
        self.gaps = False
        self.num_fed = 0
        self._takes_positions = "position_ids" in inspect.signature(self.decoder.forward).parameters
        config = model.config.get_text_config()
        self._takes_masks = ragged and _takes_masks(model)
        self._masks_single_tokens = self._takes_masks and _shares_keys(config)
        self._window = _window(config) if ragged else None
        self._mask_per_type = getattr(config, "layer_types", None) is not None

    def _empty(self) -> Any:
        cache_utils = need("transformers.cache_utils", extra="train")
        cache: Any = cache_utils.DynamicCache(config=self.model.config)
        if self._ragged:
            cache_utils.CacheLayerMixin.register(KeyValueBuffer)
            cache.layers = [KeyValueBuffer() for _ in cache.layers]
        return cache

    def feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Add ids to each row; returns the float32 logits (B, V) behind its last token.

        The logits of an empty row mean nothing.
        """
        if any(self.lengths):
            return self._feed(rows)
        distinct = list(dict.fromkeys(map(tuple, rows)))
        logits_BV = self._prefill(distinct)
        if len(distinct) < len(rows):
            places = {row: place for place, row in enumerate(distinct)}
            copies = [places[tuple(row)] for row in rows]
            self._select(copies)
            logits_BV = logits_BV[copies]
        return logits_BV

    def _prefill(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """The first feed, of different rows, in the way that is computed to take the least time.

        Together: what all rows begin with, once, then the rest of each, padded to the longest. One
        by one: without padding, and each row from where it leaves the row before it; the rows are
        sorted by their ids, so that none of those before begins like it for longer.
        """
        self._begin(1)
        if len(rows) == 1:
            return self._feed(rows)
        ordered = sorted(rows)
        # each row keeps a token, whose logits are wanted
        trunk = min(shared_prefix_length(ordered[0], ordered[-1]), max(0, min(map(len, rows)) - 1))
        per_forward = _FORWARD_TOKENS.get(self.device.type, _FORWARD_TOKENS_GPU)
        if (len(rows) - 1) * trunk <= per_forward:
            trunk = 0
        width = max(map(len, rows))
        together = trunk + len(rows) * (width - trunk) + (2 if trunk else 1) * per_forward
        num_shared = [0] + [shared_prefix_length(a, b) for a, b in itertools.pairwise(ordered)]
        one_by_one = sum(map(len, rows)) - sum(num_shared) + len(rows) * per_forward
        if one_by_one < together and all(rows):
            return self._feed_one_by_one(rows, ordered=ordered, num_shared=num_shared)
        if not trunk:
            self._begin(len(rows))
            return self._feed(rows)
        self._feed([rows[0][:trunk]])
        self._select([0] * len(rows))
        return self._feed([row[trunk:] for row in rows])

    def _feed_one_by_one(
        self,
        rows: Sequence[tuple[int, ...]],
        *,
        ordered: Sequence[tuple[int, ...]],
        num_shared: Sequence[int],
    ) -> Tensor:
        """Feed rows through a cache of one row, which is cut back to what the next one shares."""
        width, layers = max(map(len, rows)), self.cache.layers
        places = {row: place for place, row in enumerate(rows)}
        logits: dict[int, Tensor] = {}
        joined: list[KeyValueBuffer] = []
        for row, length in zip(ordered, num_shared, strict=True):
            for layer in layers:
                layer.length = length
            self.mask_BL, self.lengths = self.mask_BL[:, :length], [length]
            logits[places[row]] = self._feed([row[length:]])
            joined = joined or [
                KeyValueBuffer.empty(len(rows), width, like=layer) for layer in layers
            ]
            for target, layer in zip(joined, layers, strict=True):
                target.place(places[row], layer)
        self.cache.layers = joined
        self.lengths = [len(row) for row in rows]
        length_B1 = torch.tensor(self.lengths, device=self.device)[:, None]
        self.mask_BL = torch.arange(width, device=self.device)[None] >= width - length_B1
        self.gaps = min(self.lengths) < width
        return torch.cat([logits[place] for place in range(len(rows))])

    def _begin(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.mask_BL = torch.zeros(num_rows, 0, dtype=torch.bool, device=self.device)

    def _feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        width = max(map(len, rows))
        gaps = [width - len(row) for row in rows]
        ids_BN = torch.tensor(
            [[0] * gap + list(row) for gap, row in zip(gaps, rows, strict=True)], device=self.device
        )
        gap_B1 = torch.tensor(gaps, device=self.device)[:, None]
        length_B1 = torch.tensor(self.lengths, device=self.device)[:, None]
        column_1N = torch.arange(width, device=self.device)[None]
        self.mask_BL = torch.cat([self.mask_BL, column_1N >= gap_B1], dim=1)
        self.gaps = self.gaps or any(gaps)
        options: dict[str, Any] = self._mask_options(width)
        if self._takes_positions:
            options["position_ids"] = (length_B1 + column_1N - gap_B1).clamp(min=0)
        output = self.decoder(
            input_ids=ids_BN, past_key_values=self.cache, use_cache=True, **options
        )
        self.num_fed += sum(map(len, rows))
        self.lengths = [length + len(row) for length, row in zip(self.lengths, rows, strict=True)]
        return self.head.logits(output.last_hidden_state[:, -1])

    def _mask_options(self, width: int) -> dict[str, Any]:
        """The mask of a feed of `width` columns, if it needs one.

        Without gaps there is nothing to mask, and a model's fast path, or a recurrent layer,
        expects no mask.
        """
        # A CPU's attention over heads that share keys is up to six times as slow in bfloat16
        # without a mask, with which transformers lays the heads of a key side by side. On a GPU a
        # mask is what costs.
        helps = width == 1 and self.device.type == "cpu" and self._masks_single_tokens
        if not (self.gaps or self._window is not None or helps):
            return {}
        if not self._takes_masks:
            return {"attention_mask": self.mask_BL.long()}
        column_L = torch.arange(self.mask_BL.shape[1], device=self.device)
        column_N1 = column_L[-width:, None]
        # a gap reads itself, so that every softmax has a term
        mask_BNL = (column_L == column_N1) | (column_L < column_N1) & self.mask_BL[:, None]
        if self._window is None:
            return {"attention_mask": mask_BNL[:, None]}
        position_BL = self.mask_BL.cumsum(dim=1)
        distance_BNL = position_BL[:, -width:, None] - position_BL[:, None]
        near_BNL = mask_BNL & (distance_BNL < self._window)
        if not self._mask_per_type:
            return {"attention_mask": near_BNL[:, None]}
        masks = {"full_attention": mask_BNL[:, None], "sliding_attention": near_BNL[:, None]}
        return {"attention_mask": masks}

    def cut(self, row: int, length: int) -> None:
        """Forget what a row holds behind its first `length` tokens, or all of it: a recurrent layer
        has no way back. `lengths` says what is left."""
        if length >= self.lengths[row]:
            return
        if not self._ragged or (length == 0 and not any(self._others(row))):
            self.cache, self.gaps = self._empty(), False
            self._begin(len(self.lengths))
            return
        if len(self.lengths) == 1 and not self.gaps:
            for layer in self.cache.layers:
                layer.length = length
            self.mask_BL, self.lengths = self.mask_BL[:, :length], [length]
            return
        mask_BL = self.mask_BL.clone()
        mask_BL[row] &= mask_BL[row].cumsum(dim=0) <= length
        self.mask_BL, self.gaps = mask_BL, True
        self.lengths[row] = length

    def _others(self, row: int) -> list[int]:
        return [n for i, n in enumerate(self.lengths) if i != row]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows, and the gaps if there are many."""
        if not rows:
            self.lengths = []
            return
        if len(rows) < len(self.lengths):
            self._select(rows)
        longest = max(self.lengths)
        if self.gaps and self.mask_BL.shape[1] > _SLACK * longest + _SLACK_COLUMNS:
            self._squeeze(longest)

    def _select(self, rows: Sequence[int]) -> None:
        """Make these the rows of the cache; a row may be named more than once."""
        index = torch.tensor(rows, device=self.device)
        for layer in self.cache.layers:
            if isinstance(layer, KeyValueBuffer):
                layer.select(index)
            else:
                layer.batch_select_indices(index)
        self.mask_BL = self.mask_BL[index]
        self.lengths = [self.lengths[i] for i in rows]

    def _squeeze(self, longest: int) -> None:
        """Shift every row to the right so that only the gaps of shorter rows remain.

        Cached keys already contain their positions.
        """
        order_BL = self.mask_BL.long().argsort(dim=1, stable=True)[:, -longest:]
        for layer in self.cache.layers:
            layer.gather(order_BL)
        self.mask_BL = self.mask_BL.gather(1, order_BL)
        self.gaps = not bool(self.mask_BL.all())


def _takes_masks(model: Any) -> bool:
    """Whether a mask of rows, queries and columns can be given."""
    return (
        getattr(decoder_of(model), "_supports_attention_backend", False)
        and getattr(model.config.get_text_config(), "_attn_implementation", "") == "sdpa"
    )


def _shares_keys(config: Any) -> bool:
    heads = getattr(config, "num_attention_heads", 0)
    return heads != getattr(config, "num_key_value_heads", heads)


def _window(config: Any) -> int | None:
    """The tokens that a layer with a sliding window reads, if the model has such layers."""
    types = getattr(config, "layer_types", None)
    if types is not None and "sliding_attention" not in types:
        return None
    return getattr(config, "sliding_window", None)
