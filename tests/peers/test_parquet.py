"""The Parquet files of `sessions --write --form parquet`, read back by `datasets` and taken by TRL
(`make peers`)."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.workspace import recompose

LOGS = Path(__file__).parent.parent / "data" / "ingestion" / "other_agents"


@pytest.fixture(autouse=True)
def needs_datasets() -> None:
    for package in ("datasets", "trl"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `make peers` runs this test")


def written(folder: Path, *logs: Path, fraction: float) -> tuple[Any, list[dict[str, Any]]]:
    """The data set that `datasets` reads, and the lines of --form trl."""
    import datasets

    for log in logs:
        shutil.copytree(log, folder / "logs" / log.name)
    (folder / "recompose.toml").write_text(
        f'[held_out]\nby = "session"\nfraction = {fraction}\n', "utf-8"
    )
    assert recompose("ingest", "logs", cwd=folder).code == 0
    assert recompose("sites", cwd=folder).code == 0
    for form, name in (("trl", "rows.jsonl"), ("parquet", "set")):
        done = recompose("sessions", "--write", name, "--form", form, cwd=folder)
        assert done.code == 0, done.err
    assert not list(folder.glob(".*part*")) and "Traceback" not in done.err
    lines = (folder / "rows.jsonl").read_text("utf-8").splitlines()
    cache = str(folder / "cache")
    return datasets.load_dataset(str(folder / "set"), cache_dir=cache), [*map(json.loads, lines)]


def test_other_agents_go_to_parquet_and_back(tmp_path: Path) -> None:
    from trl.data_utils import is_conversational

    found, lines = written(tmp_path, LOGS, fraction=0.4)
    assert set(found) == {"train", "test"} and len(found["test"]) >= 3
    rows = [row for split in found.values() for row in split]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, lines)) and len(rows) > 20
    assert all(map(is_conversational, rows))
    card = (tmp_path / "set" / "README.md").read_text("utf-8")
    assert f"{len(found['train']):,} rows in `train`" in card and "mistake:" in card


@pytest.mark.real
def test_public_sessions_go_to_parquet_and_back(tmp_path: Path, traces_dir: Path) -> None:
    found, lines = written(tmp_path, traces_dir, fraction=0.2)
    rows = [row for split in found.values() for row in split]
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, lines)) and len(rows) > 500
