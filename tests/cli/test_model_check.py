"""`model check`: what is found in a model's files, and that all that would be refused is told."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from composer_replication.cli import doctor
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.models.load_student import load_student
from composer_replication.models.pretrained_folder import save_student as save_checkpoint
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.template_families import FAMILIES
from tests.cli.test_template_refused import LOSES_CALLS, save_student
from tests.cli.workspace import files, recompose
from tests.tokens.students import chatml_tokenizer, official, tokenizer_for
from tests.tokens.test_unknown_template import SOUND

pytestmark = pytest.mark.train


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_student(tmp_path / "model", chatml_tokenizer(), template=official("qwen3"))


def check(model: Path | str, *argv: str, cwd: Path, code: int) -> Any:
    result = recompose("model", "check", str(model), *argv, "--json", cwd=cwd)
    assert result.code == code, result.out + result.err
    return result.value


def refused(value: Any) -> str:
    return "\n".join(f"{r['what']} | {r['fix']}" for r in value["refused"])


def test_a_sound_model_is_described_and_nothing_is_written(model: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    value = check(model, cwd=tmp_path, code=0)
    assert files(tmp_path) == before and value["refused"] == [] and value["kind"] == "folder"
    weights = load_file(model / "model.safetensors")
    count = sum(w.numel() for w in weights.values())
    facts = value["facts"]
    assert (facts["num_weights"], facts["dtypes"]) == (count, {"float32": count})
    assert facts["disk_bytes"] == (model / "model.safetensors").stat().st_size
    assert facts["memory_bytes"]["weights"] == 4 * count
    assert facts["embedded_tokens"] == value["tokens"]["vocabulary"] == len(chatml_tokenizer())
    assert facts["context"] == 8192 and facts["model_type"] == "llama"
    assert value["tokens"]["special"]["eos_token"] == "<|im_end|>"
    assert value["tokens"]["end_of_message"] == ["<|im_end|>"]
    template = value["template"]
    assert (template["family"], template["recognised_by"]) == ("qwen3", "its text")
    assert template["hint"] == "message" and "qwen3-2507" in template["families_that_fit"]
    assert template["own"]["thinking"] and not template["own"]["stable"]
    assert not template["used"]["thinking"] and template["used"]["stable"]
    text = recompose("model", "check", str(model), cwd=tmp_path).out
    assert " refused  nothing" in text and "recognised by its text" in text
    half = check(model, "--student.dtype", "bfloat16", cwd=tmp_path, code=0)
    assert half["facts"]["memory_bytes"]["weights"] == 2 * count


def test_templates_are_recognised_by_what_they_render_or_are_none_of_ours(
    model: Path, tmp_path: Path
) -> None:
    for template, family, how in (
        ("{#- edited -#}" + official("qwen3"), "qwen3", "what it renders"),
        (SOUND, "none of ours", None),
    ):
        (model / "chat_template.jinja").write_text(template, "utf-8")
        found = check(model, cwd=tmp_path, code=0)["template"]
        assert (found["family"], found.get("recognised_by")) == (family, how)
        assert found["own"]["calls"] and found["used"]["calls"] and found["used"]["results"]


def test_a_template_without_calls_names_the_family_that_its_tokens_allow(tmp_path: Path) -> None:
    model = save_student(tmp_path / "m", tokenizer_for("chatml-tools"), template=LOSES_CALLS)
    value = check(model, cwd=tmp_path, code=1)
    assert value["template"]["own"] == {
        "system": True,
        "late_system": True,
        "tools": False,
        "calls": False,
        "several_calls": False,
        "text_and_call": False,
        "results": True,
        "thinking": False,
        "stable": True,
    }
    assert value["template"]["families_that_fit"] == ["chatml-tools"]
    assert "cannot write a tool call" in refused(value) and "chatml-tools" in refused(value)
    named = check(model, "--student.template", "chatml-tools", cwd=tmp_path, code=0)
    assert named["template"]["used"]["calls"] and named["template"]["used"]["tools"]
    wrong = check(model, "--student.template", "llama3", cwd=tmp_path, code=1)
    assert "no token '<|eot_id|>'" in refused(wrong)
    assert "suits its control tokens in student.template: auto, chatml-tools" in refused(wrong)
    by_name = check(model, "--student.template", "qwen3", cwd=tmp_path, code=0)
    assert any(
        "no token '<tool_call>'" in note and "suit: chatml-tools" in note
        for note in by_name["notes"]
    )


@pytest.mark.parametrize(
    ("calls", "abilities", "said"),
    [
        ("m.tool_calls or []", (True, True), ""),
        ("(m.tool_calls or [])[:1]", (False, True), "writes the first and drops the others"),
        ("(m.tool_calls or [])[-1:]", (False, True), "writes the last and drops the others"),
        (
            "m.tool_calls or [] if (m.tool_calls or []) | length == 1",
            (False, True),
            "drops all of them",
        ),
        (
            "m.tool_calls or [] if not (m.tool_calls or [])[1:] or raise_exception('One call.')",
            (False, True),
            "refuses such a message",
        ),
    ],
    ids=["all", "first", "last", "none", "rejected"],
)
def test_what_a_template_does_with_several_calls_in_a_message_is_told(
    calls: str, abilities: tuple[bool, bool], said: str, tmp_path: Path
) -> None:
    """`build` is refused if the logs hold more than a few such messages, and only then."""
    template = SOUND.replace("m.tool_calls or []", calls)
    assert template != SOUND or not said
    model = save_student(tmp_path / "m", chatml_tokenizer(), template=template)
    value = check(model, cwd=tmp_path, code=0)
    used = value["template"]["used"]
    assert used["calls"] and (used["several_calls"], used["text_and_call"]) == abilities
    assert value["refused"] == [] and len(value["provisos"]) == bool(said)
    out = " ".join(recompose("model", "check", str(model), cwd=tmp_path).out.split())
    assert said in out and ("`build` is refused if the logs hold more than a few" in out) == bool(
        said
    )
    assert ("3 or more, and over 1% of the messages with calls" in out) == bool(said)
    assert ("qwen3-2507" in "".join(p["fix"] for p in value["provisos"])) == bool(said)


def test_a_template_that_the_tiny_student_cannot_write_is_refused(tmp_path: Path) -> None:
    wrong = check("tiny", "--student.template", "llama3", cwd=tmp_path, code=1)
    assert "no token '<|" in refused(wrong) and "student.template" in refused(wrong)
    assert "qwen3, " in refused(wrong) and "chatml-tools" in refused(wrong)
    for right in ("auto", "qwen3-thinking", "chatml-tools"):
        assert not check("tiny", "--student.template", right, cwd=tmp_path, code=0)["refused"]


def test_a_template_of_another_family_is_told_with_those_that_suit(
    model: Path, tmp_path: Path
) -> None:
    for named, told in (("qwen3-thinking", False), ("qwen3.5", True), ("auto", False)):
        notes = check(model, "--student.template", named, cwd=tmp_path, code=0)["notes"]
        assert any("own template is qwen3, student.template names" in n for n in notes) == told
        assert not told or "auto, qwen2.5, qwen3" in "".join(notes)


def test_a_base_model_without_a_template_names_the_families(tmp_path: Path) -> None:
    model = save_student(tmp_path / "m", tokenizer_for("gemma"), template="")
    value = check(model, cwd=tmp_path, code=1)
    assert "no chat template" in refused(value) and "one of gemma" in refused(value)
    assert check(model, "--student.template", "gemma", cwd=tmp_path, code=0)["refused"] == []


def test_pickles_and_code_are_refused_before_anything_is_loaded(
    model: Path, tmp_path: Path
) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    value = check(model, cwd=tmp_path, code=1)
    assert "its weights are pickles (pytorch_model.bin)" in refused(value)
    (model / "pytorch_model.bin").unlink()
    assert "no weights" in refused(check(model, cwd=tmp_path, code=1))
    config = json.loads((model / "config.json").read_text("utf-8"))
    strange = config | {"model_type": "strange", "auto_map": {"AutoConfig": "code.X"}}
    (model / "config.json").write_text(json.dumps(strange), "utf-8")
    value = check(model, cwd=tmp_path, code=1)
    assert "does not know the model type 'strange'; it brings code of its own" in refused(value)
    (model / "config.json").write_text(json.dumps(config | {"model_type": "vit"}), "utf-8")
    assert "no causal language model" in refused(check(model, cwd=tmp_path, code=1))


def test_a_damaged_file_of_weights_is_refused(model: Path, tmp_path: Path) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    said = refused(check(model, cwd=tmp_path, code=1))
    assert f"it is cut off: {len(whole) - 1} of {len(whole)} bytes" in said
    assert "copy or download it again" in said
    file.write_bytes(b"\xff" * 64)
    assert "no whole safetensors file" in refused(check(model, cwd=tmp_path, code=1))


def test_a_missing_file_of_weights_is_refused(model: Path, tmp_path: Path) -> None:
    saved = AutoModelForCausalLM.from_pretrained(model)
    saved.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    load_tokenizer(str(model)).save_pretrained(tmp_path / "parts")
    files = sorted((tmp_path / "parts").glob("model-*.safetensors"))
    assert len(files) == 2 and check(tmp_path / "parts", cwd=tmp_path, code=0)["refused"] == []
    files[1].unlink()
    said = refused(check(tmp_path / "parts", cwd=tmp_path, code=1))
    assert f"1 of {len(files)} files of weights are not there: {files[1].name}" in said


def test_an_adapter_that_is_cut_off_or_of_another_base_is_refused(
    model: Path, tmp_path: Path
) -> None:
    settings = StudentSettings(model=str(model), lora=LoraSettings(rank=2, alpha=6))
    student = load_student(settings, tokenizer=load_tokenizer(str(model)), seed=1)
    adapter = tmp_path / "adapter"
    save_checkpoint(student, adapter)
    assert check(adapter, cwd=tmp_path, code=0)["refused"] == []
    tokenizer = load_tokenizer(str(model))
    config = json.loads((model / "config.json").read_text("utf-8"))
    LlamaForCausalLM(LlamaConfig(**config | {"hidden_size": 24, "head_dim": 12})).save_pretrained(
        tmp_path / "wider"
    )
    tokenizer.save_pretrained(tmp_path / "wider")
    wider = check(adapter, "--student.base", str(tmp_path / "wider"), cwd=tmp_path, code=1)
    assert "the adapter changes model.layers.0." in refused(wider)
    assert "the base has 24 x 32" in refused(wider) and "student.base" in refused(wider)
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert "it is cut off" in refused(check(adapter, cwd=tmp_path, code=1))


def test_the_note_of_a_family_and_tokens_without_a_row_are_told(
    model: Path, tmp_path: Path
) -> None:
    out = recompose("model", "check", str(model), cwd=tmp_path).out
    assert f" note     {FAMILIES['qwen3'].note}" in out
    tokenizer = load_tokenizer(str(model))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(model)
    notes = check(model, cwd=tmp_path, code=0)["notes"]
    assert any("1 of the tokenizer's tokens have no row" in n for n in notes)
    assert any("<image_soft_token>" in n for n in notes)


def test_a_tokenizer_larger_than_the_embedding_is_refused(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text("utf-8")) | {"vocab_size": 300}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(model)
    assert "tokens, the model embeds 300" in refused(check(model, cwd=tmp_path, code=1))


def test_an_adapter_is_checked_with_its_base(model: Path, tmp_path: Path) -> None:
    settings = StudentSettings(model=str(model), lora=LoraSettings(rank=2, alpha=6))
    student = load_student(settings, tokenizer=load_tokenizer(str(model)), seed=1)
    save_checkpoint(student, tmp_path / "adapter")
    value = check(tmp_path / "adapter", cwd=tmp_path, code=0)
    assert value["kind"] == "adapter" and value["facts"]["rank"] == 2
    assert value["facts"]["base"] == str(model) and value["facts"]["num_weights"] > 0
    model.rename(tmp_path / "moved")
    gone = check(tmp_path / "adapter", cwd=tmp_path, code=1)
    assert f"no such folder: {model}, the base of the adapter" in refused(gone)
    assert all("student.base" in r["fix"] for r in gone["refused"])
    found = check(
        tmp_path / "adapter", "--student.base", str(tmp_path / "moved"), cwd=tmp_path, code=0
    )
    assert found["facts"]["base"] == str(tmp_path / "moved")


def test_what_is_not_there_is_refused_and_the_default_is_the_settings_model(
    model: Path, tmp_path: Path
) -> None:
    value = check(tmp_path / "none", cwd=tmp_path, code=1)
    assert "no such folder" in refused(value) and "Repo id" not in refused(value)
    text = recompose("model", "check", "./none", cwd=tmp_path).out
    assert "./none, which is not there" in text and "hub name\n" not in text
    assert "no model of that name can be had" in refused(check("o/none", cwd=tmp_path, code=1))
    assert check("", cwd=tmp_path, code=0)["kind"] == "tiny"
    (tmp_path / "recompose.toml").write_text(f'[student]\nmodel = "{model}"\n', "utf-8")
    result = recompose("model", "check", "--json", cwd=tmp_path)
    assert result.code == 0 and result.value["model"] == str(model)


def test_a_gguf_file_that_is_none_or_cannot_be_read_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUX" + b"\0" * 64)
    value = check(tmp_path / "x.gguf", cwd=tmp_path, code=1)
    assert value["kind"] == "gguf" and "no GGUF file that can be read" in refused(value)
    if importlib.util.find_spec("gguf") is None:
        assert "'gguf'" in refused(value) and "[gguf]" in refused(value)
        assert "␊" not in recompose("model", "check", "x.gguf", cwd=tmp_path).out


def test_doctor_knows_what_a_gguf_student_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name == "gguf":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", installed)
    value = recompose("doctor", "--student.model", "x.gguf", "--json", cwd=tmp_path).value
    (found,) = [f for f in value["findings"] if f["name"] == "gguf"]
    assert not found["ok"] and "[gguf]" in found["fix"]
    assert not value["verbs"]["train"] and not value["verbs"]["build"] and value["verbs"]["demo"]
    plain = recompose("doctor", "--json", cwd=tmp_path).value
    assert plain["verbs"]["train"] and all(f["name"] != "gguf" for f in plain["findings"])
    monkeypatch.setattr(doctor, "version", lambda name: "1.0")
    value = recompose("doctor", "--student.model", "x.gguf", "--json", cwd=tmp_path).value
    assert value["verbs"]["train"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--student.load-in-4bit", "true"), ("--train.optimiser", "adamw_8bit")],
)
def test_doctor_knows_what_few_bits_need(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name == "bitsandbytes":
            raise PackageNotFoundError(name)
        return version(name)

    setting = option.removeprefix("--").replace("-", "_")
    path = tmp_path / "recompose.toml"
    table, _, key = setting.partition(".")
    path.write_text(f"[{table}]\n{key} = {value if value == 'true' else json.dumps(value)}\n")
    monkeypatch.setattr(doctor, "version", installed)
    found = recompose("doctor", "--json", cwd=tmp_path).value
    (finding,) = [f for f in found["findings"] if f["name"] == "bitsandbytes"]
    assert not finding["ok"] and "[qlora]" in finding["fix"] and setting in finding["found"]
    verbs = found["verbs"]
    assert not verbs["train"] and not verbs["evaluate"] and verbs["build"] and verbs["demo"]
    monkeypatch.setattr(doctor, "version", lambda name: "1.0")
    assert recompose("doctor", "--json", cwd=tmp_path).value["verbs"]["train"]


def test_a_folder_is_checked_without_pytorch(model: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from composer_replication.cli.main import run\n"
        f"sys.exit(run(['model', 'check', {str(model)!r}, '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["template"]["family"] == "qwen3"
