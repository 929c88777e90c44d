"""Scripts of benchmarks/ that import their neighbours by their own names."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture
def real_hints() -> ModuleType:
    """The script, which imports its neighbours by their own names."""
    pytest.importorskip("torch", reason="the script runs models")
    import real_hints  # pyright: ignore[reportMissingImports]

    return real_hints
