"""Functions of the user's own, named by import path in the settings."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from composer_replication.core.errors import ConfigError


def load_function(path: str, *, setting: str) -> Callable[..., Any]:
    """The function at "package.module:function"; raises ConfigError that names the setting and what is wrong.

    >>> load_function("json:dumps", setting="sites.detectors")([1])
    '[1]'
    """
    where = f"[{setting}]"
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise ConfigError(f"{path!r} is neither a built-in name nor an import path", where=where, fix="write it as package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name!r}: {error}",
            where=where,
            fix=f"install it, or put its folder on PYTHONPATH ({sys.path[0] or '.'} is)",
        ) from error
    function = vars(module).get(name)
    if not callable(function):
        raise ConfigError(f"{module_name!r} has no function {name!r}", where=where, fix="check the part after the colon")
    return function
