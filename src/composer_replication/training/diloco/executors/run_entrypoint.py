"""Run a function as a replica: `python -m ...run_entrypoint package.function '{"argument": 1}'`.

What it returns becomes the replica's done marker, and the error that ends it a failure marker. A
dotted name may also be a module: its function `main`, or the one that has the module's name.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from composer_replication.core.errors import ConfigError
from composer_replication.training.diloco.executors.done_marker import write_done, write_failure


def entrypoint_named(name: str) -> Callable[..., Any]:
    """The function of a dotted name, e.g. "package.module.function" or "package.module".

    >>> entrypoint_named("os.path.join").__name__
    'join'
    """
    parent, _, last = name.rpartition(".")
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not parent or error.name not in (name, parent):
            raise
        found = getattr(importlib.import_module(parent), last, None)
    if isinstance(found, ModuleType):
        found = getattr(found, "main", None) or getattr(found, last, None)
    if not callable(found):
        raise ConfigError(
            f"{name!r} is neither a function nor a module with a function main",
            where="entrypoint",
            fix='write "package.module.function"',
        )
    return found


def run_entrypoint(arguments: list[str]) -> int:
    """Call the entrypoint with its keywords; returns the exit code."""
    name, keywords = arguments[0], json.loads(arguments[1])
    try:
        result = entrypoint_named(name)(**keywords)
        write_done(result if isinstance(result, dict) else {"result": result})
    except BaseException as error:
        write_failure(error)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(run_entrypoint(sys.argv[1:]))
