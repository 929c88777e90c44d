"""The blocks of a pass's mask that FlexAttention has to read, from the intervals of the nodes.

    some_RC, every_RC = visible_blocks(plan, window=None)

Torch's create_block_mask computes the whole mask first: 11 - 15 bytes per (query, key), 48 GB at
64k tokens. Here tokens are taken in runs: consecutive tokens of one node within one block. For two
runs the positions at their ends decide whether some, or every, query sees some, or every, key; so
the memory grows with the number of runs, which is about that of the blocks and the nodes together.

Shapes: Q tokens of the pass, K tokens that it sees, R blocks of queries, C blocks of keys, S runs
of queries, U runs of keys, s some of the runs of queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.models.tree_plan import TreePlan

BLOCK = 128  # tokens, as in FlexAttention's default
_PAIRS_AT_ONCE = 1 << 20  # pairs of runs whose visibility is in memory at a time


def visible_blocks(
    plan: TreePlan, *, window: int | None = None, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """Whether some query of a block sees some key of another, and whether every one sees every
    one; (R, C) each.

    The last block is filled up with tokens that see nothing and that nothing sees. Example: 300
    tokens of one row have some = [[1, 0, 0], [1, 1, 0], [1, 1, 1]] and every = [[0, 0, 0], [1, 0,
    0], [0, 0, 0]].
    """
    position_K, interval_K2 = plan.seen
    queries = _Runs.of(plan.position_Q, plan.interval_Q2, block=block)
    keys = _Runs.of(position_K, interval_K2, block=block)
    # pairs of runs, by block: those that see each other in part, and those that do not in full
    in_part_RC = torch.zeros(queries.num_blocks, keys.num_blocks, dtype=torch.int32)
    not_in_full_RC = torch.zeros_like(in_part_RC)
    for first in range(0, len(queries.block_S), step := max(1, _PAIRS_AT_ONCE // len(keys.low_S))):
        part = slice(first, first + step)
        in_part_sU, in_full_sU = _visible(queries.part(part), keys, window=window)
        for sums_RC, pairs_sU in ((in_part_RC, in_part_sU), (not_in_full_RC, ~in_full_sU)):
            columns_sC = sums_RC.new_zeros(len(pairs_sU), keys.num_blocks)
            columns_sC.index_add_(1, keys.block_S, pairs_sU.to(torch.int32))
            sums_RC.index_add_(0, queries.block_S[part], columns_sC)
    every_RC = not_in_full_RC == 0
    # the last key is seen by the last query alone, so only as queries can it seem full
    every_RC[len(plan.position_Q) // block :] = False
    return in_part_RC > 0, every_RC


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of tokens: their first and last positions, their nodes' intervals, and their blocks."""

    low_S: Tensor
    high_S: Tensor
    enter_S: Tensor
    exit_S: Tensor
    block_S: Tensor
    num_blocks: int

    @classmethod
    def of(cls, position_Q: Tensor, interval_Q2: Tensor, *, block: int) -> _Runs:
        """Cut where a block begins, and where a token does not follow the one before in a node."""
        place_Q = torch.arange(len(position_Q))
        begins_Q = place_Q % block == 0
        begins_Q[1:] |= (interval_Q2[1:] != interval_Q2[:-1]).any(dim=1)
        begins_Q[1:] |= position_Q[1:] != position_Q[:-1] + 1
        first_S = place_Q[begins_Q]
        last_S = torch.cat([first_S[1:], first_S.new_tensor([len(position_Q)])]) - 1
        return cls(
            low_S=position_Q[first_S],
            high_S=position_Q[last_S],
            enter_S=interval_Q2[first_S, 0],
            exit_S=interval_Q2[first_S, 1],
            block_S=first_S // block,
            num_blocks=-(-len(position_Q) // block),
        )

    def part(self, runs: slice) -> _Runs:
        """Some of the runs, with the blocks of all."""
        return _Runs(
            low_S=self.low_S[runs],
            high_S=self.high_S[runs],
            enter_S=self.enter_S[runs],
            exit_S=self.exit_S[runs],
            block_S=self.block_S[runs],
            num_blocks=self.num_blocks,
        )


def _visible(queries: _Runs, keys: _Runs, *, window: int | None) -> tuple[Tensor, Tensor]:
    """Whether some query of a run sees some key of another, and whether every one sees every one;
    (s, U) each.

    The distances between a query and a key of two runs are all numbers from the smallest to the
    largest, and a key is seen at the distances 0 <= d < window.
    """
    enter_s1 = queries.enter_S[:, None]
    below_sU = (keys.enter_S <= enter_s1) & (enter_s1 < keys.exit_S)
    smallest_sU = queries.low_S[:, None] - keys.high_S
    largest_sU = queries.high_S[:, None] - keys.low_S
    some_sU, every_sU = below_sU & (largest_sU >= 0), below_sU & (smallest_sU >= 0)
    if window is not None:
        some_sU, every_sU = some_sU & (smallest_sU < window), every_sU & (largest_sU < window)
    return some_sU, every_sU
