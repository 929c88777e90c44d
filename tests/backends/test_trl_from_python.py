"""The Python of docs/backends/trl.md runs as it stands, and its rollouts are no garbage."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.backends.frozen import ROOT

pytestmark = pytest.mark.usefixtures("needs_trl")
PAGE = ROOT / "docs" / "backends" / "trl.md"


def test_the_python_of_the_page_trains_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(block, "utf-8")
    names = runpy.run_path(str(tmp_path / "page.py"))
    first = names["trainer"].state.log_history[0]
    assert first["completions/clipped_ratio"] < 1.0 and first["rollouts/malformed"] == 0
    assert first["tools/call_frequency"] > 0
