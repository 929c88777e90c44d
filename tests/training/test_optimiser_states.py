"""The states of the optimiser in a checkpoint: AdamW's, and those in 8 bits of a stand-in for
bitsandbytes' (with itself: tests/peers/test_bitsandbytes.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from composer_replication.core.errors import DataError, MissingExtraError
from composer_replication.training.run.checkpoint import load_tensors, save_checkpoint
from composer_replication.training.run.optimiser import make_optimiser
from tests.training.small_student import make_config, make_run, make_student


class In8Bits(torch.optim.Optimizer):
    """States of bitsandbytes' shapes and kinds: an int, codes, tables that all parameters share."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def fill(self) -> None:
        codes, parameters = torch.linspace(-1, 1, 256), self.param_groups[0]["params"]
        for number, parameter in enumerate(parameters):
            blocks = -(-parameter.numel() // 256)
            self.state[parameter] = {
                "step": 3 + number,
                "state1": torch.randint(0, 256, parameter.shape, dtype=torch.uint8),
                "state2": torch.randint(0, 256, parameter.shape, dtype=torch.uint8),
                "qmap1": codes,
                "qmap2": codes,
                "absmax1": torch.rand(blocks),
                "absmax2": torch.rand(blocks),
            }


def saved(folder: Path, optimiser: torch.optim.Optimizer, student: Any) -> Path:
    run = make_run(folder, make_config())
    return save_checkpoint(run, 1, student=student, optimiser=optimiser, state={}, keep=1)


def test_states_in_8_bits_come_back(tmp_path: Path) -> None:
    student = make_student()
    optimiser, again = (In8Bits(student.model.parameters()) for _ in range(2))
    optimiser.fill()
    load_tensors(saved(tmp_path, optimiser, student), student=student, optimiser=again)
    assert again.state.keys() == optimiser.state.keys()
    for parameter, wanted in optimiser.state.items():
        found = again.state[parameter]
        assert found.keys() == wanted.keys()
        assert type(found["step"]) is int and found["step"] == wanted["step"]
        for name, value in wanted.items():
            if isinstance(value, Tensor):
                assert torch.equal(found[name], value) and found[name].dtype == value.dtype


def test_states_of_the_other_optimiser_are_refused(tmp_path: Path) -> None:
    student = make_student()
    adamw = make_optimiser(student.model, make_config().train)
    for parameter in student.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    adamw.step()
    in_8_bits = In8Bits(student.model.parameters())
    in_8_bits.fill()
    for number, (of, into) in enumerate(((adamw, in_8_bits), (in_8_bits, adamw))):
        folder = saved(tmp_path / str(number), of, student)
        with pytest.raises(DataError, match="of another model or optimiser"):
            load_tensors(folder, student=student, optimiser=into)


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    student = make_student()
    optimiser = In8Bits(student.model.parameters())
    optimiser.fill()
    first = next(iter(optimiser.state.values()))
    first["state2"] = first["state2"][:1].clone()
    with pytest.raises(DataError, match="state2 does not fit"):
        load_tensors(saved(tmp_path, optimiser, student), student=student, optimiser=optimiser)


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    settings = make_config(optimiser="adamw_8bit").train
    with pytest.raises(MissingExtraError, match="bitsandbytes") as caught:
        make_optimiser(make_student().model, settings)
    assert "composer-replication[qlora]" in str(caught.value.fix)
    assert type(make_optimiser(make_student().model, make_config().train)) is torch.optim.AdamW
