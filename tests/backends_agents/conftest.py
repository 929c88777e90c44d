"""Agent programs are optional: these tests run where they are installed (`make backends` installs
mini-swe-agent, and those of npm where there is npm), and elsewhere say what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest


@pytest.fixture
def needs_program(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Skip if a program is not on the PATH; scripts/run_backend.py reads which programs ran."""

    def check(program: str) -> None:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: see docs/serve.md")
        record_property("program", program)

    return check
