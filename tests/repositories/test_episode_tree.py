"""A player's tree: what a command can reach and leave behind, and what is read out at the end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox import episode_tree, room_launcher, tree_sandbox
from composer_replication.repositories.sandbox.episode_tree import (
    EpisodeTree,
    EpisodeTreeError,
    PreparedTree,
    prepared_tree,
)
from composer_replication.repositories.sandbox.path_patterns import path_regex
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox
from tests.repositories.shop import make_shop, needs_walls

pytestmark = needs_walls


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[PreparedTree]:
    with prepared_tree(make_shop(tmp_path / "shop")) as tree:
        yield tree


@pytest.fixture
def tree(prepared: PreparedTree) -> Iterator[EpisodeTree]:
    with EpisodeTree(TreeSandbox(), prepared, files={"shop/cart.py": "changed = 1\n"}) as opened:
        yield opened


REACHES = {
    "the network": "python -c \"__import__('socket').create_connection(('127.0.0.1', {port}), 2)\"",
    "a home folder": "cat {home}/secret.txt",
    "the host's users": "cat /etc/passwd",
    "a host process": "kill -0 {process}",
    "the first process's memory": "head -c 1 /proc/1/mem",
    "the first process's root": "ls /proc/1/root/",
    "the first process's descriptors": "ls /proc/1/fd/",
    "the host's path of the tree": "grep -r composer-tree /proc/self/mountinfo",
    "the prepared tree": "ls /tmp/composer-tree-*",
    "the interpreter's packages": "touch $(python -c 'import os; print(os.__file__)')",
    "a kernel setting": "echo x > /proc/sys/kernel/hostname",
}


@pytest.mark.parametrize("what", list(REACHES))
def test_a_command_cannot_reach(what: str, tree: EpisodeTree, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("s", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = REACHES[what].format(
            home=tmp_path, process=os.getpid(), port=server.getsockname()[1]
        )
        assert tree.run(command).code != 0


def test_the_tools_reach_no_further_than_the_commands(tree: EpisodeTree) -> None:
    assert tree.read("/etc/passwd") == {"error": "ENOENT"}
    assert tree.read("/proc/1/environ") == {"error": "EACCES"}
    assert tree.read("/proc/version") == {"error": "EINVAL"}
    assert tree.read("/dev/zero") == {"error": "EINVAL"}
    assert tree.read("/repo") == {"error": "EISDIR"}
    # the new root, which is in memory, belongs to root or to the user of the namespace
    for path in ("/usr/lib/x", "/proc/sys/kernel/hostname", *(("/x",) if not os.getuid() else ())):
        assert tree.write(path, "x")["error"] in ("EACCES", "EROFS")


def test_changes_are_read_out_and_the_prepared_tree_stays(
    tree: EpisodeTree, prepared: PreparedTree
) -> None:
    assert tree.read("/repo/shop/cart.py")["text"] == "changed = 1\n"
    tree.write("/repo/shop/new/a.py", "a = 1\r\n")
    tree.run("rm tests/test_cart.py; ln -s /etc/passwd l; printf '\\377' > raw")
    changes = tree.changes()
    assert changes.texts == {"shop/new/a.py": "a = 1\r\n"}
    assert changes.deleted == ("tests/test_cart.py",) and changes.others == ("l", "raw")
    assert (prepared.folder / "tests/test_cart.py").exists()
    assert "def total" in (prepared.folder / "shop/cart.py").read_text(encoding="utf-8")


def test_nothing_of_the_player_runs_while_it_is_read_out(tree: EpisodeTree) -> None:
    # It only ever grows: a file that is written anew is empty most of the time, thus equal.
    later = "setsid sh -c 'while sleep .01; do echo 1 >> shop/cart.py; done' >/dev/null 2>&1 &"
    tree.run(later)
    time.sleep(0.2)
    first = tree.changes()
    assert list(first.texts) == ["shop/cart.py"]
    time.sleep(0.2)
    assert tree.changes() == first


def test_a_player_cannot_end_or_stop_the_first_process(tree: EpisodeTree) -> None:
    tree.run("kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -9 -1")
    assert tree.run("echo still here").out == "still here\n"


def test_processes_end_with_the_tree(prepared: PreparedTree) -> None:
    with EpisodeTree(TreeSandbox(), prepared) as tree:
        assert tree.run("setsid sleep 78 & sleep 78 & echo started").out == "started\n"
    end = time.monotonic() + 5
    while time.monotonic() < end and any(map(_sleeps, Path("/proc").glob("[0-9]*/cmdline"))):
        time.sleep(0.05)
    assert not any(map(_sleeps, Path("/proc").glob("[0-9]*/cmdline")))


def _sleeps(path: Path) -> bool:
    try:
        return path.read_bytes() == b"sleep\x0078\0"
    except OSError:
        return False


def test_commands_have_limits(prepared: PreparedTree) -> None:
    limits = ProcessLimits(memory_mb=256, processes=20, file_mb=1, tree_mb=4)
    with EpisodeTree(TreeSandbox(limits=limits), prepared) as tree:
        late = tree.run("echo before; sleep 30", limit_s=0.5)
        assert late.late and late.out == "before\n"
        flood = tree.run("yes", limit_s=0.5, most=1000)
        assert len(flood.out) == 1000 and flood.dropped > 0
        assert tree.run("head -c 5000000 /dev/zero > big").code != 0
        assert tree.run("for i in 1 2 3 4 5 6 7 8; do head -c 900000 /dev/zero > f$i; done").code
        assert tree.run("rm -f f*; python -c 'bytearray(1 << 30)'").code
        assert "Resource temporarily" in tree.run("for i in $(seq 40); do sleep 5 & done").err


def test_a_copy_is_as_good_as_an_overlay(prepared: PreparedTree) -> None:
    with EpisodeTree(TreeSandbox(), prepared, overlay=False) as tree:
        assert " - overlay " not in tree.run("cat /proc/self/mountinfo").out
        tree.run("echo x >> shop/cart.py; rm pyproject.toml")
        changes = tree.changes()
        assert list(changes.texts) == ["shop/cart.py"] and changes.deleted == ("pyproject.toml",)


def test_a_lost_process_costs_its_episode_alone(tree: EpisodeTree) -> None:
    assert tree._room is not None
    signal.pidfd_send_signal(tree._room.process, signal.SIGKILL)
    assert select.select([tree._room.process], [], [], 10)[0]  # it has ended
    with pytest.raises(EpisodeTreeError):
        tree.run("true")
    with pytest.raises(EpisodeTreeError, match="is closed"):
        tree.run("true")


def launcher_with(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the launcher of rooms run some code first."""
    with_hole = tree_sandbox._START.replace("sys.exit(", f"{first}; sys.exit(")
    monkeypatch.setattr(tree_sandbox, "_START", with_hole)
    launcher = room_launcher.RoomLauncher()
    monkeypatch.setattr(episode_tree, "room_launcher", lambda: launcher)


