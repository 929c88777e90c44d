"""The number of rows of logits that the fused losses hold, and that a kernel takes at once: no
torch, as the memory model needs it too."""

from __future__ import annotations

BUFFERS = {"cpu": 160 << 20, "cuda": 1 << 30}
"""Bytes of logits at a time on a device, student's and teacher's together."""
BLOCKS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Numbers of a block, the rows that a kernel takes at once: they fit a processor's cache; on a GPU
small ones would not fill it."""
AUTOGRAD_BLOCKS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""The same where autograd takes a block's gradient: it keeps up to 14 matrices of a block's size,
which would be 3.8 GB of the blocks above."""


def chunk_rows(device: str, vocab: int, row_bytes: int) -> int:
    """The number of rows of logits that fit the buffers of a device; at least 16, for efficient
    products.

    >>> chunk_rows("cpu", 151_936, 8)
    128
    """
    rows = BUFFERS.get(device, BUFFERS["cuda"]) // (vocab * row_bytes)
    return max(16, min(rows // 16 * 16, 4096)) if rows < 128 else min(rows // 128 * 128, 4096)
