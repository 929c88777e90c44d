"""Which repository a session worked on, so that held-out sessions can be kept apart by it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from functools import lru_cache
from pathlib import Path

_WORKTREE = re.compile(r"/(?:\.worktrees|\.claude/worktrees|worktrees|\.git/worktrees)/.*$")
# Folders that hold every repository of a machine or a user: sharing one says nothing.
_HOLDS_ALL = re.compile(
    r"/|/root|/home|/Users|(?:/home|/Users)/[^/]+|[A-Za-z]:|[A-Za-z]:/Users(?:/[^/]+)?"
)
_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)', re.MULTILINE | re.DOTALL)
_MAX_CONFIG_BYTES = 2**16


def enclosing_roots(folders: Iterable[str]) -> frozenset[str]:
    """Of the folders in which sessions ran, those that lie in none of the others; folders that hold
    everything are no roots.

    >>> sorted(enclosing_roots(["/home/dev/inkwell/src", "/home/dev/inkwell", "/home/dev", "/srv/shop"]))
    ['/home/dev/inkwell', '/srv/shop']
    """
    roots: set[str] = set()
    for folder in sorted({plain_folder(f) for f in folders}, key=len):
        if folder and not _HOLDS_ALL.fullmatch(folder) and not _root_of(folder, roots):
            roots.add(folder)
    return frozenset(roots)


def plain_folder(folder: str) -> str:
    """A folder without a worktree's part, with slashes."""
    return _WORKTREE.sub("", folder.replace("\\", "/")).rstrip("/")


def _root_of(folder: str, roots: Container[str]) -> str:
    """The root that a folder is or lies in; "" if there is none."""
    parts = folder.split("/")
    return next(
        (root for n in range(1, len(parts) + 1) if (root := "/".join(parts[:n])) in roots), ""
    )


def repository_of(cwd: str, *, named: str = "", roots: Container[str] = ()) -> str:
    """The repository's name: as the log names it, else "owner/name" of the folder's git remote,
    else the folder's name.

    A folder that lies in one of `roots` (see `enclosing_roots`) is called after that.

    >>> repository_of("/home/dev/inkwell/.worktrees/2"), repository_of("/x", named="acme/inkwell")
    ('inkwell', 'acme/inkwell')
    """
    if named:
        return named
    folder = plain_folder(cwd)
    return local_remote(folder) or (_root_of(folder, roots) or folder).rpartition("/")[2]


@lru_cache(maxsize=256)
def local_remote(folder: str) -> str:
    """ "owner/name" from `.git/config` of a folder of this machine or one above it; "" if there is
    none."""
    if not folder.startswith("/") or folder.startswith("//"):
        return ""
    for ancestor in (Path(folder), *Path(folder).parents):
        try:
            with (ancestor / ".git" / "config").open("rb") as stream:
                text = stream.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        match = _REMOTE.search(text)
        return remote_name(match[1]) if match else ""
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
