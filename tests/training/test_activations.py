"""A training pass that keeps less in memory is the same pass: values and gradients of every
channel, in both layouts, for all weights and for LoRA, with and without dropout."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.activations import check_tiles, checkpoint_layers, tiled
from composer_replication.models.forward import final_hidden
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.lora_linear import keep_inputs_once
from composer_replication.models.tree_attention import KeyValues
from composer_replication.tokens.batch import collate
from composer_replication.training.forwards import passes as passes_module
from composer_replication.training.forwards.passes import RequiredForwards, run_passes
from composer_replication.training.loop import train as run_training
from composer_replication.training.run.health import ChannelStep
from composer_replication.training.run.state import Trainer
from tests.models.tree_models import gap, make
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
    small_model,
)
from tests.training.trees import outcome, sessions, trainer_of

LAYOUTS = pytest.mark.parametrize("layout", ["tree", "rows"])
LESS: dict[str, dict[str, Any]] = {
    "checkpoint": {"checkpoint": "layers"},
    "tile": {"tile": 7},
    "checkpoint and tile": {"checkpoint": "layers", "tile": 7},
    "offload": {"checkpoint": "layers", "offload": True},
    "all": {"checkpoint": "layers", "tile": 7, "offload": True},
}
DATA = sessions(4, 5)
EXAMPLES = [make_example(number, hints=1 + number % 2) for number in range(6)]
PAIRS = [make_pair(0), make_pair(1)]


def all_weights(**options: Any) -> Student:
    return Student(name="test", model=make("qwen3", **options).double(), tokenizer=WordTokenizer())


def with_adapters(folder: Path, *, dropout: float = 0.0) -> Student:
    small_model(dropout=dropout).save_pretrained(str(folder))
    settings = StudentSettings(model=str(folder), lora=LoraSettings(rank=2, alpha=8))
    student = load_student(settings, tokenizer=WordTokenizer(), seed=3)
    return dataclasses.replace(student, model=student.model.double())


def student_of(kind: str, folder: Path, *, dropout: float = 0.0) -> Student:
    if kind == "lora":
        return with_adapters(folder, dropout=dropout)
    return all_weights(attention_dropout=dropout)


def seeded_outcome(trainer: Trainer) -> tuple[dict[Channel, ChannelStep], list[Tensor]]:
    trainer.seed(0)
    return outcome(trainer, DATA)


def kept_bytes(trainer: Trainer) -> int:
    """The bytes that the forwards of a step keep for their backward, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in trainer.models.student.model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = collate(*DATA, pad_id=0)
    required = RequiredForwards.of(trainer.settings, batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forwards = run_passes(trainer.models, batch, required)
    assert forwards.hidden[0].requires_grad
    return sum(storages.values())


@LAYOUTS
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["all weights", "lora"])
@pytest.mark.parametrize("less", LESS)
def test_values_and_gradients_are_the_plain_step_s(
    less: str, kind: str, dropout: float, layout: str, tmp_path: Path
) -> None:
    def trainer(**train: Any) -> Trainer:
        return trainer_of(student_of(kind, tmp_path, dropout=dropout), layout, **train)

    (losses, gradients), (plain, wanted) = (
        seeded_outcome(trainer(**settings)) for settings in (LESS[less], {})
    )
    for name in CHANNELS:
        assert losses[name].tokens == plain[name].tokens > 0
        assert losses[name].loss == pytest.approx(plain[name].loss, rel=1e-12)
        assert losses[name].grad_norm == pytest.approx(plain[name].grad_norm, rel=1e-9)
    assert gap(gradients, wanted) <= 1e-12
    assert all(gradient.any() for gradient in gradients)


