"""A base in 4 bits and optimiser states in 8 bits, by bitsandbytes if it is installed (`make
peers`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from composer_replication.core.checkpoints import OPTIMISER
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.rundir import RunDir
from composer_replication.models import lora_linear
from composer_replication.models.forward import final_hidden
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.merge import merge_adapters
from composer_replication.models.pretrained_folder import load_weights, save_student, weights_sha256
from composer_replication.training.forwards.reference import averaged_reference, frozen_reference
from composer_replication.training.loop import train as run_training
from tests.models.tree_models import gap, make
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
)
from tests.training.trees import outcome, sessions, trainer_of

pytestmark = pytest.mark.train
IDS_BT = torch.arange(60).view(3, 20) * 7 % 40
DATA = sessions(4, 5)
EXAMPLES = [make_example(number, hints=1 + number % 2) for number in range(6)]
PAIRS = [make_pair(0), make_pair(1)]


@pytest.fixture(autouse=True)
def needs_bitsandbytes() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed: `make peers` runs this test")


def in_4_bits(folder: Path, *, dtype: str = "float32", size: float = 0.3) -> Student:
    """A tiny student in 4 bits with adapters that matter."""
    if not (folder / "config.json").exists():
        make("qwen3", hidden_size=64, intermediate_size=128, head_dim=16).save_pretrained(
            str(folder)
        )
    settings = StudentSettings.model_validate(
        {"model": str(folder), "dtype": dtype, "load_in_4bit": True, "lora": {"rank": 2}}
    )
    student = load_student(settings, tokenizer=WordTokenizer(), seed=3)
    torch.manual_seed(0)
    for name, parameter in student.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    return student


def test_the_linear_layers_are_in_4_bits(tmp_path: Path) -> None:
    student = in_4_bits(tmp_path)
    layers = student.model.get_decoder().layers
    assert type(layers[0].mlp.down_proj).__name__ == "LoraLinear4bit"
    weight = layers[0].mlp.down_proj.base_layer.weight
    assert weight.dtype == torch.uint8 and weight.numel() == 64 * 128 / 2
    assert student.model.get_output_embeddings().weight.dtype == torch.float32
    plain = make("qwen3", hidden_size=64, intermediate_size=128, head_dim=16)
    num_adapter = sum(p.numel() for n, p in student.model.named_parameters() if "lora_" in n)
    assert student.num_parameters - num_adapter == sum(p.numel() for p in plain.parameters())
    assert student.num_trainable == num_adapter
    assert weights_sha256(in_4_bits(tmp_path).model) == weights_sha256(student.model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_layers_compute_what_peft_s_do(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walked() -> list[Tensor]:
        model = in_4_bits(tmp_path, dtype=dtype).model.train()
        hidden_BTD = final_hidden(model, IDS_BT)
        trained = [p for p in model.parameters() if p.requires_grad]
        return [hidden_BTD.detach(), *torch.autograd.grad(hidden_BTD.float().cos().sum(), trained)]

    ours = walked()
    monkeypatch.setattr(lora_linear, "keep_inputs_once", lambda model: 0)
    theirs = walked()
    assert torch.equal(ours[0], theirs[0])
    assert gap(ours[1:], theirs[1:]) <= 1e-6 and all(gradient.any() for gradient in ours)


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_a_step_that_keeps_less_is_the_plain_step(layout: str, tmp_path: Path) -> None:
    def gradients(**train: Any) -> list[Tensor]:
        trainer = trainer_of(in_4_bits(tmp_path), layout, **train)
        return outcome(trainer, DATA)[1]

    less = gradients(checkpoint="layers", tile=7, offload=True)
    assert gap(less, gradients()) <= 1e-6


def test_references_share_the_base(tmp_path: Path) -> None:
    student = in_4_bits(tmp_path)
    averaged = averaged_reference(student, ema=0.5)
    base = {id(p) for n, p in student.model.named_parameters() if "lora_" not in n}
    assert {id(p) for n, p in averaged.model.named_parameters() if "lora_" not in n} == base
    with averaged.scoring() as model, torch.no_grad():
        averaged_BTD = final_hidden(model, IDS_BT)
    wanted_BTD = final_hidden(student.model.eval(), IDS_BT)
    assert torch.equal(averaged_BTD, wanted_BTD)
    assert torch.equal(final_hidden(student.model.train(), IDS_BT), wanted_BTD)
    with frozen_reference(student).scoring() as model, torch.no_grad():
        assert not torch.equal(final_hidden(model, IDS_BT), wanted_BTD)


def test_a_checkpoint_holds_the_adapter(tmp_path: Path) -> None:
    student = in_4_bits(tmp_path / "base")
    save_student(student, tmp_path / "saved")
    again = in_4_bits(tmp_path / "base", size=0.1)
    load_weights(again, tmp_path / "saved")
    assert weights_sha256(again.model) == weights_sha256(student.model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_merge_is_into_the_weights_that_were_trained_on(dtype: str, tmp_path: Path) -> None:
    student = in_4_bits(tmp_path / "base", dtype=dtype)
    before_BTD = final_hidden(student.model.eval(), IDS_BT).detach()
    merged = merge_adapters(student, texts=[IDS_BT[0].tolist(), IDS_BT[1].tolist()])
    assert merged.dequantised and merged.num_merged == 14
    merged.model.save_pretrained(str(tmp_path / "merged"))
    plain: Any = AutoModelForCausalLM.from_pretrained(str(tmp_path / "merged"))
    assert not hasattr(plain.config, "quantization_config")
    assert {str(p.dtype) for p in plain.parameters()} == {f"torch.{dtype}"}
    after_BTD = final_hidden(plain.eval(), IDS_BT).detach()
    within = {"float32": 1e-4, "bfloat16": 0.15}[dtype]
    assert gap([after_BTD], [before_BTD]) <= within
    # into the original weights it would be another model
    original: Any = AutoModelForCausalLM.from_pretrained(str(tmp_path / "base"))
    weights = (m.get_decoder().layers[0].mlp.down_proj.weight.float() for m in (plain, original))
    assert gap([next(weights)], [next(weights)]) > 0.01


def test_two_steps_train_the_adapters_alone(tmp_path: Path) -> None:
    config = make_config(steps=2, hint={"teacher": "live"}, preference={"weight": 1.0})
    student, run = in_4_bits(tmp_path / "base"), make_run(tmp_path / "run", config)
    before = {name: p.detach().clone() for name, p in student.model.named_parameters()}
    run_training(config, student=student, examples=EXAMPLES, pairs=PAIRS, run=run)
    moved = {n for n, p in student.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {name for name in before if "lora_" in name}
    assert len(run.metrics()) == 2 and all(line["hint/tokens"] for line in run.metrics())


def make_wide(seed: int = 0) -> Student:
    """A student whose matrices are large enough for states in 8 bits."""
    model = make("qwen3", seed=seed, hidden_size=64, intermediate_size=128)
    return Student(name="test", model=model, tokenizer=WordTokenizer())


def test_states_in_8_bits_train_and_resume_bit_by_bit(tmp_path: Path) -> None:
    config = make_config(steps=4, checkpoint_every=2, optimiser="adamw_8bit", hint={"weight": 0.0})

    def run(folder: str, *, resume: bool = False, steps: int = 4) -> tuple[list[Any], list[Tensor]]:
        student, name = make_wide(), tmp_path / folder
        run = RunDir(name / "runs" / "r") if resume else make_run(name, config, name="r")
        more: dict[str, Any] = {"resume": True, "resume_step": steps} if resume else {}
        run_training(config, student=student, examples=EXAMPLES, run=run, **more)
        losses = [line["loss"] for line in run.metrics()]
        return losses, [p.detach() for p in student.model.parameters()]

    losses, weights = run("whole")
    states = load_file(RunDir(tmp_path / "whole" / "runs" / "r").checkpoints()[-1][1] / OPTIMISER)
    in_8_bits = [name for name, state in states.items() if state.dtype == torch.uint8]
    num_large = sum(p.numel() >= 4096 for p in weights)
    assert len(in_8_bits) == 2 * num_large > 0
    again, weights_again = run("whole", resume=True, steps=2)
    assert again == losses and len(losses) == 4
    assert all(torch.equal(a, b) for a, b in zip(weights_again, weights, strict=True))
    # and it trains as AdamW does, up to the rounding of its states
    plain, start = make_wide(), list(make_wide().model.parameters())
    config = make_config(steps=4, hint={"weight": 0.0})
    run_training(config, student=plain, examples=EXAMPLES, run=make_run(tmp_path / "plain", config))
    moves = [
        torch.cat([(w - s).flatten() for w, s in zip(trained, start, strict=True)])
        for trained in (weights, [p.detach() for p in plain.model.parameters()])
    ]
    assert torch.nn.functional.cosine_similarity(*moves, dim=0) > 0.9
