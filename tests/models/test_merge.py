"""A merge of adapters: the sum in float64, rounded once; anything but W + s B A is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.errors import ConfigError
from composer_replication.models import merge as merge_module
from composer_replication.models.load_student import Student
from composer_replication.models.merge import MAX_ROUNDINGS, merge_adapters

TEXTS = [[(7 * k + n) % 50 for k in range(36)] for n in (1, 4)]


def adapted(dtype: torch.dtype = torch.float32, *, size: float = 0.05, **more: Any) -> Student:
    """A small Qwen3 with a non-zero adapter."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    model: Any = Qwen3ForCausalLM(Qwen3Config(vocab_size=50, intermediate_size=32, **shape)).to(
        dtype
    )
    lora = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM", **more
        ),
    )
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    return Student(name="small", model=lora, tokenizer=None, lora=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merge_rounds_once(dtype: torch.dtype) -> None:
    student = adapted(dtype)
    layers = {n: m for n, m in student.model.named_modules() if hasattr(m, "lora_A")}
    wanted = {}
    for name, m in layers.items():
        update = 3.0 * m.lora_B["default"].weight.double() @ m.lora_A["default"].weight.double()
        wanted[name.removeprefix("base_model.model.")] = (m.base_layer.weight.double() + update).to(
            dtype
        )
    merged = merge_adapters(student, texts=TEXTS)
    assert merged.num_merged == len(layers) == 14 and merged.num_tokens == 72
    assert 0 <= merged.mean_kl <= MAX_ROUNDINGS * merged.rounding_kl and merged.rounding_kl > 0
    assert merged.adapter_kl > 100 * merged.mean_kl and merged.max_kl >= merged.mean_kl
    for name, weight in wanted.items():
        assert torch.equal(merged.model.get_submodule(name).weight, weight), name
    assert not [n for n, _ in merged.model.named_parameters() if "lora" in n or "base_layer" in n]


def test_what_is_not_a_plain_adapter_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="not W \\+ s B A"):
        merge_adapters(adapted(use_dora=True), texts=TEXTS)


def twice_as_much(layers: list[Any]) -> None:
    for layer in layers:
        layer.scaling = {name: 2 * scale for name, scale in layer.scaling.items()}


def one_forgotten(layers: list[Any]) -> None:
    torch.nn.init.zeros_(layers[3].lora_B["default"].weight)


def transposed(layers: list[Any]) -> None:
    for layer in layers:
        layer.fan_in_fan_out = layer.base_layer.weight.shape[0] == layer.base_layer.weight.shape[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", [twice_as_much, one_forgotten, transposed])
def test_a_merge_that_says_something_else_is_refused(
    fault: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is merged is not what the layers compute: the log-probs before were others."""
    student, merge_layer, waiting = adapted(dtype, size=0.3), merge_module._merge, True

    def wrong(name: str, layer: Any, **options: Any) -> None:
        nonlocal waiting
        if waiting:
            fault([m for m in student.model.modules() if hasattr(m, "lora_A")])
            waiting = False
        merge_layer(name, layer, **options)

    monkeypatch.setattr(merge_module, "_merge", wrong)
    with pytest.raises(ConfigError, match="where rounding explains") as caught:
        merge_adapters(student, texts=TEXTS, otherwise="use it unmerged")
    assert caught.value.fix == "use it unmerged"


def test_the_last_bits_are_turned_back() -> None:
    weights = [torch.randn(40, 30), torch.randn(40, 30).bfloat16()]
    before = [weight.clone() for weight in weights]
    with merge_module._last_bits_turned(weights):
        for weight, old in zip(weights, before, strict=True):
            changed = weight != old
            assert 0.05 < changed.float().mean() < 0.12
            step = (weight - old)[changed].abs() / old[changed].abs()
            assert step.max() <= torch.finfo(weight.dtype).eps
    assert all(map(torch.equal, weights, before))


def test_a_base_in_4_bits_is_de_quantised_first() -> None:
    """A stand-in for its layers: codes in the weight's place until the model is de-quantised."""
    student = adapted()
    base = student.model.get_base_model()
    layer = base.model.layers[0].mlp.down_proj.base_layer
    codes: Any = layer.weight
    codes.quant_state = SimpleNamespace(shape=codes.shape)
    weights = torch.nn.Parameter(codes.detach() + 1e-9, requires_grad=False)
    base.dequantize = lambda: setattr(layer, "weight", weights)
    merged = merge_adapters(student, texts=TEXTS)
    assert merged.dequantised and merged.model.model.layers[0].mlp.down_proj.weight is weights
    assert not merge_adapters(adapted(), texts=TEXTS).dequantised