@LAYOUTS
def test_a_whole_run_is_the_plain_run(layout: str, tmp_path: Path) -> None:
    """With the steps that only measure, references that are copies, a slow average, checkpoints of
    the run and the token probe."""

    def run(name: str, **train: Any) -> tuple[list[dict[str, Any]], list[Tensor]]:
        config = make_config(
            layout=layout,
            **{"hint": {"teacher": "ema"}, "preference": {"weight": 1.0}, "grad_every": 2, **train},
        )
        student, folder = all_weights(), make_run(tmp_path / name, config)
        run_training(config, student=student, examples=EXAMPLES, pairs=PAIRS, run=folder)
        weights = [p.detach() for p in student.model.parameters()]
        assert all("forward" not in module.__dict__ for module in student.model.modules())
        return folder.metrics(), weights

    (metrics, weights), (plain, wanted) = run("all", **LESS["all"]), run("plain")
    assert len(metrics) == len(plain) == 4
    for ours, theirs in zip(metrics, plain, strict=True):
        numbers, expected = (
            {key: value for key, value in line.items() if isinstance(value, float)}
            for line in ({**ours, "step_s": None}, {**theirs, "step_s": None})
        )
        assert numbers == pytest.approx(expected, rel=1e-6)
        assert {"loss", "lm_ce/loss", "hint/loss", "preference/grad_norm"} <= numbers.keys()
    assert "hint/grad_norm_parameters" in plain[0]
    assert gap(weights, wanted) <= 1e-6


@pytest.mark.parametrize(
    ("family", "within"),
    [
        ("llama", 1e-12),
        ("mistral", 1e-12),
        ("gemma2", 2e-5),  # its attention is computed in float32
        ("gemma3", 1e-7),  # its norms
        ("qwen3_moe", 2e-5),  # its experts have no float64
    ],
)
def test_other_families(family: str, within: float) -> None:
    """Windows, soft caps, norms behind the feed-forward, experts."""
    dtype = torch.float64 if within < 1e-5 else torch.float32

    def gradients(**train: Any) -> list[Tensor]:
        student = Student(name="test", model=make(family).to(dtype), tokenizer=WordTokenizer())
        return seeded_outcome(trainer_of(student, "tree", **train))[1]

    assert gap(gradients(**LESS["all"]), gradients()) <= within


@LAYOUTS
@pytest.mark.parametrize("kind", ["all weights", "lora"])
def test_checkpointed_layers_keep_their_inputs_alone(
    kind: str, layout: str, tmp_path: Path
) -> None:
    plain, checkpointed = (
        kept_bytes(trainer_of(student_of(kind, tmp_path), layout, checkpoint=checkpoint))
        for checkpoint in ("none", "layers")
    )
    assert checkpointed < 0.35 * plain


def test_a_student_with_adapters_keeps_no_float32_copy(tmp_path: Path) -> None:
    small_model().save_pretrained(str(tmp_path))
    lora = LoraSettings(rank=2, alpha=8)
    settings = StudentSettings(model=str(tmp_path), lora=lora, dtype="bfloat16")
    model = load_student(settings, tokenizer=WordTokenizer(), seed=3).model
    kept: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        model(input_ids=torch.arange(24)[None])
    inner_size = model.config.intermediate_size
    precisions = [
        t.dtype for t in kept if t.shape[-1] == inner_size and t.numel() == 24 * inner_size
    ]
    assert len(precisions) >= 8 and set(precisions) == {torch.bfloat16}


