"""Functions of the user's own, named by import path in the settings."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from composer_replication.core.errors import ConfigError


def load_function(path: str, *, setting: str, built_in: Iterable[str] = ()) -> Callable[..., Any]:
    """The function at "package.module:function"; raises ConfigError that names the setting and what is wrong.

    `built_in` are the names that would have done as well: a mistyped one is answered with the nearest.

    >>> load_function("json:dumps", setting="sites.detectors")([1])
    '[1]'
    """
    where = f"[{setting}]"
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        near = did_you_mean(path, built_in)
        fix = f"{near}, or write it as package.module:function" if near else "write it as package.module:function"
        raise ConfigError(f"{path!r} is neither a built-in name nor an import path", where=where, fix=fix)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name!r}: {error}",
            where=where,
            fix=f"install it, or put its folder on PYTHONPATH ({sys.path[0] or '.'} is)",
        ) from error
    except Exception as error:  # the module is the user's: whatever it raises on import is theirs to correct
        raise ConfigError(f"importing {module_name!r} raised {_said(error)}", where=where, fix="correct that module") from error
    function = vars(module).get(name)
    if not callable(function):
        raise ConfigError(f"{module_name!r} has no function {name!r}", where=where, fix="check the part after the colon")
    return function


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question that names what was probably meant, or "" where nothing is near.

    >>> did_you_mean("tool_eror", ["tool_error", "failed_check"])
    "did you mean 'tool_error'?"
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


@contextmanager
def users_code(path: str, function: Callable[..., Any], *, setting: str, session_id: str) -> Iterator[None]:
    """Whatever a function of the user's raises inside becomes a ConfigError that names it, its file, and the session.

    with users_code("mine:detect", detect, setting="sites.detectors", session_id="s1"): detect(session)
    -> ConfigError: mine:detect raised KeyError: 'x' on session s1 (at mine.py:12 [sites.detectors])
    """
    try:
        yield
    except Exception as error:  # any error of a stranger's function is the stranger's, and is shown as such with its cause
        raise ConfigError(
            f"{path} raised {_said(error)} on session {session_id}",
            where=f"{_place(function, error)} [{setting}]",
            fix="correct that function, or take it out of the settings",
        ) from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _place(function: Callable[..., Any], error: Exception) -> str:
    """The last line of the function's own file that the error passed through, e.g. "mine.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{frames[-1].filename}:{frames[-1].lineno}"
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"
