"""A slow average of LoRA adapters as the hint's teacher: the model with the averaged A and B merged
in, on the student's own base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import DataError
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.batch import count, micro_batches
from composer_replication.training.forwards.reference import averaged_reference
from composer_replication.training.inputs import StepInputs
from composer_replication.training.loop import train
from composer_replication.training.run.checkpoint import load_extra
from composer_replication.training.run.state import Trainer
from composer_replication.training.step import accumulate, train_step
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
    small_model,
    start_trainer,
)
from tests.training.test_channels import by_hand
from tests.training.test_layouts import check_layouts
from tests.training.trees import sessions

EXAMPLES = [make_example(i, length=20 + 3 * i) for i in range(3)]
EMA = 0.25
HOW: dict[str, Any] = {"hint": {"teacher": "ema", "ema": EMA}, "learning_rate": 1e-2}
SCALE = 8 / 2


@pytest.fixture
def base(tmp_path: Path) -> Path:
    small_model().save_pretrained(str(tmp_path / "base"))
    return tmp_path / "base"


def lora_student(base: Path) -> Student:
    settings = StudentSettings(model=str(base), lora=LoraSettings(rank=2, alpha=8))
    student = load_student(settings, tokenizer=WordTokenizer(), seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:  # adapters that begin at zero would leave A untested
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return student


def adapters(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" in name}


def merged(averages: dict[str, Tensor]) -> Any:
    """A model without peft: each base weight plus s B A."""
    model = small_model()
    weights = dict(model.named_parameters())
    for name, down in averages.items():
        if "lora_A" in name:
            up = averages[name.replace("lora_A", "lora_B")]
            weight = weights[
                name.removeprefix("base_model.model.").partition(".lora_A")[0] + ".weight"
            ]
            with torch.no_grad():
                weight.add_(SCALE * (up.double() @ down.double()).to(weight.dtype))
    return model.eval()


def hint_loss(trainer: Trainer) -> float:
    return accumulate(
        trainer, micro_batches(EXAMPLES, (), micro_tokens=10_000), count(EXAMPLES), scales=None
    )["hint"].loss


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_the_teacher_is_the_model_with_the_averaged_adapters_merged_in(
    base: Path, layout: str
) -> None:
    trainer = start_trainer(make_config(**HOW, layout=layout), lora_student(base))
    expected = now = adapters(trainer.models.student.model)
    for step in range(3):
        train_step(trainer, StepInputs(EXAMPLES, []), step=step)
        now = adapters(trainer.models.student.model)
        expected = {name: (1 - EMA) * old + EMA * now[name] for name, old in expected.items()}
    adapters_of_teacher = adapters(trainer.models.references["hint"].model)
    assert adapters_of_teacher.keys() == expected.keys() and all(
        torch.allclose(adapters_of_teacher[name], mean, atol=1e-7)
        for name, mean in expected.items()
    )
    assert any(
        float((adapters_of_teacher[name] - now[name]).abs().max()) > 1e-3
        for name in adapters_of_teacher
    )
    loss, student, pairs = hint_loss(trainer), trainer.models.student.model, [make_pair(0)]
    assert loss == pytest.approx(
        by_hand(student, merged(expected), EXAMPLES, pairs)["hint"], rel=1e-4
    )
    # nor the start
    assert loss != pytest.approx(by_hand(student, small_model(), EXAMPLES, pairs)["hint"], rel=1e-2)


def test_the_base_is_shared_and_neither_side_moves_it(base: Path) -> None:
    trainer = start_trainer(make_config(**HOW), lora_student(base))
    student, teacher = (
        dict(model.named_parameters())
        for model in (trainer.models.student.model, trainer.models.references["hint"].model)
    )
    before = {name: p.detach().clone() for name, p in student.items() if "lora_" not in name}
    train_step(trainer, StepInputs(EXAMPLES, []), step=0)
    for name, parameter in student.items():
        assert (teacher[name] is parameter) is ("lora_" not in name)
        assert not teacher[name].requires_grad and teacher[name].grad is None
    assert all(torch.equal(student[name], start) for name, start in before.items())
    assert trainer.models.student.num_trainable == sum(
        p.numel() for name, p in student.items() if "lora_" in name
    )
    assert (
        trainer.models.student.model.training
        and not trainer.models.references["hint"].model.training
    )


def test_the_average_of_adapters_in_bfloat16_is_kept_in_float32(base: Path) -> None:
    """peft makes adapters in float32; a model that was cast as a whole has others, and the base is
    unchanged."""
    student = lora_student(base)
    student.model.bfloat16()
    teacher = averaged_reference(student, ema=EMA)
    assert {p.dtype for p in teacher.moving.values()} == {torch.float32} and len(
        teacher.moving
    ) == len(adapters(student.model))
    assert {
        p.dtype for name, p in teacher.model.named_parameters() if name not in teacher.moving
    } == {torch.bfloat16}


def test_both_layouts_agree(base: Path) -> None:
    def student() -> Student:
        lora = lora_student(base)
        lora.model.double()
        return lora

    check_layouts(student, sessions(2, 3), hint={"weight": 1.0, "teacher": "ema"}, within=1e-5)


def test_a_resumed_run_is_taught_by_the_same_average(base: Path, tmp_path: Path) -> None:
    config = make_config(**HOW, steps=4, checkpoint_every=2)
    uninterrupted = make_run(tmp_path, config, name="whole")
    train(config, student=lora_student(base), examples=EXAMPLES, run=uninterrupted)
    cut = make_run(tmp_path, config, name="cut")

    def interrupt(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, student=lora_student(base), examples=EXAMPLES, run=cut, on_step=interrupt)
    train(config, student=lora_student(base), examples=EXAMPLES, run=cut, resume=True)
    losses = [
        [step_metrics["hint/loss"] for step_metrics in run.metrics()]
        for run in (uninterrupted, cut)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    ends = [load_extra(run.checkpoint(4)) for run in (uninterrupted, cut)]
    assert ends[0].keys() == ends[1].keys() and all("lora_" in name for name in ends[0])
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    with pytest.raises(DataError, match="slow average"):
        start_trainer(config, lora_student(base)).models.load_extra_tensors({})
