"""The public sessions and one real tokenizer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.workspace import recompose
from tests.real.real_tokenizers import CASES, Case, Logs, OnLogs, cache_folder, read_logs


@pytest.fixture(scope="session")
def logs(traces_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """The public sessions with their sites and hints."""
    cache_folder()
    folder = tmp_path_factory.mktemp("public")
    for verb in (("ingest", str(traces_dir)), ("sites",), ("hints",)):
        said = recompose(*verb, "-q", cwd=folder)
        assert said.code == 0, said.err
    return read_logs(folder / "recompose")


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.id)
def on(request: pytest.FixtureRequest, logs: Logs) -> Iterator[OnLogs]:
    """One family on its real tokenizer; pytest runs all tests of one before those of the next."""
    case: Case = request.param
    yield OnLogs(case, logs)
