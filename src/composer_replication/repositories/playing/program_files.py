"""Where an agent program is installed, as folders that a sandbox can show it.

    files = program_files(("claude", "-p", "Fix it."))
    files.command       # ("/player/bin/node", "/player/node_modules/.../cli.js", "-p", "Fix it.")
    files.read_only     # (("/opt/node/bin/node", "/player/bin/node"), ...)

A Python script brings the environment of its first line, a program of npm its node_modules and
node, any other program its own file.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import ConfigError
from composer_replication.repositories.sandbox.tree_sandbox import interpreter

PLAYER = "/player"
"""Where a program's files are inside."""
_MODULES = "node_modules"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFiles:
    """A command line as it is inside, and the (outside, inside) pairs of what it needs."""

    command: tuple[str, ...]
    read_only: tuple[tuple[str, str], ...]


def program_files(command: Sequence[str]) -> ProgramFiles:
    """The files of the program of a command line; raises ConfigError if it is not installed."""
    name, *arguments = command
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"{name} is not installed", where="rollouts.player", fix="install it, or name its path"
        )
    path = Path(found).absolute()
    real = path.resolve()
    if _MODULES in real.parts:
        return _of_npm(real, arguments)
    with path.open("rb") as file:
        first = file.readline(512)
    python = str(path) if real.name.startswith("python") else ""
    if first.startswith(b"#!") and b"python" in first:
        python = first[2:].decode("utf-8", "replace").strip()
    if python:
        runtime = interpreter(python).read_only
        more = _linked_folders(python, known=[Path(outside) for outside, _ in runtime])
        return ProgramFiles(command=(str(path), *arguments), read_only=(*runtime, *more))
    inside = f"{PLAYER}/bin/{real.name}"
    return ProgramFiles(command=(inside, *arguments), read_only=((str(real), inside),))


def _linked_folders(python: str, *, known: Sequence[Path]) -> list[tuple[str, str]]:
    """Folders outside of an environment from which it imports, as .pth files name them."""
    code = "import os, sys; print(*filter(os.path.isdir, sys.path), sep='\\n')"
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, cwd="/", check=True
    )
    folders = [Path(line) for line in done.stdout.splitlines()]
    return [
        (str(folder), str(folder))
        for folder in folders
        if not any(folder.is_relative_to(other) for other in known)
    ]


def _of_npm(real: Path, arguments: Sequence[str]) -> ProgramFiles:
    at = real.parts.index(_MODULES)
    modules = Path(*real.parts[: at + 1])
    inside = str(Path(PLAYER, _MODULES, *real.parts[at + 1 :]))
    with real.open("rb") as file:
        if file.read(4) == _ELF:
            return ProgramFiles(
                command=(inside, *arguments), read_only=((str(modules), f"{PLAYER}/{_MODULES}"),)
            )
    node = shutil.which("node")
    if node is None:
        raise ConfigError(
            f"{real.name} needs node", where="rollouts.player", fix="put node on the PATH"
        )
    return ProgramFiles(
        command=(f"{PLAYER}/bin/node", inside, *arguments),
        read_only=(
            (str(modules), f"{PLAYER}/{_MODULES}"),
            (str(Path(node).resolve()), f"{PLAYER}/bin/node"),
        ),
    )
