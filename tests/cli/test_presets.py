"""Presets of models and cards: each file is read, fits its card by the memory model, and trains on
random weights of its family at full width and two layers, or is built so on the meta device."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.cli import presets
from composer_replication.cli.presets import PRESETS, Preset, find_preset
from composer_replication.cli.problems import UsageError
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.load_student import Student, _with_lora
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.training.inputs import StepInputs
from composer_replication.training.memory.memory_model import StepSize, memory_need
from composer_replication.training.run.state import make_trainer
from composer_replication.training.step import train_step
from tests.cli.test_examples import logs_in, random_student
from tests.cli.workspace import recompose
from tests.training.small_student import WordTokenizer

pytestmark = pytest.mark.train
FSDP = "fsdp" in TrainSettings.model_fields
HERE = [name for name in PRESETS if FSDP or "8x" not in name]
TRAINED = ("qwen3-0.6b", "qwen3-1.7b")
"""The widths that a test can train; the others are built on the meta device."""
EXAMPLE = TrainingExample(
    id="e",
    session_id="s",
    ids=tuple(range(1, 25)),
    hints=(
        HintView(
            site_id="s:1", kind="bad_args", at=8, hint_ids=(40, 41), span=(9, 14),
            target_ids=(10, 11, 12, 13, 14),
        ),
    ),
    lm_spans=((2, 8), (16, 24)),
)  # fmt: skip


def wide_model(preset: Preset, *, vocab: int) -> Any:
    """Two layers of the preset's widths."""
    shape = preset.shape
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=2,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            tie_word_embeddings=shape.tied,
        )
    )


@pytest.mark.parametrize("name", HERE)
def test_init_writes_a_preset_with_what_it_needs(name: str, tmp_path: Path) -> None:
    short = name.removeprefix("qwen3-")
    assert recompose("init", "--from", short, cwd=tmp_path).code == 0
    text = (tmp_path / "recompose.toml").read_text("utf-8")
    preset = find_preset(short)
    assert tomllib.loads(text) == tomllib.loads(preset.toml)
    assert "not measured on a GPU; no run of it was made" in text
    assert f"{preset.need.total / 1e9:.1f} GB" in text and f"{preset.window:,} tokens" in text
    # the file is the one that the verbs read
    words = ("--memory-gb", str(preset.card_gb), "--cards", str(preset.cards))
    found = recompose("doctor", *words, "--json", cwd=tmp_path).value
    memory = found["memory"]
    assert memory["tokens"] == preset.config.build.max_tokens and memory["device"] == "cuda"
    assert memory["fits"] is True and memory["longest_window"] == preset.window


@pytest.mark.parametrize("name", HERE)
def test_a_preset_fits_its_card_with_a_tenth_to_spare(name: str) -> None:
    preset = find_preset(name)
    config = preset.config
    assert config.build.max_tokens == config.train.micro_tokens
    assert preset.need.total <= 0.9 * preset.card.usable
    assert preset.window > 1.1 * config.train.micro_tokens
    assert config.student.model.startswith(f"Qwen/Qwen3-{preset.size}")


@pytest.mark.parametrize("name", TRAINED)
def test_a_preset_takes_a_step_on_random_weights_of_its_width(name: str) -> None:
    preset = find_preset(name)
    config = preset.config
    torch.manual_seed(0)
    model = wide_model(preset, vocab=64).to(getattr(torch, config.student.dtype))
    lora = config.student.lora.rank > 0
    if lora:
        model = _with_lora(model, config.student, seed=0)
    student = Student(name="wide", model=model, tokenizer=WordTokenizer(), lora=lora)
    trainer = make_trainer(config, student=student, accelerator=Accelerator(cpu=True))
    metrics = train_step(trainer, StepInputs(examples=[EXAMPLE], pairs=[]), step=1)
    statuses = {k: metrics[f"{k}/status"] for k in ("lm_ce", "hint")}
    assert statuses == {"lm_ce": "active", "hint": "active"} and metrics["grad_norm"] > 0


