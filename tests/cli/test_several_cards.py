"""The launch lines of docs/several_cards.md: the script for Slurm trains on two nodes, which are
two `torchrun` on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from composer_replication.core.rundir import RunDir
from tests.cli.test_train import TRAIN, built  # noqa: F401
from tests.cli.workspace import recompose
from tests.training.test_ranks import free_port

pytestmark = pytest.mark.train
SCRIPT = "examples/several_cards/train.sbatch"
STAND_INS = {
    # a node is a process of its own, which meets the other at the head node's address
    "srun": '"$@" & first=$!; "$@" & second=$!; wait $first && wait $second',
    # slow, so that a reader that stops after the first line breaks the pipe
    "scontrol": (
        'test "$*" = "show hostnames node[1-2]" && echo 127.0.0.1 && sleep 0.3 && echo node2'
    ),
}


def test_the_slurm_script_trains_one_sharded_run_on_two_nodes(
    built: Path,  # noqa: F811
    tmp_path: Path,
    repository_root: Path,
) -> None:
    work, programs = tmp_path / "w", tmp_path / "bin"
    shutil.copytree(built, work)
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
        (programs / name).chmod(0o755)
    script = str(repository_root / SCRIPT)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    environment = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(repository_root / "src"),
        "ACCELERATE_USE_CPU": "true",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_GPUS_ON_NODE": "1",
        "OMP_NUM_THREADS": "1",
        "RDZV_PORT": str(free_port()),
    }
    flags = [*TRAIN[1:], "--train.fsdp", "true"]
    launched = subprocess.run(
        ["bash", script, *flags],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert launched.returncode == 0, launched.stderr[-8000:]
    assert launched.stdout.count(" step=2 ") == 1  # one voice
    (path,) = (p for p in (work / "recompose" / "runs").iterdir() if p.name != "latest")
    run = RunDir(path)
    (start,) = (event for event in run.events() if event["kind"] == "start")
    assert start["ranks"] == 2 and [steps for steps, _ in run.checkpoints()] == [1, 2]
    # what it wrote is whole: one process exports it
    assert recompose("export", path.name, cwd=work).code == 0
    exported = load_file(work / "recompose" / "exports" / path.name / "model.safetensors")
    trained = load_file(run.checkpoints()[-1][1] / "model.safetensors")
    assert exported.keys() >= trained.keys()
    assert all(exported[name].equal(tensor) for name, tensor in trained.items())
