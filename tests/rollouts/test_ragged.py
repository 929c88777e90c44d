"""The cache: every row is scored as if it were alone, whatever its neighbours do and whenever they
leave."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicLayer

from composer_replication.models.forward import final_hidden, head_of, project, scoring
from composer_replication.rollouts.key_value_buffer import BLOCK_COLUMNS, KeyValueBuffer
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


def windowed(family: str, **more: Any) -> Any:
    """A tiny model in which layers read the last 8 tokens only, all of them or every other one."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "sliding_window": 8,
        "initializer_range": 0.3,
        **more,
    }
    mixed: dict[str, Any] = {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
    }
    torch.manual_seed(0)
    if family == "mistral":
        return MistralForCausalLM(MistralConfig(**shape)).eval()
    if family == "gemma3":
        return Gemma3ForCausalLM(Gemma3TextConfig(**shape, **mixed)).eval()
    shape |= {"use_sliding_window": True, **mixed}
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()


@pytest.mark.parametrize("family", ["gemma3", "mistral", "qwen2", "qwen3"])
def test_a_sliding_window_counts_tokens_and_not_gaps(family: str) -> None:
    model = windowed(family)
    assert holds_ragged_rows(model)
    for seed in range(2):
        play(model, seed=seed, rounds=8, drop=bool(seed))
    cache = RaggedCache(model, num_rows=3)
    rows = [[1] * 20 + [2, 3], [1] * 20 + [4], [5, 6]]
    with scoring(model):
        for logits_V, row in zip(cache.feed(rows), rows, strict=True):
            assert torch.allclose(logits_V, alone(model, row), atol=1e-4)


@pytest.mark.parametrize("more", [{"attn_implementation": "eager"}, {"model_type": "other"}])
def test_an_unknown_window_does_not_hold_ragged_rows_but_one_row_is_exact(
    more: dict[str, str],
) -> None:
    model = windowed("mistral")
    if "model_type" in more:
        model.config.model_type = more["model_type"]
    else:
        model.set_attn_implementation(more["attn_implementation"])
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


class Forwards:
    """The shape (rows, columns) of every feed of a cache's decoder, and the mask it was given."""

    def __init__(self, cache: RaggedCache) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.masks: list[Any] = []
        self.hook = cache.decoder.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))
        self.masks.append(kwargs.get("attention_mask"))

    def __enter__(self) -> Forwards:
        return self

    def __exit__(self, *_: object) -> None:
        self.hook.remove()


def check_rows(
    model: Any, rows: list[list[int]], *, then: list[list[int]]
) -> tuple[list[tuple[int, int]], int]:
    """Feed rows, then more, then drop all but two; every row as if alone.

    Returns the shapes of the first feed's forwards and the number of tokens that it fed.
    """
    cache = RaggedCache(model, num_rows=len(rows))
    with scoring(model):
        with Forwards(cache) as forwards:
            logits_BV = cache.feed(rows)
        num_fed = cache.num_fed
        for logits_V, row in zip(logits_BV, rows, strict=True):
            assert torch.allclose(logits_V, alone(model, row), atol=1e-4)
        assert cache.lengths == [len(row) for row in rows]
        rows = [row + new for row, new in zip(rows, then, strict=True)]
        for logits_V, row, new in zip(cache.feed(then), rows, then, strict=True):
            if new:
                assert torch.allclose(logits_V, alone(model, row), atol=1e-4)
        kept = [1, len(rows) - 1]
        cache.keep(kept)
        logits_BV = cache.feed([[11], [12]])
        for logits_V, place, new in zip(logits_BV, kept, (11, 12), strict=True):
            assert torch.allclose(logits_V, alone(model, [*rows[place], new]), atol=1e-4)
    return forwards.shapes, num_fed


LONG = [(7 * i) % VOCAB for i in range(100)]


