"""Runs `recompose` without what Windows lacks, and refuses what Windows refuses. It is no Windows:
it shows what would fail there, never that all goes well.

    HOME=/tmp/home python tests/cli/as_on_windows.py audit --json
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

LACKS = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
FUNCTIONS = ("fork", "getuid", "geteuid", "fchmod", "chown", "mkfifo", "O_NOFOLLOW", "O_DIRECTORY")
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


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: no folder is opened, nothing open is moved, some names are none."""
    if event not in ("open", "os.mkdir", *MOVES):
        return
    for argument in arguments[: 2 if event == "os.rename" else 1]:
        path = os.fsdecode(argument) if isinstance(argument, (str, bytes, os.PathLike)) else ""
        if not path.startswith(HOME):
            continue
        if event == "open" and Path(path).is_dir():
            raise PermissionError(13, "a folder", path)
        if event in MOVES and is_open(path):
            raise PermissionError(13, "it is being used by another process", path)
        for part in path.removeprefix(HOME).split("/"):
            if set(part) & set('<>:"|?*\\') or part.endswith((" ", ".")):
                raise OSError(22, "no name on Windows", path)


if __name__ == "__main__":
    for module in LACKS:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    for function in FUNCTIONS:
        delattr(os, function)
    shutil._use_fd_functions = False  # pyright: ignore[reportAttributeAccessIssue]
    sys.addaudithook(refuse)
    from composer_replication.cli.main import main

    main()