@LAYOUTS
@pytest.mark.parametrize("tile", [0, 7])
def test_layer_inputs_wait_elsewhere(
    tile: int, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files stand for the host's memory: what a forward keeps is written there, and the gradients
    are computed from what is read back."""
    files: list[Path] = []

    def in_files(*, pin_memory: bool, device_type: str) -> Any:
        assert (pin_memory, device_type) == (False, "cpu")

        def write(tensor: Tensor) -> Path:
            files.append(tmp_path / str(len(files)))
            torch.save(tensor.clone(), files[-1])
            return files[-1]

        return torch.autograd.graph.saved_tensors_hooks(write, torch.load)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", in_files)
    less = {"checkpoint": "layers", "tile": tile}
    offloaded = trainer_of(all_weights(), layout, offload=True, **less)
    _, gradients = seeded_outcome(offloaded)
    _, wanted = seeded_outcome(trainer_of(all_weights(), layout, **less))
    assert gap(gradients, wanted) <= 1e-12
    # the layers' inputs are among the files, and no inner state
    files.clear()
    required = RequiredForwards.of(offloaded.settings, batch := collate(*DATA, pad_id=0))
    hidden = run_passes(offloaded.models, batch, required).hidden
    shapes = [tuple(torch.load(file).shape) for file in files]
    num_layers = len(offloaded.models.student.model.model.layers)
    for hidden_BTD in hidden:
        assert shapes.count(tuple(hidden_BTD.shape)) >= num_layers
    inner_size = offloaded.models.student.model.config.intermediate_size
    assert all(inner_size not in shape for shape in shapes)


def test_offload_without_checkpoints_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"every inner state.*set checkpoint = layers"):
        make_config(offload=True)


def test_keys_and_values_are_kept_up_to_the_last_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where layers are checkpointed, and no longer than the live teacher reads them."""
    kept: list[KeyValues] = []
    sizes: set[int] = set()

    class Recorded(KeyValues):
        def add(self, layer: int, key: Tensor, value: Tensor) -> None:
            super().add(layer, key, value)
            kept.append(self)
            sizes.update(
                t.untyped_storage().nbytes() // t[:, :, :1].nbytes for t in self.layers[layer]
            )

    monkeypatch.setattr(passes_module, "KeyValues", Recorded)
    examples, _ = DATA
    trainer = trainer_of(all_weights(), "tree", checkpoint="layers")
    seeded_outcome(trainer)
    assert sizes == {sum(max(view.at for view in example.hints) for example in examples)}
    assert not any(key_values.layers for key_values in kept)


def test_keys_and_values_for_the_hints_wait_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files stand for the host's memory: between writing and reading, no layer's keys are here."""
    files: list[Path] = []
    read: list[int] = []

    class Elsewhere(KeyValues):
        places: dict[int, Path]

        def add(self, layer: int, key: Tensor, value: Tensor) -> None:
            super().add(layer, key, value)
            if self.on_host:
                files.append(tmp_path / f"{len(files)}")
                torch.save(self.layers[layer], files[-1])
                empty = key.new_empty(0)
                self.layers[layer] = (empty, empty)
                self.places = {**getattr(self, "places", {}), layer: files[-1]}

        def of(self, layer: int, device: torch.device) -> tuple[Tensor, Tensor]:
            if self.on_host:
                self.layers[layer] = torch.load(self.places[layer])
                read.append(layer)
            return super().of(layer, device)

    monkeypatch.setattr(passes_module, "KeyValues", Elsewhere)
    less = {"checkpoint": "layers", "hint": {"teacher": "live"}}
    _, wanted = seeded_outcome(trainer_of(all_weights(), "tree", **less))
    assert not files
    offloaded = trainer_of(all_weights(), "tree", offload=True, **less)
    _, gradients = seeded_outcome(offloaded)
    assert gap(gradients, wanted) <= 1e-12
    num_layers = len(offloaded.models.student.model.model.layers)
    assert len(files) >= num_layers and set(read) == set(range(num_layers))


@LAYOUTS
def test_scoring_never_runs_a_layer_again(layout: str, tmp_path: Path) -> None:
    """Teacher, reference, and whatever else is scored: no checkpointed call, and the same mode
    afterwards."""
    trainer = trainer_of(
        student_of("lora", tmp_path), layout, checkpoint="layers", hint={"teacher": "live"}
    )
    model = trainer.models.student.model
    calls: list[bool] = []
    for layer in model.get_decoder().layers:
        run = layer._gradient_checkpointing_func
        layer._gradient_checkpointing_func = lambda *args, run=run: (
            calls.append(torch.is_grad_enabled()) or run(*args)
        )
    seeded_outcome(trainer)
    passes = {"tree": 1, "rows": 2}[layout]  # of the student, with a gradient
    assert calls == [True] * passes * len(model.get_decoder().layers)
    assert model.training


def adapted_model(*, dropout: float, peft_layers: bool = False) -> Any:
    """A tiny model under peft, in training mode; its feed-forwards have adapters with dropout."""
    import peft

    lora = peft.LoraConfig(
        r=2, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=dropout
    )
    model = peft.get_peft_model(make("qwen3").double(), lora).train()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter))
    if not peft_layers:
        keep_inputs_once(model)
    return model


@LAYOUTS
def test_a_feed_forward_sees_one_tile_at_a_time_and_runs_twice(layout: str) -> None:
    """Also where its layer is checkpointed, which runs again up to the feed-forward only."""
    trainer = trainer_of(all_weights(), layout, checkpoint="layers", tile=7, hint={"weight": 0.0})
    sizes: list[int] = []
    mlp = trainer.models.student.model.model.layers[0].mlp
    mlp.gate_proj.register_forward_pre_hook(
        lambda module, inputs: sizes.append(inputs[0].shape[:-1].numel())
    )
    trainer.seed(0)
    outcome(trainer, DATA)
    assert max(sizes) == 7
    batch = collate(*DATA, pad_id=0)
    required, calls = RequiredForwards.of(trainer.settings, batch), sum(sizes)
    hidden = run_passes(trainer.models, batch, required).hidden
    assert calls == 2 * sum(hidden_BTD.shape[:-1].numel() for hidden_BTD in hidden)


@LAYOUTS
@pytest.mark.parametrize("teacher", ["live", "frozen"])
def test_what_scores_sees_one_tile_at_a_time(teacher: str, layout: str, tmp_path: Path) -> None:
    """Teacher and reference without adapters, which are the student's own modules."""
    student = student_of("lora", tmp_path)
    trainer = trainer_of(student, layout, tile=7, hint={"teacher": teacher})
    scored: list[int] = []
    mlp = student.model.get_decoder().layers[1].mlp

    def record(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if not mlp.training:
            scored.append(inputs[0].shape[:-1].numel())

    mlp.gate_proj.register_forward_pre_hook(record)
    (losses, gradients) = seeded_outcome(trainer)
    assert max(scored) == 7
    again = trainer_of(student_of("lora", tmp_path), layout, hint={"teacher": teacher})
    plain, wanted = seeded_outcome(again)
    assert gap(gradients, wanted) <= 1e-12
    assert losses["hint"].loss == pytest.approx(plain["hint"].loss, rel=1e-12)


@LAYOUTS
def test_a_norm_sees_one_tile_at_a_time(layout: str) -> None:
    """Of the model's own width, and of a head's."""
    trainer = trainer_of(all_weights(), layout, tile=7, hint={"weight": 0.0})
    model = trainer.models.student.model
    sizes: list[int] = []
    for name in ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
        norm = model.model.layers[1].get_submodule(name)
        norm.forward = lambda x, run=norm.forward: sizes.append(x.numel()) or run(x)
    seeded_outcome(trainer)
    tile = 7 * model.config.hidden_size
    assert max(sizes) == tile and sizes.count(tile) > 0.8 * len(sizes)


def test_no_float32_of_a_norm_is_kept() -> None:
    """In bfloat16 a norm computes in float32."""
    model = make("qwen3").bfloat16()
    ids_BT = torch.arange(60).view(3, 20) % 40

    def num_kept(tile: int) -> int:
        kept: list[Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
        with tiled(model, tile=tile), hooks:
            final_hidden(model, ids_BT)
        is_state = [t.dtype == torch.float32 and t.numel() >= ids_BT.numel() * 16 for t in kept]
        return sum(is_state)

    num_norms = 2 * 4 + 1
    assert num_kept(0) >= num_norms
    assert num_kept(7) == 0


@pytest.mark.parametrize("peft_layers", [True, False])
def test_dropout_in_a_tile_is_that_of_its_forward(peft_layers: bool) -> None:
    model = adapted_model(dropout=0.5, peft_layers=peft_layers)
    mlp = model.get_decoder().layers[0].mlp
    x_BTD = torch.randn(2, 15, 32, dtype=torch.float64, requires_grad=True)
    weights = [x_BTD, *(p for p in mlp.parameters() if p.requires_grad)]

    def gradients(out_BTD: Tensor) -> list[Tensor]:
        torch.manual_seed(9)  # whatever is drawn between a forward and its backward
        drawn = torch.get_rng_state()
        found = torch.autograd.grad((out_BTD * out_BTD.detach().cos()).sum(), weights)
        assert torch.equal(torch.get_rng_state(), drawn)
        return [out_BTD.detach(), *found]

    torch.manual_seed(2)
    parts = x_BTD.reshape(1, 30, 32).split(7, dim=1)
    wanted = gradients(torch.cat([mlp(part) for part in parts], dim=1).view(2, 15, 32))
    torch.manual_seed(2)
    with tiled(model, tile=7):
        out_BTD = mlp(x_BTD)
    assert all(gap([a], [b]) <= 1e-12 for a, b in zip(gradients(out_BTD), wanted, strict=True))
    assert "forward" not in mlp.__dict__


def test_dropout_of_adapters_is_drawn_again_where_a_layer_runs_again() -> None:
    def gradients(**less: bool) -> list[Tensor]:
        model = adapted_model(dropout=0.3)
        if less:
            checkpoint_layers(model)
        torch.manual_seed(2)
        hidden_BTD = final_hidden(model, torch.arange(60).view(3, 20) % 40)
        torch.manual_seed(9)
        trained = [p for p in model.parameters() if p.requires_grad]
        return [hidden_BTD, *torch.autograd.grad(hidden_BTD.cos().sum(), trained)]

    assert gap(gradients(checkpoint=True), gradients()) <= 1e-12


def test_many_tiles_in_bfloat16_are_summed_in_float32() -> None:
    model = make("qwen3").bfloat16()
    mlp = model.model.layers[0].mlp
    x_BTD = torch.randn(1, 2000, 32).bfloat16()

    def gradients(tile: int) -> list[Tensor]:
        with tiled(model, tile=tile):
            return list(torch.autograd.grad(mlp(x_BTD).sum(), [*mlp.parameters()]))

    exact = make("qwen3").bfloat16().float()
    wanted = torch.autograd.grad(
        exact.model.layers[0].mlp(x_BTD.float()).sum(), [*exact.model.layers[0].mlp.parameters()]
    )
    for ours, whole, true in zip(gradients(1), gradients(0), wanted, strict=True):
        assert gap([ours], [true]) <= 1.5 * gap([whole], [true])


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral", "gemma2", "gemma3", "qwen3_moe"])
def test_families_whose_feed_forward_can_be_tiled(family: str) -> None:
    check_tiles(make(family))


def test_a_feed_forward_that_cannot_be_tiled_is_refused() -> None:
    mixing, other_name = make("qwen3"), make("qwen3")
    mlp = mixing.model.layers[1].mlp
    mlp.forward = lambda x, forward=mlp.forward: forward(x) + x.cumsum(dim=1)
    for layer in other_name.model.layers:
        layer.block, layer.mlp = layer.mlp, None
    for model, reason in (
        (mixing, "computes other values in tiles"),
        (make("gpt_oss"), "cannot run in tiles"),  # it returns a pair
        (other_name, "has no feed-forward of the name 'mlp'"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            check_tiles(model)
        assert caught.value.where == "train.tile" and caught.value.fix == "set train.tile = 0"
    assert "forward" in mlp.__dict__ and "forward" not in mixing.model.layers[0].mlp.__dict__


def test_layers_that_cannot_run_again_are_refused() -> None:
    class Plain(nn.Module):
        def gradient_checkpointing_enable(self, options: dict[str, Any]) -> None:
            raise ValueError(f"Plain is not compatible with gradient checkpointing\n{options}")

    for model in (Plain(), SimpleNamespace()):
        with pytest.raises(ConfigError, match="cannot run again") as caught:
            checkpoint_layers(model)
        assert caught.value.where == "train.checkpoint"
        assert caught.value.fix == 'set train.checkpoint = "none"'