@pytest.mark.parametrize("name", HERE)
def test_a_presets_own_file_goes_through_the_verbs(name: str, tmp_path: Path) -> None:
    """On narrow random weights: what it reads, builds and feeds."""
    preset, work = find_preset(name), tmp_path / "recompose"
    family = {"qwen3": "qwen3", "qwen3-2507": "qwen3_instruct_2507"}[preset.config.student.template]
    model = random_student(tmp_path / "student", family)
    logs_in(work)
    (tmp_path / "recompose.toml").write_text(preset.text(), "utf-8")
    shared = ["-o", str(work), "--student.model", str(model), "--student.load_in_4bit", "false"]
    assert recompose("build", *shared, cwd=tmp_path).code == 0
    cut = ["--train.steps", "1", "--json"]
    result = recompose("train", *shared, *cut, cwd=tmp_path)
    assert result.code == 0, result.out
    statuses = {k: v for k, v in result.value["statuses"].items() if v != "off"}
    assert statuses == {"lm_ce": "active", "hint": "active"}


@pytest.mark.parametrize("name", sorted(set(HERE) - set(TRAINED)))
def test_a_large_presets_two_layers_are_what_the_memory_model_counts(name: str) -> None:
    preset = find_preset(name)
    with torch.device("meta"):
        model = wide_model(preset, vocab=preset.shape.vocab)
        base = sum(p.numel() for p in model.parameters())
        adapted = _with_lora(model, preset.config.student, seed=0)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    rank = preset.config.student.lora.rank
    layers = preset.shape.layers
    assert preset.shape.lora_parameters(rank) * 2 == trained * layers
    counted = preset.shape.matrix_parameters * 2 / layers + preset.shape.table_parameters
    assert base == pytest.approx(counted, rel=1e-4)


def test_four_bits_are_what_makes_8b_fit() -> None:
    preset = find_preset("8b-24gb-qlora")
    config = preset.config
    plain = config.model_copy(
        update={"student": config.student.model_copy(update={"load_in_4bit": False})}
    )
    size = StepSize.full_window(config.train.micro_tokens)
    needs = [memory_need(preset.shape, c, size) for c in (config, plain)]
    saved = needs[1].held["weights"] - needs[0].held["weights"]
    assert saved == pytest.approx(preset.shape.matrix_parameters * (2 - 0.516), rel=1e-3)
    assert needs[0].total < preset.card.usable < needs[1].total


def test_an_unknown_preset_is_refused_with_the_list(tmp_path: Path) -> None:
    assert recompose("init", "--from", "9b", cwd=tmp_path).code == 2
    with pytest.raises(UsageError) as caught:
        find_preset("9b")
    assert all(name in caught.value.fix for name in PRESETS)
    assert not (tmp_path / "recompose.toml").exists()


def test_a_preset_whose_setting_is_not_there_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = find_preset("4b-24gb")
    real = presets.field_at
    gone = ("train", "tile")
    monkeypatch.setattr(presets, "field_at", lambda key: None if key == gone else real(key))
    with pytest.raises(ConfigError, match=r"needs train\.tile, which this version does not have"):
        _ = preset.config


def test_the_page_is_what_the_memory_model_says(repository_root: Path) -> None:
    from scripts.docs_memory import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "stale: run python scripts/docs_memory.py"


def test_without_a_gpu_the_tiny_preset_is_named_and_trains(tmp_path: Path) -> None:
    assert "presets: tiny (no GPU), " in recompose("init", "--from", "none", cwd=tmp_path).err
    assert recompose("init", "--from", "tiny", "-q", cwd=tmp_path).code == 0
    logs = Path(__file__).resolve().parents[2] / "examples" / "demo_logs"
    for verb in (("ingest", str(logs)), ("sites",), ("hints",), ("build",)):
        assert recompose(*verb, "-q", cwd=tmp_path).code == 0
    planned = recompose("train", "--dry-run", "--json", cwd=tmp_path)
    assert planned.code == 0, planned.err
