"""How many rows of logits the fused losses (losses/fused_sweep.py) hold at a time, and how many a
kernel works on at a time. Without torch, as the memory model reads it before torch is loaded."""

from __future__ import annotations

BUFFERS = {"cpu": 160 << 20, "cuda": 1 << 30}
"""The most bytes of logits in memory, of student and teacher together, by device type."""
BLOCKS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""The most logits (rows * vocabulary) that a kernel works on at once: on a CPU they fit the cache,
a GPU needs more to be busy."""
AUTOGRAD_BLOCKS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""The same for a kernel whose gradient autograd takes: that keeps up to 14 matrices of a block's
size, which would be 3.8 GB with a block of `BLOCKS` on a GPU."""


def chunk_rows(device: str, vocab: int, row_bytes: int) -> int:
    """The number of rows of logits in memory at a time: what fits `BUFFERS`, between 16 (for
    efficient products) and 4096.

    >>> chunk_rows("cpu", 151_936, 8)
    128
    """
    rows = BUFFERS.get(device, BUFFERS["cuda"]) // (vocab * row_bytes)
    return max(16, min(rows // 16 * 16, 4096)) if rows < 128 else min(rows // 128 * 128, 4096)
