"""What TensorBoard, W&B and Trackio hold after a run is what metrics.jsonl holds; the process that
wrote it had no network."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.rundir import RunDir
from composer_replication.training.run.trackers import numbers_of

pytestmark = [pytest.mark.backend, pytest.mark.timeout(240)]
for _name in ("tensorboard", "wandb", "trackio"):
    pytest.importorskip(_name, reason=f"{_name} is not installed (make backends)")

Curves = dict[str, dict[int, float]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> tuple[Path, RunDir]:
    """The folder of a run of four steps that was resumed for two more, without a network."""
    alone = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no network namespace here: that nothing is sent cannot be shown")
    folder = tmp_path_factory.mktemp("mirrored")
    home = folder / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "TRACKIO"))}
    environment |= {"HOME": str(home), "TRACKIO_DIR": str(folder / "trackio")}
    command = [*alone, sys.executable, "-m", "tests.backends_trackers.mirrored_run", str(folder)]
    for extra in ([], ["--resume"]):
        done = subprocess.run(
            [*command, *extra],
            cwd=repository_root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""  # it belongs to the verb: with --json, one object
    return folder, RunDir(folder / "runs" / "mirrored")


def wanted(run: RunDir) -> Curves:
    """The curves of metrics.jsonl."""
    curves: Curves = {}
    for row in run.metrics():
        for name, value in numbers_of(row).items():
            curves.setdefault(name, {})[row["step"]] = value
    assert len(curves) > 10 and list(curves["hint/loss"]) == [1, 2, 3, 4, 5, 6]
    return curves


def assert_same(found: Curves, run: RunDir) -> None:
    """The same names and steps, the values to float32."""
    curves = wanted(run)
    assert found.keys() == curves.keys()
    for name, points in curves.items():
        assert found[name] == pytest.approx(points, rel=1e-6), name


def test_tensorboard(written: tuple[Path, RunDir]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(written[1].path / "trackers" / "tensorboard"))
    events.Reload()
    found = {
        name: {point.step: point.value for point in events.Scalars(name)}
        for name in events.Tags()["scalars"]
    }
    assert_same(found, written[1])


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format (blocks of 32 KiB; crc, length, type: whole,
    first, middle or last part) behind a header of seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits into what is left of the block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_wandb_offline_and_nothing_of_the_machine(written: tuple[Path, RunDir]) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    found: Curves = {}
    files = sorted((written[1].path / "trackers" / "wandb").rglob("*.wandb"))
    assert len(files) == 2  # a file per launch, under one id
    for path in files:
        for data in log_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            assert record.run.host in ("", "local") and not record.run.git.remote_url
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in values.items():
                if not name.startswith("_"):
                    found.setdefault(name, {})[int(values["_step"])] = value
            assert b"mirrored_run" not in data and b"requirements.txt" not in data, record
    assert_same(found, written[1])


def test_trackio(written: tuple[Path, RunDir]) -> None:
    found: Curves = {}
    (path,) = (written[0] / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert {name for name, _, _ in rows} == {"mirrored"}
    for _, step, metrics in rows:
        for name, value in json.loads(metrics).items():
            found.setdefault(name, {})[step] = value
    assert_same(found, written[1])
