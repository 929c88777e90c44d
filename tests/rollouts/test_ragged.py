"""The cache: every row is scored as if it were alone, whatever its neighbours do and whenever they
leave."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from composer_replication.models.forward import final_hidden, head_of, project, scoring
from composer_replication.rollouts.ragged import RaggedCache, holds_ragged_rows
from tests.rollouts.small_world import tiny

VOCAB = 60


def alone(model: Any, ids: list[int]) -> torch.Tensor:
    return project(model, final_hidden(model, torch.tensor([ids]))[:, -1])[0]


def play(model: Any, *, seed: int, rounds: int, drop: bool) -> int:
    """Random feeds, each compared with a plain forward of the row's ids; returns the number of
    columns at the end."""
    rng = random.Random(seed)
    rows: list[list[int]] = [[] for _ in range(4)]
    cache = RaggedCache(model, num_rows=4)
    with scoring(model):
        for turn in range(rounds):
            new = [
                [rng.randrange(VOCAB) for _ in range(rng.choice((0, 1, 3, 9) if turn else (1, 9)))]
                for _ in rows
            ]
            new[0] = new[0] or [1]
            for row, ids in zip(rows, new, strict=True):
                row += ids
            logits_BV = cache.feed(new)
            assert bool(torch.isfinite(logits_BV).all())
            for row, ids, logits_V in zip(rows, new, logits_BV, strict=True):
                if ids:
                    assert torch.allclose(logits_V, alone(model, row), atol=1e-4)
            keep = [
                i for i in range(len(rows)) if len(rows) == 1 or not drop or rng.random() < 0.8
            ] or [0]
            cache.keep(keep)
            rows = [rows[i] for i in keep]
            assert cache.lengths == [len(row) for row in rows]
    return cache.mask_BL.shape[1]


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("drop", [True, False])
def test_ragged_rows_are_scored_as_if_alone(arch: str, drop: bool) -> None:
    for seed in range(3):
        play(tiny(VOCAB, arch=arch), seed=seed, rounds=8, drop=drop)


def test_a_model_with_learnt_positions() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=512)
    ).eval()
    assert holds_ragged_rows(model)
    play(model, seed=1, rounds=6, drop=True)


def test_gaps_are_squeezed_out() -> None:
    model = tiny(VOCAB)
    cache = RaggedCache(model, num_rows=2)
    with scoring(model):
        cache.feed([[1, 2], [3, 4]])
        for step in range(60):
            cache.feed([[step % VOCAB], []] if step % 2 else [[], [step % VOCAB]])
        assert cache.mask_BL.shape[1] == 62 and max(cache.lengths) == 32
        cache.keep([0, 1])
        # within the slack: left as it is
        assert cache.mask_BL.shape[1] == cache.cache.get_seq_length() == 62
        for step in range(60):
            cache.feed([[step % VOCAB], []] if step % 2 else [[], [step % VOCAB]])
        cache.keep([0, 1])
        assert cache.mask_BL.shape[1] == cache.cache.get_seq_length() == 62 == max(cache.lengths)
        assert not cache.gaps
        logits_BV = cache.feed([[7], [8, 9]])
    first = [1, 2, *(s % VOCAB for _ in range(2) for s in range(60) if s % 2), 7]
    second = [3, 4, *(s % VOCAB for _ in range(2) for s in range(60) if s % 2 == 0), 8, 9]
    assert torch.allclose(logits_BV[0], alone(model, first), atol=1e-4)
    assert torch.allclose(logits_BV[1], alone(model, second), atol=1e-4)


def test_a_sliding_window_does_not_hold_ragged_rows_but_one_row_is_exact() -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        sliding_window=8,
        initializer_range=0.3,
    )
    model = MistralForCausalLM(config).eval()
    assert not holds_ragged_rows(model)
    assert holds_ragged_rows(tiny(VOCAB))
    cache, row = RaggedCache(model, num_rows=1), []
    with scoring(model):
        for ids in ([1, 2, 3, 4, 5], [6], [7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17], [18]):
            row += ids
            assert torch.allclose(cache.feed([ids])[0], alone(model, row), atol=1e-4)


class HeadCopies(TorchDispatchMode):
    """How often a float32 copy of the head was made."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.shape, self.count = model.lm_head.weight.shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and func.overloadpacket is torch.ops.aten._to_copy:
            self.count += out.shape == self.shape and out.dtype == torch.float32
        return out


def test_a_head_of_lower_precision_is_cast_once() -> None:
    """For every token, the cast of SmolLM2's head took eight times as long as its product."""
    model = tiny(VOCAB).bfloat16()
    with scoring(model), HeadCopies(model) as copies:
        cache = RaggedCache(model, num_rows=2)
        for ids in ([[1, 2], [3, 4]], [[5], [6]], [[7], [8]]):
            assert cache.feed(ids).dtype == torch.float32
    assert copies.count == 1
    hidden_ND = torch.randn(3, model.config.hidden_size).bfloat16()
    assert torch.equal(cache.head.logits(hidden_ND), project(model, hidden_ND))
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    assert torch.equal(
        RaggedCache(model, num_rows=1).head.weight_VD, head_of(model).weight_VD.float()
    )


def test_rows_that_begin_alike_are_fed_once() -> None:
    """Samples of one site read the same context; afterwards every row goes its own way."""
    model = tiny(VOCAB)
    rows = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4], [1, 2, 3, 4], [5, 6]]
    cache = RaggedCache(model, num_rows=5)
    with scoring(model):
        for logits_V, row in zip(cache.feed(rows), rows, strict=True):
            assert torch.allclose(logits_V, alone(model, row), atol=1e-4)
        assert cache.num_fed == 6 and cache.lengths == [4, 2, 4, 4, 2]
        new = [[7], [8, 9], [10], [7], []]
        for logits_V, row, ids in zip(cache.feed(new), rows, new, strict=True):
            if ids:
                assert torch.allclose(logits_V, alone(model, row + ids), atol=1e-4)
        assert cache.num_fed == 6 + 5  # later feeds are shared by nobody
        cache.keep([1, 3])
        logits_BV = cache.feed([[11], [12]])
    assert torch.allclose(logits_BV[0], alone(model, [5, 6, 8, 9, 11]), atol=1e-4)
    assert torch.allclose(logits_BV[1], alone(model, [1, 2, 3, 4, 7, 12]), atol=1e-4)
