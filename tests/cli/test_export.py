"""`recompose export`: the exported folder loads as the trained weights, with template and history;
no file is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from composer_replication.core.codec import write_sessions
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, open_run
from composer_replication.evaluation.players import load_player, player_of
from composer_replication.models.merge import merge_adapters
from composer_replication.tokens.template_families import FAMILIES
from tests.cli.workspace import CliResult, files, recompose, session
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train
IDS = torch.arange(1, 40)[None]
LORA = ("--student.lora.rank", "4", "--student.lora.alpha", "8")
TRAIN = (
    "--train.steps",
    "3",
    "--train.learning_rate",
    "0.02",
    "--train.warmup_steps",
    "0",
    "--train.hint.weight",
    "0",
    "-q",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a one-layer Qwen3 under its official template, trained whole ("whole") and by
    LoRA ("lora")."""
    place = tmp_path_factory.mktemp("export")
    tokenizer: Any = chatml_tokenizer()
    tokenizer.chat_template = official("qwen3")
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), intermediate_size=32, eos_token_id=7, **shape)
    )
    model.save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    write_sessions(place / "recompose" / "sessions.jsonl", [session()])
    student = ("--student.model", str(place / "base"))
    for verb in (("sites",), ("hints",), ("build", *student)):
        assert recompose(*verb, "-q", cwd=place).code == 0
    for name, more in (("whole", ()), ("lora", LORA)):
        result = recompose("train", "--name", name, *student, *more, *TRAIN, cwd=place)
        assert result.code == 0, result.err
    return place


def run_of(place: Path, name: str) -> RunDir:
    return open_run(place / "recompose" / "runs" / name)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def read(result: CliResult) -> str:
    return " ".join((result.out + result.err).replace("│", " ").split())


