"""bubblewrap's walls hold what ours hold: their tests, run once more by a user without rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.bubblewrap import options
from composer_replication.repositories.sandbox.tree_sandbox import (
    WALLS_VARIABLE,
    TreeSandbox,
    bubblewrap,
)

TESTS = ("test_episode_tree.py", "test_tree_sandbox.py")
SOMEBODY = 1234
needs_bwrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="this machine has no bubblewrap")


@pytest.fixture
def chosen() -> Iterator[None]:
    bubblewrap.cache_clear()
    yield
    bubblewrap.cache_clear()


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        if os.getuid() == 0:
            os.chown(folder, SOMEBODY, SOMEBODY)
        yield Path(folder)


def as_somebody(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter as a user without rights, with bubblewrap's walls."""
    other = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
    return subprocess.run(
        [*(other if os.getuid() == 0 else ()), sys.executable, *arguments],
        env={
            **os.environ,
            WALLS_VARIABLE: "bubblewrap",
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_CONFIG_HOME": str(home),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


@needs_bwrap
def test_its_walls_hold_what_ours_hold(home: Path) -> None:
    if as_somebody(home, "-c", "import composer_replication").returncode:
        pytest.skip("this machine lets no other user read this checkout")
    folder = Path(__file__).parent
    done = as_somebody(
        home,
        *("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--no-cov", "-rs"),
        *("-k", "not without_walls", *(str(folder / name) for name in TESTS)),
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


def test_a_judges_tree_is_not_hidden_by_an_empty_one(tmp_path: Path) -> None:
    judges = TreeSandbox(read_only=((str(tmp_path), "/repo"),)).specification()
    for specification, empty in ((judges, 0), (TreeSandbox().specification(), 1)):
        asked = list(options(specification))
        places = [value for name, value in pairwise(asked) if name == "--tmpfs"]
        assert places.count("/repo") == empty


def test_it_is_refused_to_root_and_where_it_is_missing(
    chosen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WALLS_VARIABLE, "bubblewrap")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(SandboxError, match="root's rights"):
        bubblewrap()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="not installed"):
        bubblewrap()
    monkeypatch.setenv(WALLS_VARIABLE, "docker")
    with pytest.raises(SandboxError, match="bubblewrap, podman or namespaces"):
        bubblewrap()


def test_it_takes_over_where_the_kernel_refuses_namespaces(
    chosen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WALLS_VARIABLE, raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    for code, path in ((1, "/usr/bin/bwrap"), (0, "")):
        bubblewrap.cache_clear()
        tried = subprocess.CompletedProcess([], code)
        monkeypatch.setattr(subprocess, "run", lambda *_, tried=tried, **__: tried)
        assert bubblewrap() == path
