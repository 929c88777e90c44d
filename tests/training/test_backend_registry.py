"""The table of backends: versions, what doctor prints, and the page that is written from it."""

from __future__ import annotations

import importlib.metadata
import typing
from pathlib import Path

import pytest

from composer_replication.cli import backend_refusals, doctor_backends
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.artefact import Dataset
from composer_replication.training.backends.registry import BACKENDS, FEATURES, Backend, trainers
from scripts.docs_backends import PAGE, page_text
from tests.cli.workspace import recompose

TRY = Backend(
    name="try", kind="trainer", package="try-it", lowest=(1, 2), below=(1, 4), hosts={"lora": "yes"}
)


@pytest.mark.parametrize(
    ("version", "fits"),
    [("1.1.9", False), ("1.2", True), ("1.3.99", True), ("1.4.0rc1", False), ("1.10", False)],
)
def test_a_version_outside_the_tested_ones_is_a_problem(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    problem = "" if fits else f"try-it {version} is installed, >=1.2,<1.4 was tested"
    assert TRY.problem() == problem


def test_a_missing_package_is_named_with_its_install_command() -> None:
    assert TRY.problem() == "try-it is not installed"
    assert TRY.command().endswith("-m pip install 'try-it>=1.2,<1.4'")


def test_every_trainer_is_a_value_of_the_setting_and_hosts_known_features() -> None:
    names = typing.get_args(TrainSettings.model_fields["backend"].annotation)
    assert set(trainers()) <= set(names)
    for backend in BACKENDS.values():
        assert set(backend.hosts) <= set(FEATURES), backend.name


def test_a_backend_without_an_adapter_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_refusals, "BACKENDS", {"reference": BACKENDS["reference"]})
    config = Config.model_validate({"train": {"backend": "trl"}})
    with pytest.raises(ConfigError, match="no adapter for trl"):
        backend_refusals.check_backend(config, Dataset(examples=(), pairs=(), meta={}))


def test_doctor_prints_each_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_backends, "BACKENDS", {**BACKENDS, "try": TRY})
    rows = {
        row["name"]: row for row in recompose("doctor", "--json", cwd=tmp_path).value["backends"]
    }
    assert set(rows) == {*BACKENDS, "try"}
    assert rows["try"]["problem"] == "try-it is not installed"
    assert rows["try"]["hosts"] == "LoRA"
    assert "try-it>=1.2" in rows["try"]["fix"]
    assert rows["reference"]["problem"] == ""
    printed = recompose("doctor", cwd=tmp_path).out
    assert "try-it is not installed" in printed
    assert "hosts: LoRA" in printed


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text("utf-8") == page_text(), "stale: run python scripts/docs_backends.py"
