"""podman's walls hold what ours hold: their tests, run once more in containers without an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree, prepared_tree
from composer_replication.repositories.sandbox.podman import podman_options
from composer_replication.repositories.sandbox.tree_sandbox import (
    WALLS_VARIABLE,
    ProcessLimits,
    TreeSandbox,
    podman,
)

TESTS = ("test_episode_tree.py", "test_tree_sandbox.py")
OURS_ALONE = "without_walls or user_namespace"
"""Tests of how our own walls are put up."""

SLEEPS = f"import time; time.sleep(60); {os.getpid()}"


@cache
def settings() -> str:
    """The file of podman's settings for a machine without systemd, where the tests may run."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"composer-podman-{os.getpid()}.conf"
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    folder.write_text(f'[engine]\ncgroup_manager = "cgroupfs"\n{runtime}', encoding="utf-8")
    return str(folder)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(WALLS_VARIABLE, "podman")
    podman.cache_clear()
    yield
    podman.cache_clear()


@pytest.fixture
def containers(chosen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("podman"):
        pytest.skip("this machine has no podman")
    if not Path("/run/systemd/system").exists():
        monkeypatch.setenv("CONTAINERS_CONF", settings())
    podman.cache_clear()
    try:
        TreeSandbox().check()
    except SandboxError as error:
        pytest.skip(f"this machine starts no container of podman: {error}")


@pytest.mark.usefixtures("containers")
def test_its_walls_hold_what_ours_hold() -> None:
    folder = Path(__file__).parent
    options = ("-q", "-n0", "-p", "no:cacheprovider", "--no-cov", "-rs")
    tests = [str(folder / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", f"not ({OURS_ALONE})", *tests],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


@pytest.mark.usefixtures("containers")
@pytest.mark.skipif(os.getuid() != 0, reason="this machine's user is not root")
def test_memory_is_limited_for_all_processes_together(tmp_path: Path) -> None:
    sandbox = TreeSandbox(limits=ProcessLimits(memory_mb=200, tree_mb=16))
    hold = "python -c 'import time; held = bytearray(150 << 20); print(1); time.sleep(15)'"
    with prepared_tree(tmp_path) as prepared, EpisodeTree(sandbox, prepared) as tree:
        alone = tree.run(hold).out
        together = tree.run(f"{hold} & {hold} & {hold} & wait").out
    assert alone == "1\n" and together.count("1") < 3


@pytest.mark.usefixtures("containers")
def test_a_container_ends_with_the_process_that_asked_for_it() -> None:
    """podman keeps containers whose asker is gone."""
    process = TreeSandbox().start(["-c", SLEEPS])
    assert _becomes(running=True)
    process.kill()
    process.wait(timeout=10)
    assert _becomes(running=False)


def _becomes(*, running: bool) -> bool:
    """Whether the program runs, or does not, within ten seconds."""
    end = time.monotonic() + 10
    while any(map(_sleeps, Path("/proc").glob("[0-9]*/cmdline"))) is not running:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _sleeps(cmdline: Path) -> bool:
    try:
        return cmdline.read_bytes().endswith(f"\0-c\0{SLEEPS}\0".encode())
    except OSError:
        return False


@pytest.mark.usefixtures("chosen")
def test_what_is_hidden_is_not_copied_into_what_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """podman copies what lies below a file system in memory into it, unless it is told not to."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    asked = list(podman_options(TreeSandbox().specification(), kept=7))
    in_memory = [value for name, value in pairwise(asked) if name == "--tmpfs"]
    assert len(in_memory) > 2 and all("notmpcopyup" in value for value in in_memory)
    read_only = [value for name, value in pairwise(asked) if name == "--volume"]
    assert read_only and all(value.endswith(":ro,bind") for value in read_only)
    assert [value for name, value in pairwise(asked) if name == "--network"] == ["none"]


@pytest.mark.usefixtures("chosen")
def test_it_is_refused_where_it_is_missing_or_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="podman is not installed"):
        TreeSandbox().check()
    broken = tmp_path / "podman"
    broken.write_text("#!/bin/sh\necho 'Error: no space' >&2\nexit 1\n", encoding="ascii")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    with pytest.raises(SandboxError, match="Error: no space"):
        TreeSandbox().check()
    with prepared_tree(tmp_path) as prepared, pytest.raises(SandboxError, match="no space"):
        EpisodeTree(TreeSandbox(), prepared)