def test_without_walls_no_tree_opens(
    prepared: PreparedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    hole = (
        "from composer_replication.core import isolation as i;"
        " i.this_machine = lambda: i.MACHINES['x86_64']._replace(pivot_root=9999)"
    )
    launcher_with(hole, monkeypatch)
    with pytest.raises(SandboxError, match="pivot_root failed"):
        EpisodeTree(TreeSandbox(), prepared)


def test_a_user_namespace_is_as_good_as_root(
    prepared: PreparedTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root the walls need no user namespace; here they use one, as they do for anybody else."""
    child = "composer_replication.repositories.sandbox.tree_sandbox_child"
    launcher_with(f"import {child} as c; c.runs_as_root = lambda: False", monkeypatch)
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii")
    if os.getuid() == 0:
        for path in (prepared.folder, *prepared.folder.rglob("*")):
            os.chown(path, 0, 0)
    with EpisodeTree(TreeSandbox(), prepared) as tree:
        assert tree.run("cat /proc/self/uid_map").out != mapped
        assert tree.run("unshare -Ur true").code != 0
        tree.run("echo x >> shop/cart.py; rm -r tests; mkdir tests; echo 1 > tests/a")
        changes = tree.changes()
        assert changes.paths == ["shop/cart.py", "tests/a", "tests/test_cart.py"]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/*.py", "a/c.py", True),
        ("**", "a/b", True),
        ("*.{py,pyi}", "a.pyi", True),
        ("test_[!a]*.py", "x/test_a.py", False),
        ("a.py", "axpy", False),
        ("{", "{", False),
    ],
)
def test_a_pattern_of_paths(pattern: str, path: str, fits: bool) -> None:
    assert bool(path_regex(pattern).fullmatch(path)) is fits
