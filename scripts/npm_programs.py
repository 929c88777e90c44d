"""Install the programs that a backend's tests run and that come from npm, in a folder of their own.

    npm_programs.install("agents")      # "" or why not, e.g. "no npm on the PATH"

The folder .npm-NAME (1.1 GB for the agents) is made from requirements/npm_NAME, and anew where
that, the system or Node.js changes. The lock file there was made from this folder's package.json:

    npm install --package-lock-only --omit-lockfile-registry-resolved
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
INSTALL_S = 600
"""Seconds after which a registry that does not answer counts as unavailable."""
_FILES = ("package.json", "package-lock.json")
_STAMP = ".stamp"


def names(backend: str) -> tuple[str, ...]:
    """The programs of a backend that come from npm, e.g. ("claude", "codex", "opencode")."""
    lock = _pins(backend) / "package-lock.json"
    if not lock.exists():
        return ()
    packages: Mapping[str, Any] = json.loads(lock.read_text("utf-8"))["packages"]
    wanted = packages[""]["dependencies"]
    return tuple(sorted(name for p in wanted for name in packages[f"node_modules/{p}"]["bin"]))


def bin_folder(backend: str) -> Path | None:
    """The folder of a backend's programs; None if they are not installed, or others than wanted."""
    stamp = _folder(backend) / _STAMP
    if not stamp.exists() or stamp.read_text("utf-8") != _wanted(backend):
        return None
    return _folder(backend) / "node_modules" / ".bin"


def install(backend: str) -> str:
    """Install the programs of a backend unless they are there; returns why that failed, or ""."""
    if not names(backend) or bin_folder(backend) is not None:
        return ""
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        return f"no {' and no '.join(missing)} on the PATH"
    folder = _folder(backend)
    print(f"{backend}: {folder.name} (requirements/{_pins(backend).name})", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in _FILES:
        shutil.copy(_pins(backend) / file, folder)
    problem = _install_in(folder, programs=names(backend))
    if problem:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / _STAMP).write_text(_wanted(backend), "utf-8")
    return problem


def _install_in(folder: Path, *, programs: tuple[str, ...]) -> str:
    """Run npm, and each program once: the part of it that is for this system is optional to npm."""
    command = [shutil.which("npm") or "npm", "install", "--no-audit", "--no-fund"]
    if problem := _problem([*command, "--fetch-retries=1"], folder):
        return problem
    place = os.pathsep.join([str(folder / "node_modules" / ".bin"), os.environ.get("PATH", "")])
    for name in programs:
        program = shutil.which(name, path=place) or name
        if problem := _problem([program, "--version"], folder):
            return f"{name} does not start: {problem}"
    return ""


def _problem(command: list[str], folder: Path) -> str:
    """The first error of a command, or "" if it ended well."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line and "warn" not in line]
    return lines[0] if lines else f"exit code {done.returncode}"


def _pins(backend: str) -> Path:
    return ROOT / "requirements" / f"npm_{backend}"


def _folder(backend: str) -> Path:
    return ROOT / f".npm-{backend}"


def _wanted(backend: str) -> str:
    """What the installed programs depend on."""
    parts = [platform.platform(terse=True), shutil.which("node") or "no node"]
    return "\0".join([*parts, *((_pins(backend) / name).read_text("utf-8") for name in _FILES)])
