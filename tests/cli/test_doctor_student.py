"""`doctor` on student.model: whether it is there, its kind, and whether it could be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from composer_replication.cli import doctor_student
from tests.cli.test_template_refused import save_student
from tests.cli.workspace import recompose
from tests.models.gguf_files import qwen3_gguf
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train


def row(model: Path | str, cwd: Path, *more: str) -> dict[str, Any]:
    result = recompose("doctor", "--student.model", str(model), *more, "--json", cwd=cwd)
    assert result.code == 0, result.err
    (found,) = [f for f in result.value["findings"] if f["name"] == "student"]
    return found


def test_each_kind_of_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = row("tiny", tmp_path)
    assert tiny["ok"] and "made here" in tiny["found"]
    folder = save_student(tmp_path / "m", chatml_tokenizer(), template=official("qwen3"))
    monkeypatch.setattr(torch, "load", lambda *_: pytest.fail("weights are not loaded"))
    monkeypatch.setattr("safetensors.torch.load_file", lambda *_: pytest.fail("not loaded"))
    found = row(folder, tmp_path)
    assert found["ok"] and "a folder: llama, " in found["found"] and " weights" in found["found"]
    gguf = row(qwen3_gguf(tmp_path / "q.gguf"), tmp_path)
    assert "a GGUF file: " in gguf["found"] and gguf["ok"] == ("'gguf'" not in gguf["found"])


def test_what_is_not_there_or_cannot_be_loaded_has_a_remedy(tmp_path: Path) -> None:
    for model, told in ((tmp_path / "none", "no such folder"), (tmp_path / "x.gguf", "no such")):
        found = row(model, tmp_path)
        assert not found["ok"] and told in found["found"] and found["fix"]
    folder = save_student(tmp_path / "m", chatml_tokenizer(), template=official("qwen3"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    found = row(folder, tmp_path)
    assert not found["ok"] and "pickles" in found["found"] and "safetensors" in found["fix"]
    (folder / "config.json").write_text(json.dumps({"model_type": "of-nobody"}), "utf-8")
    assert "does not know the model type" in row(folder, tmp_path)["found"]


def test_the_hub_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("asked"))
    found = row("o/none", tmp_path)
    assert found["ok"] and "a hub name; o/none is not on this machine yet" in found["found"]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = row("o/none", tmp_path)
    assert not found["ok"] and "HF_HUB_OFFLINE" in found["found"] and "GGUF" in found["fix"]


def test_without_pytorch_it_says_what_the_student_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor_student, "find_spec", lambda name: None if name == "torch" else object()
    )
    found = row("tiny", tmp_path)
    assert not found["ok"] and "torch to load it: not installed" in found["found"]
    assert "[train]" in found["fix"]
