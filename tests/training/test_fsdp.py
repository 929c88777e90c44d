"""Weights that are sharded over 2 and 4 processes (train.fsdp) give what one process gives, in
float64; their checkpoints go on on any number of ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from composer_replication.core.rundir import RunDir
from tests.training.fsdp_child import CASES, Interrupted, run_training, take_steps
from tests.training.test_ranks import free_port

ON_FOUR = ["uneven", "live_lora", "empty_ranks"]
TOLERANCE, BF16_TOLERANCE = 1e-6, 0.02


def launch(
    folder: Path, ranks: int, arguments: list[str], root: Path
) -> list[subprocess.Popen[bytes]]:
    """The child on several ranks of this machine."""
    shared = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.training.fsdp_child", str(folder), *arguments]
    return [
        subprocess.Popen(
            command, cwd=root, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[bytes]], *, all_of_them: bool = True) -> None:
    """Wait for the ranks (or for the first, then end the others); the first failure ends all."""
    waited = processes if all_of_them else processes[:1]
    end = time.monotonic() + 400
    try:
        while not all(process.poll() == 0 for process in waited):
            assert not any(process.poll() for process in waited), "a rank failed"
            assert time.monotonic() < end, "the ranks wait for each other"
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cases_of(request: pytest.FixtureRequest, *, ranks: int | None = None) -> list[str]:
    """The cases of the tests that were asked for: each is a line of one launch."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [call.params for call in calls if call is not None and "case" in call.params]
    chosen = {p["case"] for p in wanted if "ranks" in p and ranks in (None, p["ranks"])}
    return [case for case in CASES if case in chosen]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for case in cases_of(request):
        take_steps(folder, case)
    return folder


@pytest.fixture(scope="module")
def sharded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    repository_root: Path,
) -> Callable[[int], Path]:
    folders: dict[int, Path] = {}

    def folder_of(ranks: int) -> Path:
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"on_{ranks}")
            cases = cases_of(request, ranks=ranks)
            finish(launch(folders[ranks], ranks, ["steps", *cases], repository_root))
        return folders[ranks]

    return folder_of


def gap(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest value of all tensors."""
    assert found.keys() == expected.keys()
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    return max(float((found[n] - t).abs().max()) for n, t in expected.items()) / largest


def same_metrics(
    found: dict[str, Any], expected: dict[str, Any], *, tolerance: float = TOLERANCE
) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        is_number = isinstance(value, float)
        close = pytest.approx(value, rel=tolerance, abs=1e-12) if is_number else value
        assert found[key] == close, (key, found[key], value)


@pytest.mark.parametrize(
    ("ranks", "case"), [*((2, case) for case in CASES), *((4, case) for case in ON_FOUR)]
)
def test_a_sharded_step_equals_one_rank_s(
    ranks: int, case: str, alone: Path, sharded: Callable[[int], Path]
) -> None:
    folder = sharded(ranks) / case
    tolerance = BF16_TOLERANCE if "bf16" in case else TOLERANCE
    found = [json.loads((folder / f"found_{r}.json").read_text()) for r in range(ranks)]
    expected = json.loads((alone / case / "found_0.json").read_text())
    for of_rank in found:
        assert of_rank["start_sha256"] == expected["start_sha256"]
        assert of_rank["sha256"] == found[0]["sha256"]  # the ranks never drift apart
        assert of_rank["grad_norm"] == pytest.approx(expected["grad_norm"], rel=tolerance)
        for line, reference in zip(of_rank["metrics"], expected["metrics"], strict=True):
            same_metrics(line, reference, tolerance=tolerance)
    for name in ("grads", "weights"):
        tensors, reference = (
            load_file(place / f"{name}.safetensors") for place in (folder, alone / case)
        )
        assert gap(tensors, reference) <= tolerance
    # 1 / N of the weights, of their copies, and of the optimiser's state, but for its step counts
    for kind, size in expected["bytes"].items():
        assert sum(f["bytes"][kind] for f in found) <= size * (1 + 0.01 * ranks)
        assert all(f["bytes"][kind] <= 1.02 * size / ranks for f in found)


def test_each_channel_is_trained_in_some_case(tmp_path: Path) -> None:
    statuses: dict[str, list[str]] = {}
    for case in ("rows", "credit"):
        take_steps(tmp_path, case)
        first = json.loads((tmp_path / case / "found_0.json").read_text())["metrics"][0]
        for name in ("policy", "lm_ce", "hint", "preference"):
            statuses.setdefault(name, []).append(first[f"{name}/status"])
    assert statuses == {
        "policy": ["active"] * 2,
        "lm_ce": ["active"] * 2,
        "hint": ["active"] * 2,
        "preference": ["active", "off"],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run_training(folder, resume=False)
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> dict[int, Path]:
    """A run that was interrupted in its fifth step, by the number of its ranks."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    finish(launch(two, 2, ["run", "5"], repository_root), all_of_them=False)
    with pytest.raises(Interrupted):
        run_training(one, resume=False, stop_after=5)
    return {1: one, 2: two}


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
def test_a_run_goes_on_on_another_number_of_ranks(
    before: int,
    after: int,
    *,
    interrupted: dict[int, Path],
    uninterrupted: Path,
    tmp_path: Path,
    repository_root: Path,
) -> None:
    shutil.copytree(interrupted[before], tmp_path, dirs_exist_ok=True)
    run = RunDir(tmp_path / "runs" / "r")
    assert [steps for steps, _ in run.checkpoints()] == [2, 4]
    if after == 1:
        run_training(tmp_path, resume=True)
    else:
        finish(launch(tmp_path, after, ["resume"], repository_root))
    lines, reference = run.metrics(), RunDir(uninterrupted / "runs" / "r").metrics()
    for line, expected in zip(lines[-2:], reference[-2:], strict=True):
        same_metrics(timeless(line), timeless(expected))
    folder, whole = (
        place / "runs" / "r" / "checkpoints" / "step_000006" for place in (tmp_path, uninterrupted)
    )
    for name in ("model", "optimiser", "references"):
        files = (load_file(place / f"{name}.safetensors") for place in (folder, whole))
        assert gap(*files) <= TOLERANCE
    assert [e["ranks"] for e in run.events() if e["kind"] == "start"] == [before, after]
    # what a server or `export` reads
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(model.lm_head.weight.double(), tensors["model.embed_tokens.weight"])


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: v for key, v in line.items() if key not in ("t", "step_s", "attempt")}
