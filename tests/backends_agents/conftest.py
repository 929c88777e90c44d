"""Agent programs are optional: these tests run where they are installed (`make backends` installs
mini-swe-agent), and elsewhere say what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

INSTALL = {
    "mini": "`make backends` runs this test",
    "claude": "npm install @anthropic-ai/claude-code@2.1.330, and its bin folder on PATH",
    "codex": "npm install @openai/codex@0.169.0, and its bin folder on PATH",
    "opencode": "npm install opencode-ai@1.18.33, and its bin folder on PATH",
}


@pytest.fixture
def needs_program() -> Callable[[str], None]:
    """Skip if a program is not on the PATH, with the command that installs it."""

    def check(program: str) -> None:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: {INSTALL[program]}")

    return check
