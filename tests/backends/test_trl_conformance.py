"""The same frozen batch through TRL's trainer and through training/step.py: loss and gradient of
every channel are the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.frozen import WEIGHTS, reference, relative, trained

pytestmark = pytest.mark.usefixtures("needs_trl")
TOLERANCE = 1e-5
CUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "one row at a time": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
    "checkpointing": {"gradient_checkpointing": True},
}


def check(
    metrics: dict[str, Any],
    gradient: list[torch.Tensor],
    expected: tuple[dict[str, Any], list[torch.Tensor]],
    *,
    case: str,
) -> None:
    numbers, gradients = expected
    assert relative(gradient, gradients) <= TOLERANCE
    for name in WEIGHTS[case]:
        assert metrics[f"{name}/status"] == "active"
        assert metrics[f"{name}/tokens"] == numbers[f"{name}/tokens"]
        assert metrics[f"{name}/loss"] == pytest.approx(
            numbers[f"{name}/loss"], rel=TOLERANCE, abs=1e-7
        )
        assert metrics[f"{name}/grad_norm"] == pytest.approx(
            numbers[f"{name}/grad_norm"], rel=TOLERANCE
        )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", WEIGHTS)
def test_each_channel_equals_the_reference_loop(case: str, cut: str, tmp_path: Path) -> None:
    trainer, gradient = trained(case, tmp_path, **CUTS[cut])
    check(trainer.state.log_history[0], gradient, reference(case), case=case)


def test_a_live_teacher_and_lora_with_its_adapters_off(tmp_path: Path) -> None:
    trainer, gradient = trained("hint", tmp_path / "live", hint_teacher="live")
    check(trainer.state.log_history[0], gradient, reference("hint", teacher="live"), case="hint")
    trainer, gradient = trained("all", tmp_path / "lora", lora=True)
    check(trainer.state.log_history[0], gradient, reference("all", lora=True), case="all")


def test_the_temperature_of_sampling_does_not_reach_the_pairs_and_the_hint(tmp_path: Path) -> None:
    """TRL bakes its temperature into the head that it scores with."""
    for case in ("hint", "preference"):
        trainer, gradient = trained(case, tmp_path / case, temperature=0.7)
        check(trainer.state.log_history[0], gradient, reference(case), case=case)


def test_two_ranks_with_accumulation_equal_the_reference_loop(
    tmp_path: Path, repository_root: Path
) -> None:
    """Five pairs over two ranks and two micro-batches: one micro-batch has a pair on one rank
    only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    shared |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    command = [sys.executable, "-m", "tests.backends.frozen", str(tmp_path), "all", json.dumps(cut)]
    ranks = [
        subprocess.Popen(
            command, cwd=repository_root, env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(2)
    ]
    try:
        assert [process.wait(timeout=200) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    first, second = (torch.load(tmp_path / f"rank_{rank}.pt") for rank in range(2))
    assert relative(first["grads"], second["grads"]) == 0.0
    check(first["log"][0], first["grads"], reference("all"), case="all")
