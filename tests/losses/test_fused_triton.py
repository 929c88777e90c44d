"""The Triton kernel in Triton's own interpreter, on the CPU: its arithmetic against the eager
kernel. No GPU has run it yet."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton comes with torch's CUDA builds; this torch has none",
)
def test_the_kernel_gives_what_the_eager_one_gives(repository_root: Path) -> None:
    """In its own process, because triton chooses the interpreter when it is imported."""
    completed = subprocess.run(
        [sys.executable, "-m", "tests.losses.triton_child"],
        cwd=repository_root,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "18 cases" in completed.stdout
