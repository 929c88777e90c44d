"""SIGKILL anywhere in a live run with three channels, a tree and a slow teacher: resumed, it is the
undisturbed run bit by bit."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.rundir import RunDir
from tests.training.test_resume import same

pytestmark = pytest.mark.train
CHOSEN = [
    "op os.rename checkpoints/.step_000000.part",  # before the first checkpoint
    "op os.rename .run.json",  # before a launch has written its first event
    "reply 4",  # in the middle of the first rollouts
    "op open tokens/.watched.jsonl",  # while the watched sites are written
    "op open tokens/.step_000000.json",  # it is written down, its first table is not
    'torn "step":2,',  # in the middle of a line of metrics
    "op os.mkdir checkpoints/.step_000002.part",  # between a line and its checkpoint
    "half model",  # in the middle of a checkpoint's weights
    "half optimiser",
    "op open checkpoints/.step_000002.part/.trainer.json",  # before a checkpoint's state
    "op os.rename checkpoints/.step_000002.part",  # a whole checkpoint that has no name yet
    "op os.rename checkpoints/step_000000",  # before an old one is pruned
    "op os.remove checkpoints/.step_000000.old.part",  # while one is pruned
    "reply 2",
    "op os.rename samples/.step_000002.jsonl",
    "half references",  # the slow average
    "op os.rename checkpoints/step_000004",  # all is saved: to prune is left, and the last table
    "op open tokens/.step_000005.json",
]
PLACES = {
    "chosen": CHOSEN,
    "random": [f"op #{random.Random(seed).randrange(2, 60)}" for seed in range(4)],
}
TIMEOUT_S = 500


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(run: RunDir, *folders: str) -> dict[str, str]:
    """Hash of every file below some folders of a run, by path."""
    paths = [
        p
        for name in folders
        for p in sorted((run.path / name).rglob("*"))
        if p.is_file() and p.name != "trainer.json"
    ]
    return {p.relative_to(run.path).as_posix(): digest(p) for p in paths}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> Path:
    """The folder of three runs, all ended: "whole", "chosen" and "random"."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "places.json").write_text(json.dumps(PLACES), "utf-8")
    subprocess.run(
        [sys.executable, "-m", "tests.training.killed", str(folder)],
        cwd=repository_root,
        check=True,
        timeout=TIMEOUT_S,
    )
    return folder


@pytest.mark.timeout(TIMEOUT_S)
def test_the_undisturbed_run_feeds_three_channels_from_its_own_rollouts(runs: Path) -> None:
    lines = RunDir(runs / "runs" / "whole").metrics()
    assert [metrics["step"] for metrics in lines] == [1, 2, 3, 4, 5] and len(
        {metrics["rollouts/entropy"] for metrics in lines}
    ) == 5
    for name in ("policy", "hint", "preference"):
        assert any(metrics[f"{name}/status"] == "active" for metrics in lines)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", PLACES)
def test_a_run_that_is_killed_again_and_again_is_the_undisturbed_run(name: str, runs: Path) -> None:
    ended: dict[str, Any] = json.loads((runs / "launches.json").read_text("utf-8"))
    assert ended["teach"] == ended["whole"] == [0]
    assert dict(zip([*PLACES[name], "end"], ended[name], strict=True)) == {
        **dict.fromkeys(PLACES[name], -signal.SIGKILL),
        "end": 0,
    }
    uninterrupted, killed = RunDir(runs / "runs" / "whole"), RunDir(runs / "runs" / name)
    assert [same(metrics) for metrics in killed.metrics()] == [
        same(metrics) for metrics in uninterrupted.metrics()
    ]
    assert files(killed, "checkpoints", "samples", "tokens") == files(
        uninterrupted, "checkpoints", "samples", "tokens"
    )
    assert (
        1 < killed.info()["attempts"] <= len(PLACES[name]) + 1 and killed.info()["state"] == "done"
    )
    assert not list(killed.path.rglob("*.part"))
