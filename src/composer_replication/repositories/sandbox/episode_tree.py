"""A tree that a player works on: a process behind walls that stays for one episode.

    with prepared_tree(base) as prepared, EpisodeTree(sandbox, prepared, files=changed) as tree:
        tree.run("python -m pytest -q", cwd="/repo", limit_s=60).out
        tree.write("/repo/shop/cart.py", text)
        changes = tree.changes()        # ends every process of the player
        changes.texts, changes.deleted

The host's copy of the tree is the lower layer of an overlay: opening one costs the same whatever
its size, and only what the player changes is in memory. Where the kernel has no overlay, the tree
is copied. All that the player wrote is data of the player: nothing of it is run or trusted here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.room_launcher import RoomProcess, room_launcher
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox, walls_advice
from composer_replication.repositories.sandbox.tree_sandbox_child import NOBODY, REPO

_START_S, _ANSWER_S = 60.0, 30.0
_MOST_TEXT = 4 << 20


class EpisodeTreeError(Exception):
    """The process of a tree ended or did not answer: this episode is lost, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTree:
    """A copy of a tree that many episodes share, read-only to them, and the hash of each file."""

    folder: Path
    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended: its exit code, whether it passed its limit, what it wrote, how many
    bytes of that were dropped, and the folder in which the shell ended."""

    code: int
    late: bool
    out: str
    err: str
    cwd: str
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChanges:
    """What a player changed: new texts by path, deleted paths, and paths that now hold something
    else: bytes that are no text, a link."""

    texts: Mapping[str, str]
    deleted: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def paths(self) -> list[str]:
        """Every path that differs from the beginning, sorted."""
        return sorted((*self.texts, *self.deleted, *self.others))


@contextmanager
def prepared_tree(base: Path) -> Iterator[PreparedTree]:
    """Copy a tree to where episodes can share it, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="composer-tree-") as scratch:
        folder = Path(scratch) / "tree"
        shutil.copytree(base, folder, symlinks=True)
        hashes: dict[str, str] = {}
        for path in (folder, *sorted(folder.rglob("*"))):
            if os.getuid() == 0:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if path.is_file() and not path.is_symlink():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                hashes[path.relative_to(folder).as_posix()] = content
        yield PreparedTree(folder=folder, hashes=hashes)


@dataclass(slots=True)
class EpisodeTree:
    """One player's tree; opened at once, closed at the end of a `with` or by `close`.

    `files` replace those of the prepared tree; `loopback` switches on its own 127.0.0.1. Raises
    SandboxError where there are no walls, and EpisodeTreeError if the process behind them is lost.
    """

    sandbox: TreeSandbox
    prepared: PreparedTree
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    overlay: bool = True
    loopback: bool = False
    _room: RoomProcess | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        spec = self.sandbox.specification(tree=self.prepared.folder, env=self.env)
        spec |= {"overlay": self.overlay, "files": dict(self.files), "loopback": self.loopback}
        self._room = room = room_launcher().start(spec)
        if room.receive(wait_s=_START_S) is None:
            self._room = None
            last = (room.kill().splitlines() or ["it said nothing"])[-1]
            raise SandboxError(
                f"a tree cannot be opened: {last}", where="the sandbox", fix=walls_advice()
            )

    def __enter__(self) -> EpisodeTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, command: str, *, cwd: str = REPO, limit_s: float = 60.0, most: int = 1 << 20
    ) -> CommandResult:
        """Run a line of shell; `most` bytes of each of its outputs are kept."""
        answer = self.ask(
            "run", command=command, cwd=cwd, limit_s=limit_s, most=most, wait_s=limit_s
        )
        if "error" in answer:  # no process can be started: the player has too many
            return CommandResult(
                code=126, late=False, out="", err=answer["error"], cwd=cwd, dropped=0
            )
        return CommandResult(**answer)

    def read(self, path: str, *, most: int = _MOST_TEXT) -> dict[str, Any]:
        """The text of a file with its time, or {"error": name of the error}."""
        return self.ask("read", path=path, most=most)

    def write(self, path: str, text: str) -> dict[str, Any]:
        """Write a file, with the folders above it; its time, or {"error": name of the error}."""
        return self.ask("write", path=path, text=text)

    def ask(self, what: str, *, wait_s: float = 0.0, **request: Any) -> dict[str, Any]:
        """Send a request to the process behind the walls (episode_room.py); its answer."""
        room = self._room
        if room is None:
            raise EpisodeTreeError("the tree is closed")
        answer = None
        if room.send({"do": what, **request}):
            answer = room.receive(wait_s=wait_s + _ANSWER_S)
        if answer is None:
            self.close()
            raise EpisodeTreeError(f"the tree's process gave no answer to {what!r}")
        return answer

    def changes(self) -> TreeChanges:
        """End the player's processes and read out what differs from the beginning."""
        before = dict(self.prepared.hashes)
        for path, text in self.files.items():
            before[path] = hashlib.sha256(text.encode()).hexdigest()
        answer = self.ask("hashes")
        if "error" in answer:
            raise EpisodeTreeError(f"its files cannot be read: {answer['error']}")
        now: dict[str, str] = answer["hashes"]
        texts: dict[str, str] = {}
        others: list[str] = []
        for path in sorted(path for path, digest in now.items() if before.get(path) != digest):
            read = self.read(f"{REPO}/{path}")
            text = read.get("text", "")
            if hashlib.sha256(text.encode()).hexdigest() == now[path]:
                texts[path] = text
            else:
                others.append(path)
        return TreeChanges(
            texts=texts, deleted=tuple(sorted(set(before) - set(now))), others=tuple(others)
        )

    def close(self) -> None:
        """End the process and everything that the player started."""
        room, self._room = self._room, None
        if room is not None:
            room.kill()
