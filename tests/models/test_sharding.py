"""Models that cannot be sharded are refused by name; what is not sharded stays as it is. Sharded
ones: tests/training/test_fsdp.py."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from composer_replication.core.errors import ConfigError
from composer_replication.models.sharding import (
    Sharding,
    gathered,
    part_of,
    shard_model,
    unsharded,
    unsharded_head,
)
from tests.training.small_student import small_model

NEVER_ASKED = cast(Sharding, None)


def test_weights_beside_decoder_and_head_are_refused() -> None:
    """They would stay whole, and their gradients would be summed by nobody."""
    model = small_model()
    model.value_head = nn.Linear(32, 1)
    with pytest.raises(ConfigError, match=r"weights beside its decoder and its head: value_head"):
        shard_model(model, NEVER_ASKED)


def test_a_model_that_does_not_name_its_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = small_model()
    monkeypatch.setattr(model, "_no_split_modules", None)
    with pytest.raises(ConfigError, match="does not name its layers") as caught:
        shard_model(model, NEVER_ASKED)
    assert caught.value.where == "train.fsdp"


def test_one_process_has_nothing_to_shard() -> None:
    assert Sharding.over_ranks(torch.device("cpu")) is None
    model = small_model()
    weight = model.lm_head.weight
    assert unsharded(weight) is weight and part_of(weight, like=weight) is weight
    with unsharded_head(model):
        assert model.lm_head.weight is weight
    assert gathered({"w": weight}, keep=False) == {}
    assert torch.equal(gathered({"w": weight}, keep=True)["w"], weight)
