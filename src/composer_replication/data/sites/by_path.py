"""Load the user's own functions, which settings name by import path or by file:
"package.module:function", "path/to/file.py:function".

A file is imported under a unique name derived from its path and content, so that it never shadows
another module. Modules beside it are importable only through PYTHONPATH.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.abc import SourceLoader
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from composer_replication.core.errors import ConfigError
from composer_replication.core.surroundings import without_keys


def load_function(path: str, *, setting: str, built_in: Iterable[str] = ()) -> Callable[..., Any]:
    """Load the function at "package.module:function" or "file.py:function"; raises ConfigError with
    the setting and the problem.

    `built_in` are the names that the setting also accepts: the error suggests the nearest one.

    >>> load_function("json:dumps", setting="sites.detectors")([1])
    '[1]'
    """
    where = f"[{setting}]"
    module_name, _, name = path.rpartition(":")
    if not (module_name and name):
        near = did_you_mean(path, built_in)
        fix = (
            f"{near}, or write it as package.module:function"
            if near
            else "write it as package.module:function"
        )
        raise ConfigError(
            f"{path!r} is neither a built-in name nor an import path", where=where, fix=fix
        )
    try:
        with without_keys():
            module = (
                _load_file(Path(module_name), where)
                if module_name.endswith(".py")
                else _load_module(module_name)
            )
    except ConfigError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module_name!r}: {error}",
            where=where,
            fix=f"install it, or put its folder on PYTHONPATH ({sys.path[0] or '.'} is)",
        ) from error
    # The module is the user's: any exception on import is theirs to correct.
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} raised {_describe_error(error)}",
            where=where,
            fix="correct that module",
        ) from error
    function = vars(module).get(name)
    if not callable(function):
        raise ConfigError(
            f"{module_name!r} has no function {name!r}",
            where=where,
            fix="check the part after the colon",
        )
    return function


def files_of(path: str, function: Callable[..., Any]) -> tuple[Path, ...]:
    """List the file that `path` names and, if the function is defined elsewhere, that file; not the
    files that these import.

    Example: files_of("mine/tasks.py:make", make) -> (Path("mine/tasks.py"),)
    """
    module_name = path.rpartition(":")[0]
    named = (
        module_name
        if module_name.endswith(".py")
        else getattr(sys.modules.get(module_name), "__file__", None)
    )
    defining_file = getattr(
        sys.modules.get(getattr(function, "__module__", None) or ""), "__file__", None
    )
    return tuple(dict.fromkeys(Path(name).resolve() for name in (named, defining_file) if name))


def _load_file(file: Path, where: str) -> ModuleType:
    """Import a file as a module, once per path and content."""
    if not file.is_file():
        raise ConfigError(
            f"no file {str(file)!r}", where=where, fix="check the part in front of the colon"
        )
    loader = _HashedSource(file.resolve())
    name = (
        f"{file.stem}_{hashlib.sha256(str(loader.file).encode() + loader.content).hexdigest()[:16]}"
    )
    if name not in sys.modules:
        spec = importlib.util.spec_from_loader(name, loader)
        if spec is None:
            raise ImportError(f"{file} cannot be loaded")
        # dataclasses and pickle look up a class's module in sys.modules
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _load_module(module_name: str) -> ModuleType:
    """Import a module and its packages from source: the user trusted the source, and a .pyc beside
    it may hold other code."""
    names = module_name.split(".")
    for name in (".".join(names[:n]) for n in range(1, len(names) + 1)):
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            importlib.import_module(name)
            continue
        spec.loader = _HashedSource(Path(spec.origin))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        package, _, attribute = name.rpartition(".")
        if package:
            setattr(sys.modules[package], attribute, module)
    return sys.modules[module_name]


class _HashedSource(SourceLoader):
    """Executes the bytes that were hashed, never those of a stale .pyc."""

    def __init__(self, file: Path) -> None:
        self.file, self.content = file, file.read_bytes()

    def get_filename(self, fullname: str) -> str:
        return str(self.file)

    def get_data(self, path: str) -> bytes:
        return self.content


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest name as a question; "" if none is near.

    >>> did_you_mean("tool_eror", ["tool_error", "failed_check"])
    "did you mean 'tool_error'?"
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


@contextmanager
def users_code(path: str, function: Callable[..., Any], *, setting: str, on: str) -> Iterator[None]:
    """Turn any exception of a user's function into a ConfigError with its name, file and input.

    with users_code("mine:detect", detect, setting="sites.detectors", on="session s1"):
        detect(session)
    # ConfigError: mine:detect raised KeyError: 'x' on session s1 (at mine.py:12 ...)
    """
    try:
        yield
    # Any exception of the user's function is the user's to correct; the cause is kept.
    except Exception as error:
        raise ConfigError(
            f"{path} raised {_describe_error(error)} on {on}",
            where=f"{_error_location(function, error)} [{setting}]",
            fix="correct that function, or take it out of the settings",
        ) from error


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _error_location(function: Callable[..., Any], error: Exception) -> str:
    """The last line of the function's file in the traceback, e.g. "mine.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{frames[-1].filename}:{frames[-1].lineno}"
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"
