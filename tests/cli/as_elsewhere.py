"""Runs `recompose` on Linux without what another system lacks, and refuses what it refuses. It is
no such system: it shows what would fail there, never that all goes well.

    HOME=/tmp/home python tests/cli/as_elsewhere.py windows audit --json
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

MODULES: Mapping[str, tuple[str, ...]] = {
    "windows": ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"),
    "macos": ("ossaudiodev", "spwd"),
}
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "windows": (
        *("fork", "getuid", "geteuid", "fchmod", "chown", "mkfifo"),
        *("O_NOFOLLOW", "O_DIRECTORY"),
    ),
    "macos": (
        *("copy_file_range", "eventfd", "getrandom", "memfd_create", "pidfd_open", "pipe2"),
        *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "splice"),
        *("O_DIRECT", "O_NOATIME", "O_PATH", "O_TMPFILE"),
    ),
}
"""What a system's `os` lacks."""
MOVES = ("os.rename", "os.remove")
HOME = os.environ["HOME"]


def is_open(path: str) -> bool:
    """Whether this process has a file open."""
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == path:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def refuse_on_windows(event: str, path: str) -> None:
    """No folder is opened, nothing open is moved, some names are none."""
    if event == "open" and Path(path).is_dir():
        raise PermissionError(13, "a folder", path)
    if event in MOVES and is_open(path):
        raise PermissionError(13, "it is being used by another process", path)
    for part in path.removeprefix(HOME).split("/"):
        if set(part) & set('<>:"|?*\\') or part.endswith((" ", ".")):
            raise OSError(22, "no name on Windows", path)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: neither system has /proc, and Windows refuses more in the home folder."""
    if event not in ("open", "os.mkdir", *MOVES):
        return
    for argument in arguments[: 2 if event == "os.rename" else 1]:
        path = os.fsdecode(argument) if isinstance(argument, (str, bytes, os.PathLike)) else ""
        if path.startswith("/proc/"):
            raise FileNotFoundError(2, "neither macOS nor Windows has it", path)
        if SYSTEM == "windows" and path.startswith(HOME):
            refuse_on_windows(event, path)


if __name__ == "__main__":
    SYSTEM = sys.argv.pop(1)
    for module in MODULES[SYSTEM]:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    for function in FUNCTIONS[SYSTEM]:
        delattr(os, function)
    if SYSTEM == "windows":
        shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
    sys.addaudithook(refuse)
    from composer_replication.cli.main import main

    main()
