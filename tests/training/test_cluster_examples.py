"""The settings for 2 nodes with 8 GPUs each that examples/ has for every backend: they are parsed,
hosted, and say that they were not run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from composer_replication.core.config.root import Config
from composer_replication.training.backends.monarch_hosted import check_hosted_by_monarch
from composer_replication.training.backends.prime_rl_settings import check_prime_rl, write_files
from composer_replication.training.backends.registry import trainers
from composer_replication.training.backends.trl_settings import check_hosted
from composer_replication.training.backends.verl_settings import check_hosted_by_verl

NODES, CARDS = 2, 16


def example(root: Path, name: str) -> Config:
    text = (root / "examples" / f"{name}_cluster" / "recompose.toml").read_text("utf-8")
    assert text.startswith("# NOT RUN HERE") and f"docs/backends/{name}.md" in text
    assert f"--backend {name} --check" in text
    return Config.model_validate(tomllib.loads(text))


@pytest.mark.parametrize("name", [name for name in trainers() if name != "reference"])
def test_every_backend_has_settings_for_two_nodes(name: str, repository_root: Path) -> None:
    config = example(repository_root, name)
    assert config.train.backend == name
    assert config.rollouts.groups * config.rollouts.group_size % CARDS == 0


def test_verls_are_hosted(repository_root: Path) -> None:
    config = example(repository_root, "verl")
    check_hosted_by_verl(config)
    assert (config.train.verl.ray_workers, config.train.verl.ray_nodes) == (CARDS, NODES)


def test_trls_are_hosted_and_a_forward_fits_each_rank(repository_root: Path) -> None:
    config = example(repository_root, "trl")
    check_hosted(config, pairs=())
    assert config.train.micro_tokens >= config.rollouts.max_context_tokens


def test_monarchs_are_hosted_and_take_every_card(repository_root: Path) -> None:
    config = example(repository_root, "monarch")
    check_hosted_by_monarch(config)
    assert config.monarch.trainers + config.monarch.generators == CARDS


def test_prime_rls_are_hosted_and_written(repository_root: Path, tmp_path: Path) -> None:
    config = example(repository_root, "prime_rl")
    check_prime_rl(config)
    written = tomllib.loads(write_files(config, folder=tmp_path).read_text("utf-8"))
    nodes = written["deployment"]["num_train_nodes"] + written["deployment"]["num_infer_nodes"]
    assert nodes == NODES and nodes * written["deployment"]["gpus_per_node"] == CARDS
