"""The way behind the walls: ours, bubblewrap's or podman's. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn

from composer_replication.repositories.sandbox.bubblewrap import enter_bubblewrap
from composer_replication.repositories.sandbox.podman import run_podman
from composer_replication.repositories.sandbox.tree_sandbox_child import (
    Room,
    behind_namespaces,
    run_in_room,
)


def run_behind_walls(descriptor: int) -> int:
    """Run the program of a specification; returns its exit code, or 128 + the signal's number."""
    return behind_walls(descriptor, run_in_room)


def behind_walls(descriptor: int, inside: Callable[[Room], NoReturn]) -> int:
    """Do `inside` as the first process behind the walls that a specification asks for; returns its
    exit code."""
    with open(descriptor, encoding="utf-8") as file:
        spec = json.load(file)
    if spec["bwrap"]:
        enter_bubblewrap(spec, inside)
    if spec.get("podman"):
        return run_podman(spec, inside)
    return behind_namespaces(spec, inside)
