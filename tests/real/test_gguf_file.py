"""A GGUF file itself as the student: the weights and tokens of the folder that was made of it, and
the whole way from `model check` to an exported folder (make real)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.gguf_file import read_gguf
from composer_replication.models.load_student import load_student
from composer_replication.models.pretrained_folder import save_student
from composer_replication.tokens.gguf_tokenizer import check_pre_tokenizer
from composer_replication.tokens.hf import load_tokenizer
from tests.cli.workspace import fill, recompose, session
from tests.real.real_tokenizers import CASES, Logs, cache_folder, texts_of

pytestmark = [pytest.mark.real, pytest.mark.train]
NAMED = ("--student.template", "chatml-tools")


def test_weights_and_tokens_are_those_of_the_folder_made_of_it(gguf: Path, logs: Logs) -> None:
    folder = cache_folder() / "folders" / "smollm2"
    tokenizer, expected = load_tokenizer(str(gguf)), load_tokenizer(str(folder))
    texts = list(dict.fromkeys(t for s in logs.sessions.values() for t in texts_of(s)))
    assert sum(bool(re.search(r"\d\d", text)) for text in texts) > 100  # digits stand alone
    assert tokenizer(texts)["input_ids"] == expected(texts)["input_ids"]
    assert tokenizer.chat_template == expected.chat_template
    student = load_student(StudentSettings(model=str(gguf)), tokenizer=tokenizer, seed=1)
    weights = load_file(folder / "model.safetensors")
    loaded = dict(student.model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    linear_shapes = read_gguf(gguf).linear_shapes
    assert len(linear_shapes) == 7 * 30
    assert all(tuple(weights[name].shape) == shape for name, shape in linear_shapes.items())


def test_an_adapter_of_another_base_is_refused(gguf: Path, tmp_path: Path) -> None:
    settings = StudentSettings(model=str(gguf), lora=LoraSettings(rank=2, alpha=4))
    student = load_student(settings, tokenizer=load_tokenizer(str(gguf)), seed=1)
    adapter = tmp_path / "adapter"
    save_student(student, adapter)

    def check(code: int) -> Any:
        done = recompose("model", "check", str(adapter), *NAMED, "--json", cwd=tmp_path)
        assert done.code == code, done.out + done.err
        return done.value

    assert check(0)["refused"] == []
    file = adapter / "adapter_model.safetensors"
    wider = {
        name: torch.nn.functional.pad(value, (0, 8)) if ".q_proj.lora_A" in name else value
        for name, value in load_file(file).items()
    }
    save_file(wider, file)
    (refusal,) = check(1)["refused"]
    assert "self_attn.q_proj by 576 x 2 times 2 x 584, the base has 576 x 576" in refusal["what"]


def test_a_pre_tokenizer_that_nobody_knows_is_refused(gguf: Path) -> None:
    facts = read_gguf(gguf)
    assert (facts.tokenizer, facts.pre, facts.quantisation) == ("gpt2", "smollm", "Q4_1, Q8_0, F32")
    check_pre_tokenizer("gpt2", "qwen2", path=gguf)
    check_pre_tokenizer("llama", "default", path=gguf)
    for name in ("default", "", "a-new-one"):
        with pytest.raises(ConfigError, match=r"its pre-tokenizer .* is unknown"):
            check_pre_tokenizer("gpt2", name, path=gguf)


def test_it_is_checked_trained_resumed_and_exported(gguf: Path, tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    student = ("--student.model", str(gguf), *NAMED)

    def run(*argv: str) -> Any:
        done = recompose(*argv, *student, "--json", cwd=tmp_path)
        assert done.code == 0, done.out + done.err
        return done.value

    checked = run("model", "check")
    assert checked["facts"]["quantisation"] == "Q4_1, Q8_0, F32"
    assert recompose("build", *student[:2], cwd=tmp_path).code == 1  # its own template has no calls
    run("build")
    lora = ("--student.lora.rank", "4")
    train = ("train", *student, *lora)
    said = recompose(*train, "--name", "a", "--train.steps", "1", cwd=tmp_path)
    assert said.code == 0 and "Q4_1, Q8_0, F32, de-quantised to float32" in said.out
    about = json.loads((tmp_path / "recompose/runs/a/run.json").read_text("utf-8"))
    assert about["weights"] == "Q4_1, Q8_0, F32, de-quantised to float32"
    run("train", "--resume", "a", *lora, "--train.steps", "2", "--accept-changes")
    adapter = recompose("export", "a", "--adapter", cwd=tmp_path)
    assert adapter.code == 1 and "de-quantised from a GGUF file" in adapter.err
    run("export", "a", "--to", "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert "quantization_config" not in config and config["vocab_size"] == 49152
    again = load_student(
        StudentSettings(model=str(tmp_path / "out")),
        tokenizer=load_tokenizer(str(tmp_path / "out")),
        seed=1,
    )
    assert again.num_parameters == checked["facts"]["num_weights"]


@pytest.mark.parametrize("name", sorted({case.folder for case in CASES} | {"gemma3-270m"}))
def test_every_real_folder_is_checked(name: str, tmp_path: Path) -> None:
    folder = cache_folder() / "folders" / name
    done = recompose("model", "check", str(folder), "--json", cwd=tmp_path)
    found, problems = done.value, [row["what"] for row in done.value["refused"]]
    has_weights = (folder / "model.safetensors").exists()
    assert ("num_weights" in found["facts"]) == has_weights
    assert any("no weights" in problem for problem in problems) != has_weights
    about_template = [problem for problem in problems if "template" in problem]
    if name in ("smollm2", "tokenizer-gptoss"):
        assert done.code == 1 and len(about_template) == 1
    elif name == "tokenizer-llama3_1":
        assert "loses the name of a call" in about_template[0]
    else:
        assert not about_template and found["template"]["used"]["calls"]
        assert done.code == (0 if has_weights else 1)
    assert found["template"]["families_that_fit"]
