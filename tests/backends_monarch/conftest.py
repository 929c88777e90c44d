"""The stage of Monarch: nothing here is collected without it, and one shutdown ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from composer_replication.training.backends.registry import MONARCH

collect_ignore_glob = ["test_*"] if MONARCH.problem() else []
"""`make backends` says "not installed"; the plain suite leaves the folder out."""


@pytest.fixture(scope="session", autouse=True)
def monarch_ends() -> Iterator[None]:
    """One thread for each process, and an end of Monarch behind the last test."""
    torch.set_num_threads(1)
    yield
    from composer_replication.training.backends.monarch_run import shutdown_monarch

    shutdown_monarch()


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the taught student's weights."""
    from tests.backends_monarch.small_run import save_weights

    return save_weights(tmp_path_factory.mktemp("taught"))
