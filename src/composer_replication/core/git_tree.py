"""Whether git would commit a folder, read from the repository's files.

    leak_of(Path("recompose"))      # "", or "git tracks recompose/sessions.jsonl in /home/me/shop"

git itself is not called: it runs programs that a repository's settings name. Ignore rules are read
as far as names and simple patterns go; a rule that is not understood counts as not ignoring.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

STORE = ("sessions.jsonl", "ingest.json", "redaction.key")
MAX_INDEX_BYTES = 2**28
_MAX_RULES_BYTES = 2**20
_ALL = ("*", "/*", "**")
_HEAD = 62  # bytes of an entry before its path, with SHA-1


def leak_of(folder: Path) -> str:
    """Why files written into a folder could get into a commit; "" if they cannot."""
    folder = folder.resolve()
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is None:
        return ""
    inside = folder.relative_to(root).as_posix()
    tracked = _tracked(root)
    below = [
        path for path in tracked if path.startswith(f"{inside}/") and path != f"{inside}/.gitignore"
    ]
    if held := below if inside != "." else [path for path in tracked if path in STORE]:
        return (
            f"git tracks {held[0]}{f' and {len(held) - 1} more files there' if held[1:] else ''} in"
            f" {root}"
        )
    return "" if _is_ignored(folder, root) else f"git does not ignore it in {root}"


def ignores_all(folder: Path) -> bool:
    """Whether the .gitignore of a folder keeps all of it out."""
    return _verdict(_rules(folder / ".gitignore"), _ALL) is True


def _is_ignored(folder: Path, root: Path) -> bool:
    """Whether a rule in the folder, or in a parent folder of the repository, ignores it."""
    if ignores_all(folder):
        return True
    for place in (
        parent
        for parent in (folder, *folder.parents)
        if parent != root and parent.is_relative_to(root)
    ):
        for above in (parent for parent in place.parents if parent.is_relative_to(root)):
            rules = _rules(above / ".gitignore") + (
                _rules(above / ".git" / "info" / "exclude") if above == root else []
            )
            path = place.relative_to(above).as_posix()
            names = {*_ALL, path, f"/{path}", place.name, f"**/{place.name}"}
            if _verdict(rules, names, path=path):
                return True
    return False


def _verdict(rules: Iterable[str], names: Iterable[str], *, path: str = "") -> bool | None:
    """Whether the last matching rule ignores one of these names; None if no rule matches.

    Every negated rule counts as matching: in doubt a name is not ignored.
    """
    ignored: bool | None = None
    for rule in rules:
        if rule.startswith("!"):
            ignored = ignored if rule == "!.gitignore" else False
        elif rule.rstrip("/") in names or (
            path
            and "/" not in rule.rstrip("/")
            and fnmatchcase(path.rpartition("/")[2], rule.rstrip("/"))
        ):
            ignored = True
    return ignored


def _rules(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_RULES_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _tracked(root: Path) -> list[str]:
    """The paths in a repository's index; [] if there is none, or its format is unknown."""
    git = root / ".git"
    try:
        if git.is_file():  # a worktree or a submodule
            git = root / git.read_text("utf-8").removeprefix("gitdir:").strip()
        if (git / "index").stat().st_size > MAX_INDEX_BYTES:
            return []
        data = (git / "index").read_bytes()
        magic, version, count = struct.unpack_from(">4sII", data)
        return _paths(data, version, count) if magic == b"DIRC" and version in (2, 3, 4) else []
    except (OSError, ValueError, IndexError, struct.error):
        return []


def _paths(data: bytes, version: int, count: int) -> list[str]:
    """The paths of an index of version 2, 3 or 4 (gitformat-index)."""
    paths: list[str] = []
    at, before = 12, b""
    for _ in range(count):
        flags = struct.unpack_from(">H", data, at + _HEAD - 2)[0]
        start = at + _HEAD + (2 if version >= 3 and flags & 0x4000 else 0)
        if version == 4:  # paths are prefix-compressed: drop n bytes of the last path, then append
            drop, start = _number(data, start)
            end = data.index(b"\0", start)
            before = before[: len(before) - drop] + data[start:end]
            at = end + 1
        else:
            end = data.index(b"\0", start)
            before = data[start:end]
            at += (end - at + 8) // 8 * 8
        paths.append(before.decode("utf-8", "surrogateescape"))
    return paths


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length integer; returns it and the offset behind it."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1
