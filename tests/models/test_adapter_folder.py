"""A LoRA adapter's folder as the student: it goes on from the adapter, and nothing of the folder is
run or guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.adapter_folder import ADAPTER, base_of, with_adapter
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.merge import merge_adapters
from composer_replication.models.pretrained_folder import save_student
from composer_replication.tokens.hf import load_tokenizer, student_tokenizer
from composer_replication.training.forwards.reference import averaged_reference, frozen_reference
from tests.cli.test_template_refused import LOSES_CALLS
from tests.cli.test_template_refused import save_student as save_base
from tests.tokens.students import tokenizer_for

pytestmark = pytest.mark.train

IDS = torch.arange(1, 9)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits[0]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_base(tmp_path / "base", tokenizer_for("chatml-tools"), template=LOSES_CALLS)


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """An adapter of rank 2 that changes the base, as `export --adapter` and checkpoints hold it."""
    settings = StudentSettings(model=str(base), lora=LoraSettings(rank=2, alpha=6))
    student = load_student(settings, tokenizer=load_tokenizer(str(base)), seed=1)
    with torch.no_grad():
        for name, weight in student.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(3))
    save_student(student, tmp_path / "adapter")
    return tmp_path / "adapter"


def load(adapter: Path, **fields: Any) -> Student:
    settings = StudentSettings(model=str(adapter), **fields)
    return load_student(settings, tokenizer=student_tokenizer(settings), seed=5)


def edit(adapter: Path, **fields: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), "utf-8")


def test_it_goes_on_from_the_adapter_with_its_rank_and_alpha(adapter: Path, base: Path) -> None:
    student = load(adapter)
    plain = load_student(
        StudentSettings(model=str(base)), tokenizer=student.tokenizer, seed=1
    ).model
    assert student.lora and student.began_as_adapter
    config = student.model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (2, 6)
    assert with_adapter(StudentSettings(model=str(adapter))).lora == LoraSettings(rank=2, alpha=6)
    trained = {n for n, p in student.model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert (logits(student.model) - logits(plain)).abs().max() > 0.1
    again = load(adapter, lora=LoraSettings(rank=2, alpha=6))
    assert torch.equal(logits(again.model), logits(student.model))
    before = logits(student.model)
    assert torch.allclose(
        logits(merge_adapters(student, texts=[list(range(1, 9))]).model), before, atol=1e-4
    )


def test_the_frozen_model_is_base_and_adapter_as_loaded(adapter: Path) -> None:
    student = load(adapter)
    start = logits(student.model)
    frozen, averaged = frozen_reference(student), averaged_reference(student, ema=0.5)
    with torch.no_grad():
        for weight in student.model.parameters():
            if weight.requires_grad:
                weight.add_(0.5)
    assert not torch.allclose(logits(student.model), start, atol=1e-2)
    for reference in (frozen, averaged):
        with reference.scoring() as model:
            assert torch.allclose(logits(model), start, atol=1e-5)
    assert not any(p.requires_grad for p in frozen.model.parameters())
    assert any(p.requires_grad for p in student.model.parameters())
    base_weights = {id(p) for n, p in student.model.named_parameters() if "lora_" not in n}
    assert base_weights <= {id(p) for p in frozen.model.parameters()}


@pytest.mark.parametrize("lora", [LoraSettings(rank=4, alpha=6), LoraSettings(rank=2)])
def test_settings_that_contradict_the_adapter_are_refused(
    adapter: Path, lora: LoraSettings
) -> None:
    with pytest.raises(ConfigError, match="the adapter rank 2 and alpha 6"):
        load(adapter, lora=lora)


def test_the_base_may_be_given_and_is_asked_for_if_it_is_not_there(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    there = logits(load(adapter).model)
    moved = base.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"the base of the adapter.*give the base model"):
        load(adapter)
    assert torch.equal(logits(load(adapter, base=str(moved)).model), there)
    edit(adapter, base_model_name_or_path=None)
    with pytest.raises(ConfigError, match=r"is not named.*student\.base"):
        base_of(StudentSettings(model=str(adapter)))
    edit(adapter, base_model_name_or_path="../moved")
    assert torch.equal(logits(load(adapter).model), there)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"use_dora": True}, "use_dora = True"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_config"),
        ({"lora_alpha": 0.5}, "no whole number"),
    ],
)
def test_what_is_no_plain_lora_is_refused(
    adapter: Path, fields: dict[str, Any], problem: str
) -> None:
    edit(adapter, **fields)
    with pytest.raises(ConfigError, match=problem):
        load(adapter)


def test_a_pickled_adapter_is_not_read(adapter: Path) -> None:
    (adapter / ADAPTER).rename(adapter / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"no adapter_model\.safetensors; .* is a pickle"):
        load(adapter)


def test_an_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_for("chatml-tools")
    other = save_base(tmp_path / "other", tokenizer, template=LOSES_CALLS)
    config = json.loads((other / "config.json").read_text("utf-8"))
    LlamaForCausalLM(LlamaConfig(**config | {"hidden_size": 32})).save_pretrained(other)
    with pytest.raises(ValueError, match="the adapter is of another model: size mismatch"):
        load(adapter, base=str(other))
