"""Which repository a session worked on, so that held-out sessions can be kept apart by it."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_WORKTREE = re.compile(r"/(?:\.worktrees|\.claude/worktrees|worktrees|\.git/worktrees)/.*$")
_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)', re.MULTILINE | re.DOTALL)
_MAX_CONFIG_BYTES = 2**16


def repository_of(cwd: str, *, named: str = "") -> str:
    """The repository's name: as the log names it, else "owner/name" of the folder's git remote, else the folder's name.

    >>> repository_of("/home/dev/inkwell/.worktrees/2"), repository_of("/x", named="acme/inkwell")
    ('inkwell', 'acme/inkwell')
    """
    if named:
        return named
    folder = _WORKTREE.sub("", cwd.replace("\\", "/")).rstrip("/")
    return local_remote(folder) or folder.rpartition("/")[2]


@lru_cache(maxsize=256)
def local_remote(folder: str) -> str:
    """ "owner/name" from `.git/config` of a folder of this machine or one above it; "" if there is none."""
    if not folder.startswith("/") or folder.startswith("//"):
        return ""
    for place in (Path(folder), *Path(folder).parents):
        try:
            with (place / ".git" / "config").open("rb") as stream:
                text = stream.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        found = _REMOTE.search(text)
        return remote_name(found[1]) if found else ""
    return ""


def remote_name(url: str) -> str:
    """The last two parts of a remote's address, without host and credentials.

    >>> remote_name("git@github.com:acme/inkwell.git"), remote_name("https://user:pw@host/acme/inkwell")
    ('acme/inkwell', 'acme/inkwell')
    """
    path = re.sub(r"^[a-z+]+://[^/]*/", "", url)
    path = re.sub(r"^[^/:]*:", "", path)
    parts = [p for p in path.removesuffix(".git").split("/") if p]
    return "/".join(parts[-2:])
