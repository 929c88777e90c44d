"""Every error a user can meet, in one tree.

    ComposerError
    ├── ConfigError        (ValueError)    a setting that cannot be used
    │   └── UntrustedError                 a settings file that needs the user's trust first
    ├── DataError          (ValueError)    a file or record that cannot be used
    │   ├── SessionError                   a Session that contradicts itself
    │   ├── DamagedError                   a checkpoint whose files have changed or are missing
    │   ├── SecretsFoundError              data in which the user's scanner finds a secret
    │   ├── SiteError                      a Site or Hint that contradicts its Session
    │   └── AlignmentError                 token views that do not line up
    ├── RenderError        (ValueError)    a chat template that cannot be spanned
    ├── MissingExtraError  (ImportError)   an optional dependency that is not installed
    ├── SandboxError       (RuntimeError)  code that cannot be run safely here
    ├── TeacherError       (RuntimeError)  a model that was asked and gave no answer
    ├── BusyError          (RuntimeError)  a folder that another process is working on
    ├── UnwrittenError     (OSError)       a file that could not be written, e.g. on a full disk
    ├── BudgetError        (RuntimeError)  the next call could cost more than is left
    │   └── NoSpaceError                   no disk space for the next answer
    ├── ReplicaError       (RuntimeError)  replicas that failed or did not end in time
    ├── SyncError          (RuntimeError)  replicas that cannot meet over their store
    │   └── SlotTakenError                 a replica whose slot another one holds
    └── StoppedError       (RuntimeError)  a run that a health rule stopped

Each says what happened, where, and how to fix it (`what`, `where`, `fix`); the CLI prints the three
apart. Each class also inherits the standard exception that a caller would expect to catch.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


class ComposerError(Exception):
    """An error with a remedy.

    >>> print(ConfigError("unknown key 'wieght'", where="a.toml", fix="did you mean 'weight'?"))
    unknown key 'wieght' (at a.toml); did you mean 'weight'?
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        text = what
        if where:
            text += f" (at {where})"
        if fix:
            text += f"; {fix}"
        super().__init__(text)


class ConfigError(ComposerError, ValueError):
    """A setting that cannot be used, e.g. an unknown key or a window smaller than a message."""


class UntrustedError(ConfigError):
    """An untrusted settings file that would run code, send data or reach outside its folder."""


class DataError(ComposerError, ValueError):
    """A file or record that cannot be used, e.g. a sessions file of a newer schema."""


class SessionError(DataError):
    """A Session that contradicts itself, e.g. a segment that names a turn which does not exist."""


class SecretsFoundError(DataError):
    """Redacted data in which the scanner of ingest.scanner still finds secrets; never stored."""


class DamagedError(DataError):
    """A checkpoint with a changed or missing file; `before` is the newest intact one before it."""

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", before: Path | None = None
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.before = before


class SiteError(DataError):
    """A Site or Hint that contradicts its Session, e.g. evidence before the mistake."""


class AlignmentError(DataError):
    """Token views that do not line up, e.g. a view whose target ids are not the student's."""


class RenderError(ComposerError, ValueError):
    """A chat template that cannot be spanned; the message names the turn and both renderings."""


class MissingExtraError(ComposerError, ImportError):
    """An optional dependency that is not installed; the message holds the install line."""


class SandboxError(ComposerError, RuntimeError):
    """Code that cannot be run safely here, e.g. because the kernel offers no system call filter."""


class TeacherError(ComposerError, RuntimeError):
    """One attempt at asking a model that gave no answer, e.g. a time-out.

    `again` = another attempt may succeed, after `wait_s` seconds if the endpoint asks for a pause.
    `billed` = the endpoint may charge for the attempt. It is False only if the endpoint refused
    before it began; only then is the booked money released. `for_all` = every other request to
    this teacher would fail too, e.g. because its key is not accepted.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        again: bool,
        billed: bool,
        wait_s: float | None = None,
        for_all: bool = False,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.again, self.billed, self.wait_s, self.for_all = again, billed, wait_s, for_all


class BusyError(ComposerError, RuntimeError):
    """A folder that another process is working on, e.g. the same run resumed twice at once."""


class UnwrittenError(ComposerError, OSError):
    """A file that could not be written, e.g. on a full disk; its old content is unchanged."""


class BudgetError(ComposerError, RuntimeError):
    """The next call could exceed the ceiling (exit code 4); every answer bought so far is kept."""

    exit_code = 4


class NoSpaceError(BudgetError):
    """The disk has no room for the next answer, so none is requested; earlier answers are kept."""

    exit_code = 1


class ReplicaError(ComposerError, RuntimeError):
    """Replicas that failed; by slot, `failures` has reasons and `results` what others returned."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        results: Mapping[int, Mapping[str, Any]] | None = None,
        failures: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.results, self.failures = dict(results or {}), dict(failures or {})


class StoppedError(ComposerError, RuntimeError):
    """A run that a health rule stopped (exit code 3), e.g. a channel was starved for too long."""

    exit_code = 3


class SyncError(ComposerError, RuntimeError):
    """Replicas that cannot sync through their store, e.g. because it cannot be written."""


class SlotTakenError(SyncError):
    """A replica whose slot another one holds (exit code 17): its data would count twice."""

    exit_code = 17


def pip_install(*words: str) -> str:
    """The command that installs into the running Python; a bare `pip` may belong to another one.

    >>> command = pip_install("composer-replication[train]")
    >>> command.endswith(" -m pip install 'composer-replication[train]'")
    True
    """
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *words])


def install_fix(extra: str) -> str:
    """The command that installs the packages of an extra."""
    command = pip_install(f"composer-replication[{extra}]")
    return f"run: {command}\n(in a clone: {shlex.quote(f'.[{extra}]')} in the name's place)"


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency inside the function that uses it, or say how to install it.

    >>> need("json", extra="train").dumps({})
    '{}'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is there, but something it needs is broken: do not blame the extra
        raise MissingExtraError(
            f"this needs the Python package {module.split('.')[0]!r}, which is not installed",
            fix=install_fix(extra),
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of what a library's exception says, or its name if it says nothing.

    >>> first_line(OSError("no such model\\nsee https://...")), first_line(KeyError())
    ('no such model', 'KeyError')
    """
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__