def test_whole_weights_come_back_bit_for_bit_with_the_template_they_were_trained_with(
    place: Path,
) -> None:
    result = recompose("export", "whole", "--to", "out/whole", "--json", cwd=place)
    assert result.code == 0, result.err
    folder = place / "out" / "whole"
    trained, _ = load_player(player_of(run_of(place, "whole"), name="x"))
    assert torch.equal(logits(loaded(folder)), logits(trained.model))
    assert not torch.equal(logits(loaded(folder)), logits(loaded(place / "base"))), (
        "training changed nothing: the test says nothing"
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer.chat_template
        == FAMILIES["qwen3"].template
        != AutoTokenizer.from_pretrained(place / "base").chat_template
    )
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    assert ends == [7, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert (
        "--tool-call-parser hermes" in result.value["serve"]["vLLM"]
        and "out/whole" in result.value["serve"]["vLLM"]
    )
    llama = result.value["serve"][
        "llama.cpp"
    ]  # its name is the one that rollouts.server.model asks
    assert "--alias whole " in llama and "--chat-template-file " in llama
    assert not list((place / "out").glob(".*")) and result.value["form"] == "weights"


def test_a_placebo_is_not_exported_in_silence(place: Path, tmp_path: Path) -> None:
    """`export latest` wrote the placebo that was trained last."""
    run = run_of(place, "whole")
    plain = recompose("export", "whole", "--to", str(tmp_path / "a"), "--dry-run", cwd=place)
    assert "run      whole, after 3 steps" in plain.out and "is a placebo" not in plain.out
    settings = run.resolved()
    train = {**settings["train"], "placebo": ["shuffled_hints"]}
    write_json(run.resolved_json, {**settings, "train": train})
    try:
        shown = recompose("export", "whole", "--to", str(tmp_path / "a"), "--dry-run", cwd=place)
    finally:
        write_json(run.resolved_json, settings)
    assert "whole is a placebo (shuffled_hints)" in shown.out and "show run" in shown.out


def test_a_merged_adapter_is_the_sum_and_gives_the_adapters_logits(place: Path) -> None:
    result = recompose("export", "lora", "--to", "out/merged", "--json", cwd=place)
    assert result.code == 0, result.err
    student, _ = load_player(player_of(run_of(place, "lora"), name="x"))
    with_adapter, layer = (
        logits(student.model),
        student.model.base_model.model.model.layers[0].mlp.up_proj,
    )
    wanted = (
        layer.base_layer.weight.double()
        + 2.0 * layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
    )
    back = loaded(place / "out" / "merged")
    assert torch.equal(back.model.layers[0].mlp.up_proj.weight, wanted.float())
    assert torch.equal(logits(back), logits(merge_adapters(student, texts=IDS.tolist()).model))
    assert torch.allclose(logits(back), with_adapter, atol=1e-5)
    assert not torch.allclose(with_adapter, logits(loaded(place / "base")), atol=1e-2), (
        "the adapter is nothing: the test says nothing"
    )
    assert not list((place / "out" / "merged").glob("adapter*"))
    merge = result.value["merge"]
    assert 0 <= merge["mean_kl"] <= 3 * merge["rounding_kl"] < 1e-6 < merge["adapter_kl"]
    assert merge["mean_kl"] <= merge["max_kl"] and merge["num_tokens"] > 50
    facts = json.loads((place / "out" / "merged" / "recompose.json").read_text("utf-8"))
    assert facts["merge"] == merge
    card = (place / "out" / "merged" / "README.md").read_text("utf-8")
    assert f"{merge['num_merged']} adapted weights merged; on {merge['num_tokens']} tokens" in card


def test_an_adapter_comes_back_bit_for_bit_on_its_base(place: Path) -> None:
    result = recompose("export", "lora", "--adapter", "--to", "out/adapter", "--json", cwd=place)
    assert result.code == 0, result.err
    student, _ = load_player(player_of(run_of(place, "lora"), name="x"))
    assert torch.equal(logits(loaded(place / "out" / "adapter")), logits(student.model))
    assert not (place / "out" / "adapter" / "model.safetensors").exists()
    command = result.value["serve"]["vLLM"]
    assert (
        "--max-lora-rank 8" in command
        and f"vllm serve {place / 'base'}" in command
        and "--chat-template out/adapter/chat_template.jinja" in command
    )


def test_the_card_says_what_it_was_trained_on_by_whom_and_what_was_measured(place: Path) -> None:
    run = run_of(place, "whole")
    bare = recompose("export", "whole", "--to", "out/bare", cwd=place)
    assert bare.code == 0 and "vllm serve" in read(bare) and "transformers serve" in read(bare)
    card = (place / "out" / "bare" / "README.md").read_text("utf-8")
    assert (
        "nothing is claimed" in card
        and "`claude-test-1` (3 messages)" in card
        and "context distillation" in card
    )
    (trained_by,) = [line for line in card.splitlines() if line.startswith("- trained by ")]
    assert "`recompose train --name whole " in trained_by and "--train.steps 3" in trained_by
    assert str(place) not in (place / "out" / "bare" / "recompose.json").read_text("utf-8")
    assert str(place) not in card and str(place) not in (
        place / "out" / "bare" / "config.json"
    ).read_text("utf-8")
    pairs = [
        {"a": "after", "b": b, "difference": 0.2, "low": 0.1, "high": 0.3}
        for b in ("before", "placebo")
    ]
    success = {"n": 64, "success": 0.31, "success_low": 0.2, "success_high": 0.43}
    rows = [{"name": "after", **success}, {"name": "odd"}]
    write_json(run.evaluation_json, {"rows": rows, "paired": pairs})
    write_sessions(place / "recompose" / "sessions.jsonl", [session(text="another log")])
    assert recompose("export", "whole", "--to", "out/judged", "-q", cwd=place).code == 0
    card = (place / "out" / "judged" / "README.md").read_text("utf-8")
    assert (
        "Success on held-out tasks rose" in card
        and "are no longer known" in card
        and "| `after` | 64 | 0.310 [0.200, 0.430] |" in card
        and "claude-test-1" not in card
    )
    facts = json.loads((place / "out" / "judged" / "recompose.json").read_text("utf-8"))
    assert (
        facts["steps"] == 3 and facts["run"] == "whole" and facts["settings"]["train"]["steps"] == 3
    )
    run.evaluation_json.unlink()
    write_sessions(place / "recompose" / "sessions.jsonl", [session()])


def test_what_cannot_be_exported_is_refused_and_nothing_is_overwritten(
    place: Path, tmp_path: Path
) -> None:
    (place / "full").mkdir(exist_ok=True)
    (place / "full" / "mine.txt").write_text("mine", "utf-8")
    empty = tmp_path / "recompose" / "runs" / "none"
    without_checkpoints(run_of(place, "whole").path, empty)
    inside = run_of(place, "whole").path / "out"
    for argv, message in (
        (("whole", "--to", "full"), "nothing is overwritten"),
        (("whole", "--to", "full/mine.txt"), "nothing is overwritten"),
        (("whole", "--to", str(inside)), "inside the run"),
        (("whole", "--adapter", "--to", "out/x"), "there is no adapter"),
        ((str(empty), "--to", "out/x"), "kept no checkpoint"),
        (("nobody", "--to", "out/x"), 'no run "nobody"'),
    ):
        before = files(place)
        result = recompose("export", *argv, cwd=place)
        assert result.code == 1 and message in read(result), (argv, read(result))
        assert files(place) == before
    assert recompose("export", "lora", "--adapter", "--merged", cwd=place).code == 2
    dry = recompose("export", "lora", "--dry-run", "--json", cwd=place)
    assert dry.code == 0 and dry.value["form"] == "merged" and files(place) == before
    assert (place / "full" / "mine.txt").read_text("utf-8") == "mine"


def without_checkpoints(run: Path, target: Path) -> None:
    """A run whose checkpoints have been removed."""

    shutil.copytree(run, target)
    shutil.rmtree(target / "checkpoints")
