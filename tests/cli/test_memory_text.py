"""What `train` and `doctor` say about memory: the terms, the longest window, and what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.step import make_data
from composer_replication.cli.flags import Common
from composer_replication.cli.job import settings_only
from composer_replication.cli.memory_card import found_card
from composer_replication.cli.memory_text import print_fit, run_fit, window_fit
from composer_replication.core.config.root import Config
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.gguf_file import read_gguf
from composer_replication.models.student_shape import student_shape
from composer_replication.tokens.artefact import Dataset
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.draws.batch_sampler import Sampler
from composer_replication.training.inputs import nulled_data
from composer_replication.training.memory.largest_forward import largest_forward, step_size
from composer_replication.training.memory.memory_model import StepSize
from tests.cli.test_examples import logs_in, random_student
from tests.cli.workspace import recompose
from tests.models.gguf_files import qwen3_gguf

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
    for model, why in (
        ("tiny", "less than 1 GB"),
        ("a/b.gguf", "GGUF file a/b.gguf: no such"),
        ("who/what", "not on"),
    ):
        (tmp_path / "recompose.toml").write_text(f'[student]\nmodel = "{model}"\n', "utf-8")
        value = recompose("doctor", "--json", cwd=tmp_path).value
        finding = next(f for f in value["findings"] if f["name"] == "memory")
        assert why in finding["found"] and value["memory"] is None


def test_a_gguf_file_is_computed_by_its_widths_in_plain_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = qwen3_gguf(tmp_path / "m.gguf")
    found = student_shape(StudentSettings(model=str(file)))
    facts = read_gguf(file)
    assert found.shape is not None and found.context == 8192
    # every tensor of the file is counted, once
    assert found.shape.num_parameters == facts.num_weights and found.shape.tied
    assert (found.shape.family, found.shape.head_dim, found.shape.kv_heads) == ("qwen3", 32, 2)
    settings = f'[student]\nmodel = "{file}"\n[build]\nmax_tokens = 512\n'
    (tmp_path / "recompose.toml").write_text(settings, "utf-8")
    job = settings_only(Common(config=(tmp_path / "recompose.toml",)))
    example, _ = make_data(256, sites=1, pairs=0, vocab=512)
    data = Dataset(examples=(example,), pairs=(), meta={})
    memory = print_fit(job, run_fit(job, data, memory_gb=24.0))
    assert memory is not None and memory["from_gguf"] == "Q8_0, de-quantised to float32"
    # the file's 34 bytes per 32 weights are 4 each here
    assert memory["terms"]["weights"] == 4 * facts.num_weights
    out = capsys.readouterr().out
    assert "Q8_0, de-quantised to float32" in out and "not of the file" in out
    doctor = recompose("doctor", "--memory-gb", "24", "--json", cwd=tmp_path).value
    assert doctor["memory"]["longest_window"] > 512
    other = job.config.student.model_copy(update={"model": str(tmp_path / "none.gguf")})
    loaded = replace(job.loaded, config=job.config.model_copy(update={"student": other}))
    assert print_fit(replace(job, loaded=loaded), None) is None
    assert "memory   not computed: the GGUF file" in capsys.readouterr().out


def test_without_a_gpu_it_is_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    card, name = found_card(0.0)
    assert card.device == "cpu" and card.total > 1e9 and "no GPU" in name
    with pytest.raises(ConfigError, match="no card"):
        found_card(-1.0)


@pytest.mark.parametrize("cards", [1, 8])
def test_cards_count_beside_a_gpu_that_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cards: int
) -> None:
    gpu = SimpleNamespace(name="A GPU", total_memory=80e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: gpu)
    card, name = found_card(0.0, cards=cards)
    assert (card.cards, card.total, card.device) == (cards, 80e9, "cuda")
    assert ("each of 8 cards" in name) == (cards > 1) and "A GPU, 80 GB" in name
    (tmp_path / "recompose.toml").write_text(f"{BIG}[train]\nfsdp = true\n", "utf-8")
    job = settings_only(Common(config=(tmp_path / "recompose.toml",)))
    fit, _, _ = window_fit(job, memory_gb=0.0, cards=cards)
    assert fit is not None and ("gathered weights" in fit.need.terms) == (cards > 1)


def test_cards_of_a_launch_are_those_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="A GPU", total_memory=80e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: gpu)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert found_card(0.0)[0].cards == 4 and found_card(0.0, cards=2)[0].cards == 2


def sampler_of(config: Config, examples: list[Any], pairs: list[Any]) -> Sampler:
    data = nulled_data(config, examples=examples, pairs=pairs, is_live=False)
    return data.sampler(config)


def test_the_largest_forward_holds_the_longest_examples_and_their_hints() -> None:
    example, pairs = make_data(400, sites=2, pairs=2, vocab=50)
    config = Config.model_validate({"train": {"preference": {"weight": 1.0}}})
    spans = ((8, 60),)
    examples = [replace(example, actions=(), lm_spans=spans), short(example)]
    sampler = sampler_of(config, examples, pairs)
    size = largest_forward(sampler, config.train, need=lambda size: size.tokens)
    assert size is not None
    views = example.hints
    hint_tokens = sum(len(v.hint_ids) + len(v.target_ids) for v in views)
    below_hints = max(v.span[0] for v in views)
    assert size == StepSize(
        tokens=size.tokens,
        lm=52 + 12,
        hinted=sum(len(v.target_ids) for v in views),
        sides=sum(p.num_response_tokens for p in pairs),
        hint_tokens=hint_tokens,
        below_hints=below_hints,
        read_alone=below_hints + hint_tokens,
        copied_keys=sum(len(p.prefix_ids) for p in pairs),
        longest=size.longest,
    )
    # the rejected sides are the session's own messages; behind the last span nothing is computed
    row = max([*(v.span[1] for v in views), *(len(p.prefix_ids + p.rejected_ids) for p in pairs)])
    assert size.tokens == row + 20 + sum(len(p.chosen_ids) for p in pairs)
    assert size.longest == row


def test_the_largest_forward_is_that_of_the_steps_to_come() -> None:
    """Not of the longest examples: two of 60 tokens do not fit together, two of 50 do."""
    example, _ = make_data(400, sites=2, pairs=0, vocab=50)

    def of(number: int, length: int) -> TrainingExample:
        return replace(
            short(example), id=f"x{number}", session_id=f"x{number}",
            ids=tuple(range(number, number + length)), lm_spans=((1, length),),
        )  # fmt: skip

    examples = [of(n, 60 if n < 2 else 50) for n in range(6)]
    for layout in ("tree", "rows"):
        config = Config.model_validate(
            {"train": {"micro_tokens": 100, "batch_examples": 3, "layout": layout, "steps": 40}}
        )
        sampler = sampler_of(config, examples, [])
        size = largest_forward(sampler, config.train, need=lambda size: size.tokens)
        assert size is not None and size.tokens == 100
        few = largest_forward(
            sampler, config.train.model_copy(update={"steps": 1}), need=lambda size: -size.tokens
        )
        assert few is not None and few.tokens < 100


def test_rows_of_sessions_and_pairs_wait_for_their_backward_together() -> None:
    example, pairs = make_data(400, sites=2, pairs=2, vocab=50)
    example = replace(example, actions=(), lm_spans=((8, 60), (399, 400)))
    settings = {"layout": "rows", "micro_tokens": 2000, "preference": {"weight": 1.0}}
    config = Config.model_validate({"train": settings})
    size = step_size([example], pairs, config.train)
    longest = max(len(p.prefix_ids + p.chosen_ids) for p in pairs)
    assert size.forwards == (400, 4 * longest) and size.tokens == sum(size.forwards)
    teacher_rows = [len(example.teacher_ids(view)) for view in example.hints]
    assert size.read_alone == 2 * max(teacher_rows)
    few = config.train.model_copy(update={"micro_tokens": 500})  # one row in a forward
    assert step_size([example], pairs, few).read_alone == max(teacher_rows)


def test_anchors_and_what_a_contrast_reads_are_counted() -> None:
    example, _ = make_data(400, sites=2, pairs=0, vocab=50)
    example = replace(example, actions=(), lm_spans=(), anchored=((350, 390),))
    config = Config.model_validate({"train": {"hint": {"contrast": True}}})
    plain = Config().train
    assert step_size([example], [], plain).anchors == 40
    read = [step_size([example], [], train).hint_tokens for train in (plain, config.train)]
    assert read[1] >= read[0]


def short(example: TrainingExample) -> TrainingExample:
    """Another session of 20 tokens."""
    return replace(
        example, id="e2", session_id="s2", ids=tuple(range(20)), hints=(), actions=(),
        lm_spans=((8, 20),),
    )  # fmt: skip
