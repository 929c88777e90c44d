"""What `train` and `doctor` say about memory: the terms, the longest window, and what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.step import make_data
from composer_replication.cli.memory_text import found_card
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.memory.largest_forward import largest_forward
from composer_replication.training.memory.memory_model import StepSize
from tests.cli.test_examples import logs_in, random_student
from tests.cli.workspace import recompose

pytestmark = pytest.mark.train
BIG = """[student]
model = "Qwen/Qwen3-4B-Instruct-2507"
dtype = "bfloat16"
lora = { rank = 16 }
[build]
max_tokens = 16384
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with examples for a student of two narrow layers."""
    folder = tmp_path_factory.mktemp("built")
    model = random_student(folder / "student", "qwen3")
    logs_in(folder / "recompose")
    text = f'[student]\nmodel = "{model}"\n[train]\nhint = {{ teacher = "live" }}\n'
    (folder / "recompose.toml").write_text(text, "utf-8")
    assert recompose("build", "--held_out.fraction", "0", cwd=folder).code == 0
    return folder


def dry_run(folder: Path, *words: str) -> dict[str, Any]:
    result = recompose("train", "--dry-run", *words, "--json", cwd=folder)
    assert result.code == 0, result.out
    return result.value["plan"]["memory"]


def test_a_dry_run_says_by_term_what_the_largest_forward_needs(built: Path) -> None:
    memory = dry_run(built, "--memory-gb", "24")
    assert sum(memory["terms"].values()) == pytest.approx(memory["bytes"], abs=10)
    assert memory["fits"] is True and memory["usable_bytes"] < memory["card_bytes"] == 24e9
    assert memory["longest_window"] > memory["tokens"] > 100
    assert list(memory["changes"])[:2] == ['train.checkpoint = "layers"', "train.tile = 2048"]
    text = recompose("train", "--dry-run", "--memory-gb", "24", cwd=built).out
    for words in ("not measured on a GPU", "longest window", "weights", "of a card of 24 GB"):
        assert words in text
    assert "WARNING" not in text


def test_what_does_not_fit_is_warned_of_before_training_with_what_helps(built: Path) -> None:
    needed = dry_run(built, "--memory-gb", "24")["bytes"]
    card_gb = (0.8 * needed / 1e9 + 0.6) / 0.94
    words = ("--memory-gb", f"{card_gb:.6f}", "--train.steps", "1")
    memory = dry_run(built, *words)
    assert memory["fits"] is False
    result = recompose("train", *words, cwd=built)
    warning = next(line for line in result.out.splitlines() if "WARNING" in line)
    assert f"a forward of {memory['tokens']:,} tokens needs" in warning
    assert result.out.index("WARNING") < result.out.index("loading") and result.code == 0
    assert 'set train.checkpoint = "layers"' in warning or "set train.micro_tokens" in warning


def test_doctor_computes_a_model_that_was_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "recompose.toml").write_text(BIG, "utf-8")
    value = recompose("doctor", "--memory-gb", "24", "--json", cwd=tmp_path).value
    finding = next(f for f in value["findings"] if f["name"] == "memory")
    assert finding["ok"] is False and "a card of 24 GB" in finding["found"]
    memory = value["memory"]
    changes = list(memory["changes"].values())
    assert memory["longest_window"] < 16_384 < changes[0] < changes[1] < changes[2]
    shown = recompose("doctor", "--memory-gb", "24", cwd=tmp_path).out
    assert 'set train.checkpoint = "layers"' in shown


def test_doctor_says_why_it_cannot_compute(tmp_path: Path) -> None:
    for model, why in (("tiny", "less than 1 GB"), ("a/b.gguf", "GGUF"), ("who/what", "not on")):
        (tmp_path / "recompose.toml").write_text(f'[student]\nmodel = "{model}"\n', "utf-8")
        value = recompose("doctor", "--json", cwd=tmp_path).value
        finding = next(f for f in value["findings"] if f["name"] == "memory")
        assert why in finding["found"] and value["memory"] is None


def test_without_a_gpu_it_is_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    card, name = found_card(0.0)
    assert card.device == "cpu" and card.total > 1e9 and "no GPU" in name
    with pytest.raises(ConfigError, match="no card"):
        found_card(-1.0)


def test_the_largest_forward_holds_the_longest_examples_and_their_hints() -> None:
    example, pairs = make_data(400, sites=2, pairs=2, vocab=50)
    settings = Config.model_validate({"train": {"preference": {"weight": 1.0}}}).train
    spans = ((8, 60),)
    examples = [replace(example, actions=(), lm_spans=spans), short(example)]
    size = largest_forward(examples, pairs, settings)
    assert size is not None
    views = example.hints
    assert size == StepSize(
        tokens=size.tokens,
        lm=52 + 12,
        hinted=sum(len(v.target_ids) for v in views),
        sides=sum(p.num_response_tokens for p in pairs),
        hint_tokens=sum(len(v.hint_ids) + len(v.target_ids) for v in views),
        below_hints=max(v.span[0] for v in views),
        copied_keys=sum(len(p.prefix_ids) for p in pairs),
    )
    # the rejected sides are the session's own messages; behind the last span nothing is computed
    row = max([*(v.span[1] for v in views), *(len(p.prefix_ids + p.rejected_ids) for p in pairs)])
    assert size.tokens == row + 20 + sum(len(p.chosen_ids) for p in pairs)


def short(example: TrainingExample) -> TrainingExample:
    """Another session of 20 tokens."""
    return replace(
        example, id="e2", session_id="s2", ids=tuple(range(20)), hints=(), actions=(),
        lm_spans=((8, 20),),
    )  # fmt: skip
