"""`recompose train --replicas N --sync URL`: processes that train apart and meet in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from composer_replication.core.rundir import RunDir
from composer_replication.models.pretrained_folder import read_tensors
from composer_replication.report.replicas_view import replicas_view
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
    assert "round 0 | step=2 | replicas 0 1" in result.out
    run = RunDir(work / "recompose" / "runs" / "r")
    assert run.info()["state"] == "done" and len(run.metrics()) == 4
    view = replicas_view(run.path)
    assert view is not None and view["diverged"] == []
    assert [(r["slot"], r["state"], r["took_part"]) for r in view["replicas"]] == [
        (0, "done", 2),
        (1, "done", 2),
    ]
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


def test_replicas_need_a_place_to_meet(work: Path) -> None:
    result = recompose(*TRAIN, "--replicas", "2", cwd=work)
    assert result.code == 1 and "noplacewheretheymeet" in unboxed(result.err)
    assert "--syncfile://" in unboxed(result.err)


def test_a_meeting_that_cannot_be_written_is_named(work: Path) -> None:
    (work / "file").write_text("")
    result = recompose(*TRAIN, "--sync", f"file://{work}/file/x", cwd=work)
    assert result.code == 1 and "couldnotbemade" in unboxed(result.err)


def test_whole_rounds_are_asked_for(work: Path) -> None:
    result = recompose(
        "train", "--train.steps", "3", "--train.sync.every", "2", "--sync", "memory:///", cwd=work
    )
    assert result.code == 1 and "3 steps are not whole rounds of 2" in result.err
