"""The keys and values of one attention layer, in a buffer that grows by blocks of columns.

    cache = DynamicCache()                            # of transformers
    cache.layers = [KeyValueBuffer() for _ in range(num_layers)]

Transformers' own layer copies everything that it holds for each new token; here new tokens are
written in place, and a longer common beginning is kept by lowering `length`. Shapes: B rows, H
heads, C columns of the buffer, L columns in use, N new columns, D size of a head.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

BLOCK_COLUMNS = 128


class KeyValueBuffer:
    """One layer of a cache of transformers.

    >>> layer = KeyValueBuffer()
    >>> keys, _ = layer.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    >>> keys.shape, layer.get_seq_length(), layer.keys_BHCD.shape[2]
    (torch.Size([1, 2, 3, 4]), 3, 128)
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        self.keys_BHCD = self.values_BHCD = torch.empty(0)
        self.length = 0

    @classmethod
    def empty(cls, num_rows: int, length: int, *, like: KeyValueBuffer) -> Self:
        """A layer of `num_rows` rows and `length` columns of zeros; sizes, precision and device are
        those of `like`."""
        layer = cls()
        layer.length = length
        layer.keys_BHCD = _zeros(like.keys_BHCD, num_rows=num_rows, columns=_blocks(length))
        layer.values_BHCD = _zeros(like.values_BHCD, num_rows=num_rows, columns=_blocks(length))
        return layer

    @property
    def is_initialized(self) -> bool:
        """Whether anything was fed; transformers asks."""
        return self.keys_BHCD.dim() == 4

    @property
    def keys(self) -> Tensor:
        """The keys in use (B, H, L, D), a view."""
        return self.keys_BHCD[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """The values in use (B, H, L, D), a view."""
        return self.values_BHCD[:, :, : self.length]

    def update(
        self, keys_BHND: Tensor, values_BHND: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new columns; returns all keys and values in use."""
        if not self.is_initialized:
            rows = keys_BHND.shape[0]
            self.keys_BHCD = _zeros(keys_BHND, num_rows=rows, columns=0)
            self.values_BHCD = _zeros(values_BHND, num_rows=rows, columns=0)
        start, self.length = self.length, self.length + keys_BHND.shape[2]
        if self.length > self.keys_BHCD.shape[2]:
            self.keys_BHCD = _grown(self.keys_BHCD, used=start, length=self.length)
            self.values_BHCD = _grown(self.values_BHCD, used=start, length=self.length)
        self.keys_BHCD[:, :, start : self.length] = keys_BHND
        self.values_BHCD[:, :, start : self.length] = values_BHND
        return self.keys, self.values

    def select(self, index_B: Tensor) -> None:
        """Make these the rows; a row may be named more than once."""
        self.keys_BHCD = self.keys_BHCD.index_select(0, index_B)
        self.values_BHCD = self.values_BHCD.index_select(0, index_B)

    def gather(self, order_BL: Tensor) -> None:
        """Make these the columns of each row, and all that is in use."""
        index_B1L1 = order_BL[:, None, :, None]
        self.length = order_BL.shape[1]
        for states_BHCD in (self.keys_BHCD, self.values_BHCD):
            _, heads, _, size = states_BHCD.shape
            states_BHCD[:, :, : self.length] = states_BHCD.gather(
                2, index_B1L1.expand(-1, heads, -1, size)
            )

    def place(self, row: int, other: KeyValueBuffer) -> None:
        """Write the only row of another layer into a row, aligned on the right."""
        columns = slice(self.length - other.length, self.length)
        self.keys_BHCD[row, :, columns] = other.keys[0]
        self.values_BHCD[row, :, columns] = other.values[0]

    def get_seq_length(self) -> int:
        """The columns in use, under the name by which transformers asks for it."""
        return self.length

    def get_max_length(self) -> int:
        """-1: the buffer has no end."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of columns of a mask, and the first of them."""
        return self.length + query_length, 0


def _blocks(length: int) -> int:
    return -(-length // BLOCK_COLUMNS) * BLOCK_COLUMNS


def _zeros(like_BHND: Tensor, *, num_rows: int, columns: int) -> Tensor:
    _, heads, _, size = like_BHND.shape
    return like_BHND.new_zeros(num_rows, heads, columns, size)


def _grown(states_BHCD: Tensor, *, used: int, length: int) -> Tensor:
    longer = _zeros(states_BHCD, num_rows=len(states_BHCD), columns=_blocks(length))
    longer[:, :, :used] = states_BHCD[:, :, :used]
    return longer
