"""The repository that a session worked on, so that held-out sessions can be kept apart by it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from functools import lru_cache
from pathlib import Path

_WORKTREE = re.compile(r"/(?:\.worktrees|\.claude/worktrees|worktrees|\.git/worktrees)/.*$")
# Folders that contain all repositories of a machine or a user: two sessions that share one of
# these may have nothing in common.
_HOLDS_ALL = re.compile(
    r"/|/root|/home|/Users|(?:/home|/Users)/[^/]+|[A-Za-z]:|[A-Za-z]:/Users(?:/[^/]+)?"
)
_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)', re.MULTILINE | re.DOTALL)
_MAX_CONFIG_BYTES = 2**16


def enclosing_roots(folders: Iterable[str]) -> frozenset[str]:
    """Reduce the folders in which sessions ran to those that lie in no other; home folders and the
    like are not roots.

    >>> ran_in = ["/home/dev/inkwell/src", "/home/dev/inkwell", "/home/dev", "/srv/shop"]
    >>> sorted(enclosing_roots(ran_in))
    ['/home/dev/inkwell', '/srv/shop']
    """
    roots: set[str] = set()
    for folder in sorted({plain_folder(f) for f in folders}, key=len):
        if folder and not _HOLDS_ALL.fullmatch(folder) and not _root_of(folder, roots):
            roots.add(folder)
    return frozenset(roots)


def plain_folder(folder: str) -> str:
    """Normalise a folder: forward slashes, and without the part that names a worktree."""
    return _WORKTREE.sub("", folder.replace("\\", "/")).rstrip("/")


def _root_of(folder: str, roots: Container[str]) -> str:
    """The root that contains a folder; "" if there is none."""
    parts = folder.split("/")
    return next(
        (root for n in range(1, len(parts) + 1) if (root := "/".join(parts[:n])) in roots), ""
    )


def repository_of(cwd: str, *, named: str = "", roots: Container[str] = ()) -> str:
    """Name the repository: as the log names it, else "owner/name" of the folder's git remote, else
    by the folder.

    A folder inside one of `roots` (see `enclosing_roots`) takes the name of that root.

    >>> repository_of("/home/dev/inkwell/.worktrees/2"), repository_of("/x", named="acme/inkwell")
    ('inkwell', 'acme/inkwell')
    """
    if named:
        return named
    folder = plain_folder(cwd)
    return local_remote(folder) or (_root_of(folder, roots) or folder).rpartition("/")[2]


@lru_cache(maxsize=256)
def local_remote(folder: str) -> str:
    """Read "owner/name" from the `.git/config` of a local folder or one above it; "" if there is
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
    """Reduce a remote's address to its last two parts, without host and credentials.

    >>> remote_name("git@github.com:acme/inkwell.git"), remote_name("https://user:pw@host/acme/inkwell")
    ('acme/inkwell', 'acme/inkwell')
    """
    path = re.sub(r"^[a-z+]+://[^/]*/", "", url)
    path = re.sub(r"^[^/:]*:", "", path)
    parts = [p for p in path.removesuffix(".git").split("/") if p]
    return "/".join(parts[-2:])
