"""A key-value cache for conversations of different lengths, fed in lock-step over many turns.

    cache = RaggedCache(model, num_rows=3)
    logits_BV = cache.feed([[5, 6, 7], [8], []])      # at each row's last token; empty rows wait
    logits_BV = cache.feed([[2], [9], [4]])
    cache.keep([0, 2])                                # the second row is finished: drop its cache

Each feed is aligned on the right, so a shorter row gets a gap on the left. Gaps are masked out and
do not count as positions: every row is scored as if it were alone. They are squeezed out once they
make up a fifth of the cache. Rows that begin alike (the samples of one task or site) go through the
model once: their first feed is shared. Shapes: B rows, N columns of one feed, L columns of the
cache, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import need
from composer_replication.models.forward import decoder_of, head_of

_SLACK = 1.25  # columns of the cache per token of its longest row, at most
_SLACK_COLUMNS = 32


def holds_ragged_rows(model: Any) -> bool:
    """Whether rows of different lengths can share one cache of this model.

    Every layer must attend to everything, at given positions. Sliding windows and recurrent layers
    count columns, gaps included, so such a model is sampled one row at a time.
    """
    cache_utils = need("transformers.cache_utils", extra="train")
    layers = cache_utils.DynamicCache(config=model.config).layers
    parameters = inspect.signature(decoder_of(model).forward).parameters
    return all(type(layer) is cache_utils.DynamicLayer for layer in layers) and {
        "position_ids",
        "attention_mask",
    } <= set(parameters)


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
        self.cache: Any = need("transformers.cache_utils", extra="train").DynamicCache(
            config=model.config
        )
        self.mask_BL = torch.zeros(num_rows, 0, dtype=torch.bool, device=self.device)
        self.lengths = [0] * num_rows
        self.gaps = False
        self.num_fed = 0
        self._takes_positions = "position_ids" in inspect.signature(self.decoder.forward).parameters

    def feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Add ids to each row; returns the float32 logits (B, V) behind its last token.

        The logits of an empty row mean nothing.
        """
        distinct = list(dict.fromkeys(map(tuple, rows)))
        if any(self.lengths) or len(distinct) == len(rows):
            return self._feed(rows)
        # the first feed: equal rows need one prefill
        self.lengths, self.mask_BL = [0] * len(distinct), self.mask_BL[: len(distinct)]
        logits_BV = self._feed(distinct)
        copies = [distinct.index(tuple(row)) for row in rows]
        self._select(copies)
        return logits_BV[copies]

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
        # Without gaps there is nothing to mask, and a model's fast path, or a recurrent layer,
        # expects no mask.
        options: dict[str, Any] = {"attention_mask": self.mask_BL.long()} if self.gaps else {}
        if self._takes_positions:
            options["position_ids"] = (length_B1 + column_1N - gap_B1).clamp(min=0)
        output = self.decoder(
            input_ids=ids_BN, past_key_values=self.cache, use_cache=True, **options
        )
        self.num_fed += sum(map(len, rows))
        self.lengths = [length + len(row) for length, row in zip(self.lengths, rows, strict=True)]
        return self.head.logits(output.last_hidden_state[:, -1])

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
        self.cache.batch_select_indices(index)
        self.mask_BL = self.mask_BL[index]
        self.lengths = [self.lengths[i] for i in rows]

    def _squeeze(self, longest: int) -> None:
        """Shift every row to the right so that only the gaps of shorter rows remain.

        Cached keys already contain their positions.
        """
        order_BL = self.mask_BL.long().argsort(dim=1, stable=True)[:, -longest:]
        for layer in self.cache.layers:
            layer.keys = _columns(layer.keys, order_BL)
            layer.values = _columns(layer.values, order_BL)
        self.mask_BL = self.mask_BL.gather(1, order_BL)
        self.gaps = not bool(self.mask_BL.all())


def _columns(states_BHLD: Tensor, order_BL: Tensor) -> Tensor:
    _, heads, _, size = states_BHLD.shape
    return states_BHLD.gather(2, order_BL[:, None, :, None].expand(-1, heads, -1, size))
