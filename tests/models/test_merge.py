"""A merge of adapters: the sum in float64, rounded once; anything but W + s B A is refused."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.errors import ConfigError
from composer_replication.models.load_student import Student
from composer_replication.models.merge import MAX_DRIFT, merge_adapters


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
    merged = merge_adapters(student)
    assert merged.num_merged == len(layers) == 14 and 0 <= merged.drift <= MAX_DRIFT[dtype]
    for name, weight in wanted.items():
        assert torch.equal(merged.model.get_submodule(name).weight, weight), name
    assert not [n for n, _ in merged.model.named_parameters() if "lora" in n or "base_layer" in n]


def test_what_is_not_a_plain_adapter_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="not W \\+ s B A"):
        merge_adapters(adapted(use_dora=True))


def test_a_merge_that_says_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_DRIFT, torch.float32, -1.0)
    with pytest.raises(ConfigError, match="log-probs differ"):
        merge_adapters(adapted())
