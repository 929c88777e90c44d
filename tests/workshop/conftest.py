"""One sandbox for all tests of the workshop: its runs share only the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from composer_replication.workshop.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as shared:
        yield shared
