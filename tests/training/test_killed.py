"""SIGKILL anywhere in a run with live rollouts, three channels, a tree and a slow teacher: resumed, it is the undisturbed run bit by bit."""

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
    "reply 4",  # in the middle of the first rollouts
    "op open tokens/.watched.jsonl",  # while what is watched is written down
    "op open tokens/.step_000000.json",  # it is written down, its first table is not
    'torn "step":2,',  # in the middle of a line of metrics
    "op os.mkdir checkpoints/.step_000002.part",  # between a line and its checkpoint
    "half model",  # in the middle of a checkpoint's weights
    "half optimiser",
    "op open checkpoints/.step_000002.part/.trainer.json",  # before a checkpoint's state
    "op os.rename checkpoints/.step_000002.part",  # a whole checkpoint that has no name yet
    "op os.rename checkpoints/step_000000",  # before an old one is pruned
    "op os.remove trainer.json",  # while one is pruned
    "reply 2",
    "op os.rename samples/.step_000002.jsonl",
    "half references",  # the slow average
    "op open tokens/.step_000005.json",
    "op os.rename .run.json",  # all is done but to say so
]
RANDOM = [f"op #{random.Random(seed).randrange(2, 60)}" for seed in range(4)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(run: RunDir, *folders: str) -> dict[str, str]:
    """Hash of every file below some folders of a run, by path."""
    found = [p for name in folders for p in sorted((run.path / name).rglob("*")) if p.is_file() and p.name != "trainer.json"]
    return {p.relative_to(run.path).as_posix(): digest(p) for p in found}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("places", [CHOSEN, RANDOM], ids=["chosen", "random"])
def test_a_run_that_is_killed_again_and_again_is_the_undisturbed_run(places: list[str], tmp_path: Path, repository_root: Path) -> None:
    (tmp_path / "places.json").write_text(json.dumps(places), "utf-8")
    subprocess.run([sys.executable, "-m", "tests.training.killed", str(tmp_path)], cwd=repository_root, check=True, timeout=280)
    ended: dict[str, Any] = json.loads((tmp_path / "launches.json").read_text("utf-8"))
    assert ended["teach"] == ended["whole"] == 0
    assert dict(zip([*places, "end"], ended["killed"], strict=True)) == {**dict.fromkeys(places, -signal.SIGKILL), "end": 0}

    whole, killed = RunDir(tmp_path / "runs" / "whole"), RunDir(tmp_path / "runs" / "killed")
    lines = whole.metrics()
    assert [same(line) for line in killed.metrics()] == [same(line) for line in lines]
    assert files(killed, "checkpoints", "samples", "tokens") == files(whole, "checkpoints", "samples", "tokens")
    assert {line[f"{name}/status"] for line in lines for name in ("policy", "hint", "preference")} >= {"active"}
    assert all(any(line[f"{name}/status"] == "active" for line in lines) for name in ("policy", "hint", "preference"))
    assert len({line["rollouts/entropy"] for line in lines}) == 5 and killed.info()["state"] == "done"
    assert killed.info()["attempts"] == len(places) + 1 and not list(killed.path.rglob("*.part"))
