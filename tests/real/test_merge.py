"""The merge of a bfloat16 adapter on real weights (make real): a right one passes, a wrong one is
refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.evaluation import student_export
from composer_replication.models import merge as merge_module
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.merge import merge_adapters
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from tests.real.real_tokenizers import cache_folder

pytestmark = [pytest.mark.real, pytest.mark.train]


def adapted(*, size: float) -> tuple[Student, list[tuple[int, ...]]]:
    """SmolLM2 in bfloat16 with an adapter of rank 8, and a text for it."""
    weights = str(cache_folder() / "folders" / "smollm2")
    tokenizer = load_tokenizer(weights)
    settings: Any = {"model": weights, "dtype": "bfloat16", "lora": {"rank": 8}}
    student = load_student(StudentSettings(**settings), tokenizer=tokenizer, seed=0)
    torch.manual_seed(1)
    for name, parameter in student.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    renderer = Renderer.for_tokenizer(tokenizer, family="qwen3-2507")
    return student, [student_export._built_in_text(renderer)]


@pytest.mark.parametrize("size", [0.001, 0.015])
def test_a_right_merge_in_bfloat16_passes(size: float) -> None:
    """By the largest change of a log-prob on nonsense ids it was refused: .707 nats, where bfloat16
    against float32 of the same weights gave 1.197."""
    student, texts = adapted(size=size)
    merged = merge_adapters(student, texts=texts)
    assert merged.num_tokens > 100 and 0 < merged.mean_kl < 2 * merged.rounding_kl < 0.02
    assert (merged.adapter_kl > 4 * merged.mean_kl) == (size == 0.015)


def test_a_wrong_scaling_in_bfloat16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    student, texts = adapted(size=0.015)
    merge_layer = merge_module._merge

    def twice_as_much(name: str, layer: Any, **kwargs: Any) -> None:
        layer.scaling = {adapter: 2 * scale for adapter, scale in layer.scaling.items()}
        merge_layer(name, layer, **kwargs)

    monkeypatch.setattr(merge_module, "_merge", twice_as_much)
    with pytest.raises(ConfigError, match="where rounding explains"):
        merge_adapters(student, texts=texts)