@pytest.mark.parametrize("arch", ["qwen3", "llama", "mistral", "gemma3"])
def test_what_rows_begin_with_is_fed_once(arch: str) -> None:
    """The cheapest way is taken, and afterwards every row goes its own way."""
    model = tiny(VOCAB, arch=arch) if arch in ("qwen3", "llama") else windowed(arch)
    # samples of one site, and of two
    rows = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4], [1, 2, 3, 4], [5, 6]]
    assert check_rows(model, rows, then=[[7], [8, 9], [10], [7], []]) == ([(2, 4)], 6)
    assert check_rows(model, [LONG] * 3, then=[[7], [8], [9]]) == ([(1, 100)], 100)
    # tasks below the same tools: the tools once, then what differs
    rows = [[*LONG, 1, 2, 9], [*LONG, 3, 9], [*LONG, 3, 9], [*LONG, 4, 5, 6]]
    assert check_rows(model, rows, then=[[7], [8, 9], [10], []]) == ([(1, 100), (3, 3)], 108)
    # one row is all of what the others begin with: its last token is left to be fed
    rows = [LONG, [*LONG, 3], [*LONG, 4, 5]]
    assert check_rows(model, rows, then=[[7], [8, 9], [10]]) == ([(1, 99), (3, 3)], 105)
    # sites of two sessions: each from where it leaves the site before it
    rows = [[*LONG, *LONG], [9, *LONG], LONG, [*LONG, *LONG, 3, 4], [9, *LONG, 1], LONG]
    fed = check_rows(model, rows, then=[[7], [8, 9], [10], [], [1], [2]])
    assert fed == ([(1, 100), (1, 100), (1, 2), (1, 101), (1, 1)], 304)
    # short ones are padded: a forward costs more
    assert check_rows(model, [[1], [2, 3, 4], [5, 6]], then=[[7], [], [9]]) == ([(3, 3)], 6)


def wide(heads: int) -> Any:
    """A model whose weights are large enough that one gap read as a token shows."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=heads, head_dim=16, intermediate_size=64, initializer_range=0.3,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_rows_that_were_fed_one_by_one_have_gaps(heads: int, width: int) -> None:
    """The feeds behind the first one are of equal lengths, so they bring no gap of their own; where
    heads share keys a single token has a mask in any case."""
    model = wide(heads)
    rows = [[(7 * n + 3 * k) % VOCAB for k in range(4 + 60 * n)] for n in range(4)]
    assert len({row[0] for row in rows}) == 4  # nothing in common: one by one is cheaper
    cache = RaggedCache(model, num_rows=4)
    with scoring(model):
        cache.feed(rows)
        assert cache.mask_BL.shape[1] == max(map(len, rows)) and not bool(cache.mask_BL.all())
        assert cache.num_fed == sum(map(len, rows))
        for turn in range(3):
            new = [[(turn + 7 * n + k) % VOCAB for k in range(width)] for n in range(4)]
            rows = [row + ids for row, ids in zip(rows, new, strict=True)]
            for row, logits_V in zip(rows, cache.feed(new), strict=True):
                assert torch.allclose(logits_V, alone(model, row), atol=1e-4)


def test_a_row_may_be_empty_in_the_first_feed() -> None:
    model = tiny(VOCAB)
    cache = RaggedCache(model, num_rows=3)
    with scoring(model):
        cache.feed([LONG, [], [3]])
        assert cache.lengths == [100, 0, 1]
        logits_BV = cache.feed([[5], [6, 7], []])
    assert torch.allclose(logits_BV[0], alone(model, [*LONG, 5]), atol=1e-4)
    assert torch.allclose(logits_BV[1], alone(model, [6, 7]), atol=1e-4)


def test_single_tokens_have_a_mask_where_heads_share_keys() -> None:
    """Without one a CPU's attention in bfloat16 takes six times as long."""
    for kv_heads, masked in ((1, True), (2, False)):
        model = tiny(VOCAB, num_key_value_heads=kv_heads)
        cache = RaggedCache(model, num_rows=2)
        with scoring(model), Forwards(cache) as forwards:
            cache.feed([[1, 2], [3, 4]])
            cache.feed([[5], [6]])
            cache.feed([[7, 8], [9, 10]])
        assert [mask is not None for mask in forwards.masks] == [False, masked, False]


def test_key_values_are_those_of_transformers_own_layer() -> None:
    torch.manual_seed(0)
    theirs, ours = DynamicLayer(), KeyValueBuffer()
    for columns in (3, 1, BLOCK_COLUMNS - 4, 1, 1, 2 * BLOCK_COLUMNS, 1):
        keys_BHND, values_BHND = torch.randn(2, 2, 2, columns, 4)
        for mine, right in zip(
            ours.update(keys_BHND, values_BHND),
            theirs.update(keys_BHND, values_BHND),
            strict=True,
        ):
            assert torch.equal(mine, right)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(5) == theirs.get_mask_sizes(5)
    place = ours.keys_BHCD.data_ptr()
    ours.update(torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 4))
    assert ours.keys_BHCD.data_ptr() == place  # a token is written in place
