"""The head of a model as one matrix: post-processing by family, LoRA on it, shards of it; and the
refusals."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

from composer_replication.core.errors import ConfigError
from composer_replication.losses.fused import fused_logprobs
from composer_replication.losses.policy import token_logprobs
from composer_replication.models.forward import head_of, project


class Wrapped(nn.Module):
    """The least that `head_of` asks of a model."""

    def __init__(self, *, bias: bool = False, **config: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lm_head: Any = nn.Linear(6, 11, bias=bias)
        self.text = SimpleNamespace(**config)
        self.config = SimpleNamespace(get_text_config=lambda: self.text)

    def get_output_embeddings(self) -> Any:
        return self.lm_head


HIDDEN_ND = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("config", "expected"), [
    ({}, lambda z: z),
    ({"logits_scaling": 8.0}, lambda z: z / 8.0),
    ({"logit_scale": 0.25}, lambda z: z * 0.25),
    ({"final_logit_softcapping": 2.0}, lambda z: torch.tanh(z / 2.0) * 2.0),
    ({"final_logit_softcapping": None, "logit_scale": None}, lambda z: z),
])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_what_families_do_behind_the_head(
    config: dict[str, Any], expected: Any, bias: bool
) -> None:
    model = Wrapped(bias=bias, **config)
    expected_NV = expected(model.lm_head(HIDDEN_ND))
    ids_N = torch.arange(5)
    assert torch.allclose(project(model, HIDDEN_ND), expected_NV, rtol=1e-5, atol=1e-6)
    assert torch.allclose(
        fused_logprobs(HIDDEN_ND, head_of(model), ids_N),
        token_logprobs(expected_NV, ids_N),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_projection_is_float32_also_from_bfloat16_and_under_autocast() -> None:
    model = Wrapped().bfloat16()
    hidden_ND = HIDDEN_ND.bfloat16()
    expected_NV = hidden_ND.float() @ model.lm_head.weight.float().t()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(project(model, hidden_ND), expected_NV)
    assert torch.equal(project(model, hidden_ND), expected_NV)
    assert project(model.double(), hidden_ND.double()).dtype == torch.float64


def lora(**options: Any) -> Wrapped:
    """A model with LoRA on its head, B not 0 as it would be at the start."""
    model = Wrapped()
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["lm_head"], **options)
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def test_lora_on_the_head_is_its_effective_weight_and_gets_the_gradient() -> None:
    model = lora()
    ids_N = torch.arange(5)

    def grads(logp_N: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        (logp_N * torch.arange(1.0, 6.0)).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected_NV = model.lm_head(HIDDEN_ND)  # peft's own forward
    ours, theirs = (
        grads(f)
        for f in (
            fused_logprobs(HIDDEN_ND, head_of(model), ids_N),
            token_logprobs(expected_NV, ids_N),
        )
    )
    assert torch.allclose(project(model, HIDDEN_ND), expected_NV, rtol=1e-5, atol=1e-6)
    assert (
        ours.keys() == theirs.keys()
        and sum("lora_" in name for name in ours) == 2
        and not any("base_layer" in name for name in ours)
    )
    for name, grad in ours.items():
        assert float(grad.norm()) > 0 and torch.allclose(
            grad, theirs[name], rtol=1e-4, atol=1e-6
        ), name
    model.lm_head.enable_adapters(False)
    assert torch.equal(head_of(model).weight_VD, model.lm_head.base_layer.weight)
    model.lm_head.enable_adapters(True)
    merged_NV = project(model, HIDDEN_ND)
    model.lm_head.merge()
    assert torch.allclose(project(model, HIDDEN_ND), merged_NV, rtol=1e-5, atol=1e-5)


def test_a_head_that_is_trained_whole_beside_adapters_is_the_copy_that_is_trained() -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config

    sizes = {
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "head_dim": 8,
    }
    base = AutoModelForCausalLM.from_config(
        Qwen3Config(**sizes, num_key_value_heads=1, tie_word_embeddings=False)
    )
    model = peft.get_peft_model(
        base, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    )
    head = head_of(model)
    assert head.weight_VD.requires_grad
    with torch.no_grad():
        head.weight_VD.add_(1.0)
    ids_BT = torch.arange(4)[None]
    hidden_ND = model.get_base_model().model(input_ids=ids_BT).last_hidden_state[0]
    assert torch.allclose(
        project(model, hidden_ND), model(input_ids=ids_BT).logits[0], rtol=1e-4, atol=1e-4
    )
    with model.disable_adapter():
        assert not torch.equal(head_of(model).weight_VD, head.weight_VD)


@pytest.mark.parametrize(
    "options", [{"lora_dropout": 0.1}, {"use_dora": True}, {"lora_bias": True}]
)
def test_an_adapter_that_is_no_matrix_is_refused(options: dict[str, Any]) -> None:
    base = Wrapped(bias=True)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["lm_head"], **options), base)
    with pytest.raises(ConfigError, match="adapter"):
        head_of(base.train())


def test_another_kind_of_head_is_refused_by_name() -> None:
    model = Wrapped()
    model.lm_head = nn.Sequential(nn.Linear(6, 11))
    with pytest.raises(ConfigError, match="Sequential"):
        head_of(model)


def test_the_gradient_of_a_sharded_head_comes_back_to_the_shards(
    tmp_path: Path, repository_root: Path
) -> None:
    """Two ranks over gloo, each with half of the rows: the shards hold the mean of both ranks'
    gradients, as FSDP2's others do."""
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
    command = [sys.executable, "-m", "tests.models.sharded_child", str(tmp_path / "found.pt")]
    ranks = [
        subprocess.Popen(command, cwd=repository_root, env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    results = torch.load(tmp_path / "found.pt")
    model = Wrapped(bias=True)
    values_N = token_logprobs(model.lm_head(HIDDEN_ND[:4]), torch.arange(4))
    (values_N * torch.arange(1.0, 5.0)).sum().backward()
    assert results["sharded"] and torch.allclose(results["values"], values_N.detach(), rtol=1e-5)
    for name in ("weight", "bias"):
        grad = getattr(model.lm_head, name).grad
        assert torch.allclose(results[name], grad / 2, rtol=1e-4, atol=1e-6), name
