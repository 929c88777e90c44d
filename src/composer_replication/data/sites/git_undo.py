"""The files and commits that a git command takes back: checkout, restore, reset --hard, revert."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import NamedTuple

from composer_replication.data.sites.shell import Command, Simple

_COMMITTED = re.compile(r"^\[[^\]\n]*?\b([0-9a-f]{7,40})\]", re.MULTILINE)


class GitUndo(NamedTuple):
    """What a command line takes back: paths (a folder = all in it), and commits that it reverts.

    `("/w/a.py",), ()` for `git checkout -- a.py` in /w.
    """

    paths: tuple[str, ...] = ()
    reverts: tuple[str, ...] = ()


def undone_by(command: Command, *, cwd: str) -> GitUndo:
    """Read a command line; relative paths are seen from `cwd` and from the `cd` before them.

    >>> from composer_replication.data.sites.shell import parse
    >>> undone_by(parse("cd cli && git restore a.go"), cwd="/w").paths
    ('/w/cli/a.go',)
    """
    paths: list[str] = []
    reverts: list[str] = []
    for simple in command.simple:
        if simple.name == "cd" and simple.operands:
            cwd = posixpath.join(cwd, simple.operands[0])
        if simple.name != "git":
            continue
        words, folder = _without_folder(simple, cwd)
        verb, rest = (words[0], words[1:]) if words else ("", [])
        if verb == "revert":
            reverts += [word for word in rest if not word.startswith("-")]
        operands = _restored(verb, rest)
        paths += [posixpath.normpath(posixpath.join(folder, operand)) for operand in operands]
    return GitUndo(tuple(paths), tuple(reverts))


def _without_folder(simple: Simple, cwd: str) -> tuple[list[str], str]:
    words = list(simple.words)
    if words[:1] == ["-C"] and len(words) > 1:
        return words[2:], posixpath.join(cwd, words[1])
    return words, cwd


def _restored(verb: str, words: list[str]) -> list[str]:
    """The paths that git restores in the working tree."""
    if verb == "reset" and "--hard" in words:
        return ["."]
    if verb == "restore" and not ({"--staged", "-S"} & set(words) and "--worktree" not in words):
        return [word for word in words if not word.startswith("-")]
    if verb != "checkout" or {"-b", "-B", "--orphan"} & set(words):
        return []
    if "--" in words:
        return words[words.index("--") + 1 :]
    return [w for w in words if not w.startswith("-") and (w == "." or re.search(r"\.\w+$", w))]


def restores(paths: Iterable[str], file: str, *, known: Iterable[str]) -> bool:
    """Whether paths that are restored hold a file. Where the folder of a relative path is unknown,
    it is the one file of the session that ends with it, folder and all.

    >>> restores(["/w/b/a.py"], "/w/a/a.py", known=[]), restores(["/w/b"], "/w/b/a.py", known=[])
    (False, True)
    """
    for path in paths:
        if file == path or file.startswith(path.rstrip("/") + "/"):
            return True
        relative = not path.startswith("/") and path not in (".", "..")
        if relative and [name for name in known if name.endswith(f"/{path}")] == [file]:
            return True
    return False


def commits(command: Command, output: str) -> str:
    """The hash of the commit that a command line made; "" if it made none.

    >>> from composer_replication.data.sites.shell import parse
    >>> commits(parse("git commit -m x"), "[main 1a2b3c4] x")
    '1a2b3c4'
    """
    is_commit = any(s.name == "git" and "commit" in s.operands[:1] for s in command.simple)
    match = _COMMITTED.search(output) if is_commit else None
    return match[1] if match else ""
