"""`recompose train --replicas N --sync URL`: replicas that sync through a folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from composer_replication.cli.train_text import round_text
from composer_replication.core.rundir import RunDir
from composer_replication.models.pretrained_folder import read_tensors
from composer_replication.report.replicas_view import replica_runs, replicas_view, rounds_of
from tests.cli.test_train import built as built
from tests.cli.test_train import work as work
from tests.cli.workspace import recompose

pytest.importorskip("obstore")
pytestmark = pytest.mark.train
TRAIN = ("train", "--train.steps", "4", "--train.batch_examples", "2", "--train.sync.every", "2")


def unboxed(text: str) -> str:
    """An error without its box, and without the spaces at which it was wrapped."""
    return re.sub(r"[\s│]", "", text)


def test_two_replicas_make_one_run(work: Path) -> None:
    url = f"file://{work}/meeting"
    result = recompose(*TRAIN, "--replicas", "2", "--sync", url, "--name", "r", cwd=work)
    assert result.code == 0, result.err
    assert f"2 started here; they sync through {url} every 2 steps: 2 rounds" in result.out
    run = RunDir(work / "recompose" / "runs" / "r")
    assert run.info()["state"] == "done" and len(run.metrics()) == 4
    view = replicas_view(run.path)
    assert view is not None and view["diverged"] == []
    assert [(r["slot"], r["state"], r["took_part"]) for r in view["replicas"]] == [
        (0, "done", 2),
        (1, "done", 2),
    ]
    for facts in view["rounds"]:  # a round is printed with what all its replicas sent and waited
        assert facts["waits"].keys() == {0, 1} and round_text(facts) in result.out
    ends = [
        read_tensors(folder / "model.safetensors")
        for folder in (
            run.checkpoint(4),
            *(RunDir(run.path / "replicas" / str(i)).checkpoint(4) for i in range(2)),
        )
    ]
    for other in ends[1:]:
        assert all(torch.equal(ends[0][name], other[name]) for name in ends[0])
    settings = [
        json.loads((run.path / "replicas" / str(i) / "resolved.json").read_text())["train"]["sync"]
        for i in range(2)
    ]
    assert [s["slot"] for s in settings] == [0, 1]
    page = recompose("report", "r", cwd=work)
    assert page.code == 0, page.err
    assert "Replicas" in run.report_html.read_text("utf-8")
    shown = recompose("show", "run", "r", cwd=work)
    assert "all replicas had the same weights" in shown.out and "0 done (2 rounds" in shown.out
    alone = recompose("show", "run", str(run.path / "replicas" / "1"), cwd=work)
    assert "replica 1 (this run has no records of the others" in alone.out
    other = recompose(
        *(*TRAIN, "--replicas", "2", "--sync", url, "--name", "q"),
        *("--train.learning_rate", "0.03"),
        cwd=work,
    )
    assert other.code == 1 and "replicas0,1:" in unboxed(other.err)
    assert "train.learning_rate" in unboxed(other.err)
    jobs = work / "recompose" / "runs" / "q" / "replicas" / "jobs"
    assert len([path for path in jobs.iterdir() if path.is_dir()]) == 2, "nobody was started twice"


def test_replicas_outlive_who_started_them_and_are_watched_again(work: Path) -> None:
    url = f"file://{work}/meeting"
    words = ("--replicas", "2", "--sync", url, "--train.steps", "40", "--train.sync.every", "2")
    command = (sys.executable, "-m", "composer_replication.cli", "train", *words, *TRAIN[3:5])
    started = subprocess.Popen([*command, "--name", "r", "--trust-settings"], cwd=work)
    run = RunDir(work / "recompose" / "runs" / "r")
    while not rounds_of(replica_runs(run.path)):
        assert started.poll() is None
        time.sleep(0.1)
    started.kill()
    started.wait()
    alone = recompose("train", "--resume", "r", *words[2:], *TRAIN[3:5], cwd=work)
    assert alone.code == 1 and "--replicas2" in unboxed(alone.err)
    resumed = recompose("train", "--resume", "r", *words, *TRAIN[3:5], cwd=work)
    assert resumed.code == 0, resumed.err
    assert "replica 0 is still running" in resumed.out
    assert "replica 1 is still running" in resumed.out
    view = replicas_view(run.path)
    assert view is not None and len(view["rounds"]) == 20
    assert [(r["launches"], r["took_part"]) for r in view["replicas"]] == [(1, 20), (1, 20)]


def test_replicas_that_a_health_rule_stops_all_end_as_one_run_does(work: Path) -> None:
    url = f"file://{work}/wild_meeting"
    result = recompose(
        *(*TRAIN, "--replicas", "2", "--sync", url, "--name", "wild"),
        *("--train.learning_rate", "1e8", "--train.max_grad_norm", "1e8"),
        cwd=work,
    )
    assert result.code == 3 and "stopped" in result.err, result.err
    run = work / "recompose" / "runs" / "wild"
    states = [RunDir(run / "replicas" / str(i)).info()["state"] for i in range(2)]
    assert states == ["stopped:not_finite"] * 2
    jobs = [path for path in (run / "replicas" / "jobs").iterdir() if path.is_dir()]
    assert len(jobs) == 2, "nobody was started twice"


def test_replicas_need_a_store_to_sync_through(work: Path) -> None:
    result = recompose(*TRAIN, "--replicas", "2", cwd=work)
    assert result.code == 1 and "nostorethroughwhichtheysync" in unboxed(result.err)
    assert "--syncfile://" in unboxed(result.err)


@pytest.mark.parametrize(
    ("url", "why"),
    [("/somewhere", "nostorehastheaddress"), ("memory:///", "theysharenomemory")],
)
def test_a_store_that_replicas_cannot_share_is_refused_before_anything_starts(
    url: str, why: str, work: Path
) -> None:
    result = recompose(*TRAIN, "--replicas", "2", "--sync", url, cwd=work)
    assert result.code == 1 and why in unboxed(result.err)
    assert not (work / "recompose" / "runs").exists()


def test_a_store_that_cannot_be_written_is_named(work: Path) -> None:
    (work / "file").write_text("")
    result = recompose(*TRAIN, "--sync", f"file://{work}/file/x", cwd=work)
    assert result.code == 1 and "couldnotbemade" in unboxed(result.err)


def test_whole_rounds_are_asked_for(work: Path) -> None:
    result = recompose(
        "train", "--train.steps", "3", "--train.sync.every", "2", "--sync", "memory:///", cwd=work
    )
    assert result.code == 1 and "3 steps are not whole rounds of 2" in result.err
