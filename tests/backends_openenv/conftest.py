"""openenv is optional: these tests run in its stage (`make backends`), and elsewhere give the
reason for the skip."""

from __future__ import annotations

import pytest

from composer_replication.training.backends.registry import BACKENDS


@pytest.fixture(scope="session", autouse=True)
def needs_openenv() -> None:
    """Skip if openenv cannot be used, with the message that a user would get."""
    if problem := BACKENDS["openenv"].problem():
        pytest.skip(f"{problem}: `make backends` runs this test")
