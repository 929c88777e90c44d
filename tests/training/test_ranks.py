"""Two processes over gloo on this machine equal one, even if a rank lacks a channel or has no
data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import RunDir
from composer_replication.training.run.ranks import join_ranks, shared_run
from tests.training.child import RANKS, ranked_run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("case", RANKS)
def test_two_ranks_equal_one(case: str, tmp_path: Path, repository_root: Path) -> None:
    two_ranks, alone = tmp_path / "both", tmp_path / "alone"
    shared = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.training.child", str(two_ranks), case]
    ranks = [
        subprocess.Popen(
            command, cwd=repository_root, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    ranked_run(alone, case)
    try:
        assert [process.wait(timeout=600) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    lines, expected = (RunDir(folder / "runs" / "r").metrics() for folder in (two_ranks, alone))
    assert len(lines) == len(expected) == 3
    for metrics, reference in zip(lines, expected, strict=True):
        assert metrics.keys() == reference.keys()
        for key, value in reference.items():
            if key not in ("t", "step_s"):
                assert close(metrics[key], value), (key, metrics[key], value)
    first, second, single = (
        load_file(str(p))
        for p in (*sorted(two_ranks.glob("weights_*")), alone / "weights_0.safetensors")
    )
    for name, tensor in single.items():
        assert torch.equal(first[name], second[name])  # the ranks never drift apart
        assert torch.allclose(first[name], tensor, atol=2e-5), name
    (start,) = (e for e in RunDir(two_ranks / "runs" / "r").events() if e["kind"] == "start")
    # only the main rank writes
    assert start["ranks"] == 2 and not list((two_ranks / "other").rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("ACCELERATE_USE_FSDP", "asks for FSDP, which this trainer does not use"),
        ("ACCELERATE_USE_DEEPSPEED", "asks for DeepSpeed"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "not split over cards here .* verl and prime-rl"),
    ],
)
def test_a_launcher_that_asks_for_more_than_replicas_is_refused(
    variable: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be ignored: every rank would hold and compute everything."""
    assert join_ranks().num_processes == 1
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ConfigError, match=problem) as caught:
        shared_run(lambda: pytest.fail("a run directory was made"))
    assert "torchrun" in caught.value.fix
    with pytest.raises(ConfigError, match=problem):
        ranked_run(tmp_path, "empty_rank")


def close(a: Any, b: Any) -> bool:
    return a == pytest.approx(b, rel=1e-4, abs=1e-7) if isinstance(b, float) else a == b
