"""The block mask that is built from intervals is the one that torch builds from the whole mask, and
takes a small part of its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from composer_replication.models import tree_attention as attention_module
from composer_replication.models import tree_blocks as blocks_module
from composer_replication.models.tree_attention import block_mask, mask_mod
from composer_replication.models.tree_blocks import visible_blocks
from composer_replication.tokens.tree import Forest, Pass
from tests.models.tree_models import by_rows, gap, make, on_cache, random_rows

LISTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


def passes(rows: list[tuple[int, ...]]) -> list[Pass]:
    """Everything at once; a part; and what is left on that part's cache."""
    forest, numbers = Forest.grow(rows), range(len(rows))
    below = forest.over([0, 3])
    return [forest.over(numbers), below, forest.over(numbers, cached=below)]


def whole_mask_blocks(plan: Pass, *, window: int | None, block: int) -> BlockMask:
    sees = mask_mod(plan, window=window, device="cpu")
    sizes = (plan.size, plan.offset + plan.size)
    return create_block_mask(sees, None, None, *sizes, device="cpu", BLOCK_SIZE=block)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    trunk=st.integers(1, 90),
    branches=st.integers(3, 12),
    window=st.one_of(st.none(), st.integers(1, 40)),
    block=st.sampled_from([1, 2, 4, 8, 16]),
    at_once=st.sampled_from([1, 50, 1 << 20]),
)
def test_the_blocks_of_random_trees_are_those_of_the_whole_mask(
    seed: int, trunk: int, branches: int, window: int | None, block: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "_PAIRS_AT_ONCE", at_once)
        for plan in passes(random_rows(seed, trunk=trunk, branches=branches)):
            if not plan.size:
                continue
            some_RC, every_RC = visible_blocks(plan, window=window, block=block)
            whole_QK = plan.mask_QK(window=window)
            rows, columns = (-(-n // block) for n in whole_QK.shape)
            padded_QK = torch.zeros(rows * block, columns * block, dtype=torch.bool)
            padded_QK[: whole_QK.shape[0], : whole_QK.shape[1]] = whole_QK
            tiles_RCN = padded_QK.view(rows, block, columns, block).transpose(1, 2).flatten(2)
            assert torch.equal(some_RC, tiles_RCN.any(dim=2))
            assert torch.equal(every_RC, tiles_RCN.all(dim=2))


@pytest.mark.parametrize("window", [None, 5, 300])
@pytest.mark.parametrize("trunk", [128, 512, 700])
def test_the_block_mask_is_torch_s(trunk: int, window: int | None) -> None:
    for plan in passes(random_rows(trunk, trunk=trunk, branches=8)):
        ours = block_mask(plan, window=window, device="cpu")
        torch_s = whole_mask_blocks(plan, window=window, block=128)
        assert ours.seq_lengths == torch_s.seq_lengths and ours.BLOCK_SIZE == torch_s.BLOCK_SIZE
        for name in LISTS:
            mine, theirs = getattr(ours, name), getattr(torch_s, name)
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name


class CreatedBytes(TorchDispatchMode):
    """The bytes of everything that is computed inside, as if nothing were let go of."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.total += sum(t.nbytes for t in tree_leaves(out) if isinstance(t, Tensor))
        return out


def test_a_session_of_64k_tokens_takes_less_than_100_mb() -> None:
    """Trunk, sixteen hints and sixteen chosen answers; the mask itself would be 4.3e9 entries."""
    trunk = tuple(range(2, 2 + 60 * 1024))
    at = [len(trunk) * (k + 1) // 33 for k in range(32)]
    branches = [(*trunk[:a], *(-1 - k for k in range(128 * a, 128 * a + 128))) for a in at]
    plan = Forest.grow([trunk, *branches]).over(range(33))
    assert plan.size == 64 * 1024
    with CreatedBytes() as created:
        mask = block_mask(plan, window=None, device="cpu")
    assert created.total < 100e6
    assert mask.kv_indices.shape == (1, 1, 512, 512)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "gpt_oss"])
def test_flex_attention_on_it_equals_the_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, so that it runs on a CPU, without a gradient; it then asks the mask's function,
    not its blocks."""
    monkeypatch.setattr(attention_module, "_COMPILED", [flex_attention])
    model, rows = make(family), random_rows(3)
    for first in ([*range(len(rows))], [0, 2]):
        flexed = on_cache(model, rows, first, mode="flex")
        assert gap(flexed, by_rows(model, rows)[0]) <= 2e-5
