"""A model's folder, a checkpoint and a built tokenizer may come from anybody: no Python of theirs
is run, and no pickle is read."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models.load_student import load_student
from composer_replication.tokens.hf import load_tokenizer

pytestmark = pytest.mark.train
STUDENT = Path(__file__).resolve().parents[2] / "examples" / "workshop_student"


class Payload:
    """A pickle payload: it writes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return Path.write_bytes, (self.mark, b"ran")  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STUDENT, tmp_path / "model"))


def evil(folder: Path, mark: Path) -> None:
    """A folder with code for its model and tokenizer, of a type that transformers does not know."""
    (folder / "code.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).write_text('ran')\nclass X: pass\n", "utf-8"
    )
    for name, auto in (
        ("config.json", {"AutoConfig": "code.X", "AutoModelForCausalLM": "code.X"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["code.X", "code.X"]}),
    ):
        value = json.loads((folder / name).read_text("utf-8"))
        value |= {
            "auto_map": auto,
            **(
                {"model_type": "strange"}
                if name == "config.json"
                else {"tokenizer_class": "Strange"}
            ),
        }
        (folder / name).write_text(json.dumps(value), "utf-8")


def test_code_that_a_model_brings_is_not_run_even_where_a_terminal_says_yes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "y")
    tokenizer = load_tokenizer(str(folder))
    evil(folder, tmp_path / "mark")
    with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
        load_tokenizer(str(folder))
    with pytest.raises(ConfigError, match="cannot load"):
        load_student(StudentSettings(model=str(folder)), tokenizer=tokenizer, seed=1)
    assert not (tmp_path / "mark").exists() and not asked


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    weights = load_student(
        StudentSettings(model=str(folder)), tokenizer=tokenizer, seed=1
    ).model.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot load"):
        load_student(StudentSettings(model=str(folder)), tokenizer=tokenizer, seed=1)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "mark")))
    with pytest.raises(ConfigError, match="cannot load"):
        load_student(StudentSettings(model=str(folder)), tokenizer=tokenizer, seed=1)
    assert not (tmp_path / "mark").exists()
