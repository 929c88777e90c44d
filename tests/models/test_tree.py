"""One forward over a forest gives what its rows give one by one: values and every parameter's
gradient."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from composer_replication.core.errors import ConfigError
from composer_replication.models import tree_attention as attention_module
from composer_replication.models.tree_attention import KeyValues, mask_mod, tree_attention_forward
from composer_replication.models.tree_forward import (
    REMEDY,
    dropout_active,
    require_tree,
    tree_attention,
    tree_hidden,
    why_not_tree,
)
from composer_replication.tokens.tree import Forest
from tests.models.tree_models import by_rows, by_tree, gap, make, on_cache, random_rows

EXACT = ["qwen3", "llama", "mistral", "gemma3"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(EXACT), st.sampled_from(["chains", "dense"]))
def test_random_trees_equal_their_rows(seed: int, family: str, mode: attention_module.Mode) -> None:
    model, rows = make(family, seed=seed % 7).double(), random_rows(seed)
    (ours, our_grads), (theirs, their_grads) = by_tree(model, rows, mode=mode), by_rows(model, rows)
    assert gap(ours, theirs) <= 1e-6 and gap(our_grads, their_grads) <= 1e-6


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "qwen3_moe"])
@pytest.mark.parametrize("mode", ["chains", "dense"])
def test_soft_caps_sinks_and_experts(family: str, mode: attention_module.Mode) -> None:
    """Their attention is computed in float32, so the comparison is too."""
    model, rows = make(family), random_rows(3)
    (ours, our_grads), (theirs, their_grads) = by_tree(model, rows, mode=mode), by_rows(model, rows)
    assert gap(ours, theirs) <= 2e-5 and gap(our_grads, their_grads) <= 2e-5


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "gpt_oss"])
def test_small_chunks_and_a_second_gathering_change_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = make(family), random_rows(4, trunk=60)
    values, grads = by_tree(model, rows)
    monkeypatch.setattr(attention_module, "_MASK_ENTRIES", 1)  # the smallest chunks there are
    monkeypatch.setattr(attention_module, "_WINDOW_CHUNK", 7)
    monkeypatch.setattr(attention_module, "_COPIED_KEYS", 0)
    again, again_grads = by_tree(model, rows)
    assert gap(again, values) <= 2e-6 and gap(again_grads, grads) <= 2e-5


@pytest.mark.parametrize("family", [*EXACT, "gemma2", "gpt_oss"])
@pytest.mark.parametrize("mode", ["chains", "dense"])
def test_branches_on_kept_keys_and_values_equal_their_rows(
    family: str, mode: attention_module.Mode
) -> None:
    for seed in range(3):
        model, rows = make(family), random_rows(seed)
        assert gap(on_cache(model, rows, [0, 2, 3], mode=mode), by_rows(model, rows)[0]) <= 2e-6


def test_keys_are_kept_without_gradient_and_once() -> None:
    model = make("qwen3")
    plan, cache = Forest.grow(random_rows(1)).over(range(4)), KeyValues()
    hidden_QD = tree_hidden(model, plan, keep=cache)
    assert sorted(cache.layers) == [0, 1] and hidden_QD.requires_grad
    assert all(
        k.shape == (1, 2, plan.size, 8) and not k.requires_grad
        for pair in cache.layers.values()
        for k in pair
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_run_again_over_the_same_pass(reentrant: bool) -> None:
    model, rows = make("qwen3").double().train(), random_rows(5)
    plain = by_tree(model, rows)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    again = by_tree(model, rows)
    assert gap(again[0], plain[0]) <= 1e-12 and gap(again[1], plain[1]) <= 1e-9
    cache = KeyValues()
    with tree_attention(model):
        hidden_QD = tree_hidden(model, Forest.grow(rows).over([0]), keep=cache)
        before = {layer: pair[0].data_ptr() for layer, pair in cache.layers.items()}
        hidden_QD.sum().backward()
    # not written a second time
    assert {layer: pair[0].data_ptr() for layer, pair in cache.layers.items()} == before


def test_a_checkpointed_backward_outside_is_an_error_and_not_a_plain_row() -> None:
    model = make("qwen3").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    hidden_QD = tree_hidden(model, Forest.grow(random_rows(5)).over([0, 1]))
    with pytest.raises(RuntimeError):
        hidden_QD.sum().backward()


def test_lora_adapters_stay_in_effect() -> None:
    import peft

    model = peft.get_peft_model(
        make("qwen3").double(),
        peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    rows = random_rows(6)
    (ours, our_grads), (theirs, their_grads) = by_tree(model, rows), by_rows(model, rows)
    assert (
        gap(ours, theirs) <= 1e-6 and gap(our_grads, their_grads) <= 1e-6 and len(our_grads) == 28
    )
    with model.disable_adapter():
        assert gap(ours, on_cache(model, rows, [0])) > 1e-2


def test_bfloat16_is_as_close_to_its_rows_as_rounding_lets_it() -> None:
    model, rows = make("qwen3").bfloat16(), random_rows(7)
    assert gap(by_tree(model, rows)[0], by_rows(model, rows)[0]) <= 0.05


def test_a_branch_never_changes_another_one() -> None:
    """Bit for bit: other ids in a sibling branch, or behind the fork on the trunk, do not change a
    branch."""
    model, trunk = make("mistral"), random_rows(8)[0]
    chosen, sibling = (*trunk[:9], 1, 2, 3), (*trunk[:9], 4, 5, 6)
    rows = [trunk, chosen, sibling]
    others = [(*trunk[:9], *((i + 1) % 40 for i in trunk[9:])), chosen, (*trunk[:9], 7, 8, 9)]
    assert by_tree(model, others)[0][0][9:].ne(by_tree(model, rows)[0][0][9:]).any()
    for first in (rows, others):
        assert torch.equal(by_tree(model, first)[0][1], by_tree(model, rows)[0][1])
    cached = [
        on_cache(model, some, [0])[1]
        for some in ([trunk, chosen, sibling], [others[0], chosen, others[2]])
    ]
    assert torch.equal(*cached)


def test_packing_several_sessions_changes_none_of_them() -> None:
    model, first, second = make("qwen3"), random_rows(9), random_rows(10)
    alone = [*by_tree(model, first)[0], *by_tree(model, second)[0]]
    assert gap(by_tree(model, [*first, *second])[0], alone) <= 1e-6


@pytest.mark.parametrize("window", [None, 3])
def test_the_mask_for_flex_attention_is_the_dense_one(window: int | None) -> None:
    for seed in range(5):
        forest = Forest.grow(random_rows(seed))
        below = forest.over([0, 3])
        for plan in (
            below,
            forest.over(range(len(forest.paths)), cached=below),
            forest.over(range(len(forest.paths))),
        ):
            sees = mask_mod(plan, window=window, device="cpu")
            block_mask = create_mask(
                sees, None, None, plan.size, plan.offset + plan.size, device="cpu"
            )
            assert torch.equal(block_mask[0, 0], plan.mask_QK(window=window))


# ---- refusals ----


@pytest.mark.parametrize("family", [*EXACT, "gemma2", "gpt_oss", "qwen3_moe"])
def test_what_is_exact_is_let_through(family: str) -> None:
    assert why_not_tree(make(family)) == ""


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_linear_attention_is_refused_with_the_remedy(family: str) -> None:
    with pytest.raises(
        ConfigError, match="linear_attention layers: their state runs through"
    ) as caught:
        require_tree(make(family))
    assert caught.value.fix == REMEDY == 'set train.layout = "rows"'


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_types": ["full_attention", "chunked_attention"]}, "has chunked_attention layers"),
        ({"layers_block_type": ["mamba", "attention"]}, "has mamba layers"),
        ({"expert_capacity": 64}, "drops tokens beyond a capacity"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "depend on the longest row"),
        ({"use_bidirectional_attention": True}, "is not causal"),
    ],
)
def test_what_is_refused_by_name(changes: dict, reason: str) -> None:
    model = make("qwen3")
    for key, value in changes.items():
        setattr(model.config, key, value)
    assert reason in why_not_tree(model)


def test_state_that_only_the_modules_show_is_refused() -> None:
    model = make("qwen3")
    model.model.layers[0].mixer = torch.nn.Conv1d(1, 1, 1)
    assert "has convolution layers" in why_not_tree(model)
    model = make("qwen3")
    type(model.model)._supports_attention_backend = False
    try:
        assert "cannot exchange" in why_not_tree(model)
    finally:
        type(model.model)._supports_attention_backend = True


def test_a_model_that_mixes_tokens_elsewhere_is_found_by_its_values() -> None:
    """No name reveals it: each token also reads the one before it in the sequence, whatever branch
    that belongs to."""
    model = make("qwen3")
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, out: out + out.roll(1, dims=1)
    )
    assert "computes other values for a tree" in why_not_tree(model)
    model = make("qwen3")
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, out: out[:, :3] @ out)
    assert "cannot run over a tree" in why_not_tree(model)


def test_dropout_is_seen_where_there_is_some() -> None:
    import peft

    assert not dropout_active(make("qwen3").train()) and dropout_active(
        make("qwen3", attention_dropout=0.1).train()
    )
    assert not dropout_active(make("qwen3", attention_dropout=0.1).eval())
    lora = peft.LoraConfig(
        r=2, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1
    )
    assert dropout_active(peft.get_peft_model(make("qwen3"), lora).train())


def test_a_pass_on_a_cache_needs_its_cache() -> None:
    model, forest = make("qwen3"), Forest.grow(random_rows(2))
    below = forest.over([0])
    for plan, cache in ((forest.over([1], cached=below), None), (below, KeyValues())):
        with pytest.raises(ConfigError, match="uses a cache"):
            tree_hidden(model, plan, cache=cache)
    with tree_attention(model), pytest.raises(ValueError, match="call tree_hidden"):
        model(input_ids=torch.tensor([[1, 2, 3]]))


def test_the_attention_of_before_comes_back_also_after_an_error() -> None:
    model = make("qwen3")
    with pytest.raises(ZeroDivisionError), tree_attention(model):
        _ = 1 / 0
    assert model.config._attn_implementation == "sdpa"


def test_flex_attention_has_no_dropout() -> None:
    plan = Forest.grow([(1, 2)]).over([0])
    call = attention_module.TreeCall(plan=plan, mode="flex")
    module, states = SimpleNamespace(layer_idx=0, config=SimpleNamespace()), torch.ones(1, 2, 2, 4)
    with pytest.raises(ValueError, match="no dropout"):
        tree_attention_forward(module, states, states, states, None, dropout=0.5, tree_call=call)


# ---- two processes ----


def test_two_ranks_of_fsdp_equal_rows(repository_root: Path) -> None:
    """Each rank has different trees; sharded gradients of the tree equal those of the rows, and
    those of one process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.models.fsdp_child"]
    ranks = [
        subprocess.Popen(command, cwd=repository_root, env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=100) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
