"""How many rows of logits the fused losses hold at a time: no torch, for the memory model too."""

from __future__ import annotations

BUFFERS = {"cpu": 160 << 20, "cuda": 1 << 30}
"""Bytes of logits at a time on a device, student's and teacher's together."""


def chunk_rows(device: str, vocab: int, row_bytes: int) -> int:
    """How many rows of logits fit the buffers of a device; at least 16, for efficient products.

    >>> chunk_rows("cpu", 151_936, 8)
    128
    """
    rows = BUFFERS.get(device, BUFFERS["cuda"]) // (vocab * row_bytes)
    return max(16, min(rows // 16 * 16, 4096)) if rows < 128 else min(rows // 128 * 128, 4096)
