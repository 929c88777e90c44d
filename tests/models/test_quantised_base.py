"""A base in 4 bits: what is refused, and what is counted. With bitsandbytes itself:
tests/peers/test_bitsandbytes.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from composer_replication.core.config.student_settings import TINY, LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError, MissingExtraError
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.quantised_base import is_quantised, num_weights, quantisation
from tests.training.small_student import WordTokenizer, small_model


def settings(model: str, *, rank: int = 2) -> StudentSettings:
    return StudentSettings(model=model, load_in_4bit=True, lora=LoraSettings(rank=rank))


def test_without_adapters_it_is_refused(tmp_path: Path) -> None:
    small_model().save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="only adapters on them") as caught:
        load_student(settings(str(tmp_path), rank=0), tokenizer=WordTokenizer(), seed=0)
    assert caught.value.where == "student.load_in_4bit" and "lora.rank" in str(caught.value.fix)


@pytest.mark.parametrize("name", [TINY, "x.gguf"])
def test_a_model_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    path = name if name == TINY else str(tmp_path / name)
    if path != TINY:
        Path(path).write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="is not stored in 4 bits") as caught:
        quantisation(settings(path), path)
    assert caught.value.where == "student.load_in_4bit" and "folder" in str(caught.value.fix)


def test_without_bitsandbytes_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_model().save_pretrained(str(tmp_path))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtraError, match="bitsandbytes") as caught:
        load_student(settings(str(tmp_path)), tokenizer=WordTokenizer(), seed=0)
    assert "composer-replication[qlora]" in str(caught.value.fix)


def test_other_students_are_loaded_as_before() -> None:
    assert quantisation(StudentSettings(model="somebody/model"), "somebody/model") == {}


def test_weights_that_lie_two_in_a_byte_are_counted() -> None:
    """Packed as bitsandbytes packs them: half as many bytes, and the shape beside them."""
    model = nn.Linear(6, 4)
    assert not is_quantised(model)
    packed: Any = nn.Parameter(torch.zeros(12, 1, dtype=torch.uint8), requires_grad=False)
    packed.quant_state = SimpleNamespace(shape=torch.Size((4, 6)))
    model.weight = packed
    assert num_weights(packed) == 24 and is_quantised(model)
    student = Student(name="test", model=model, tokenizer=WordTokenizer(), lora=True)
    assert student.num_parameters == 28 and student.num_trainable == 4
