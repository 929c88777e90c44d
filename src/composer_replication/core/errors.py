"""Every error a user can meet, in one tree.

    ComposerError
    ├── ConfigError        (ValueError)    a setting that cannot be used
    │   └── UntrustedError                 a settings file that would run or send something, and that the user has not trusted
    ├── DataError          (ValueError)    a file or record that cannot be used
    │   ├── SessionError                   a Session that contradicts itself
    │   ├── DamagedError                   a checkpoint that is not what was written
    │   ├── SecretsFoundError              what the user's own scanner objects to
    │   ├── SiteError                      a Site or Hint that contradicts its Session
    │   └── AlignmentError                 token views that do not line up
    ├── RenderError        (ValueError)    a chat template that cannot be spanned
    ├── MissingExtraError  (ImportError)   an optional dependency that is not installed
    ├── SandboxError       (RuntimeError)  code that cannot be run safely here
    ├── TeacherError       (RuntimeError)  a model that was asked and gave no answer
    ├── BusyError          (RuntimeError)  a folder that another process is working on
    ├── UnwrittenError     (OSError)       what could not be written, e.g. because the disk is full
    ├── BudgetError        (RuntimeError)  the next call could cost more than is left
    └── StoppedError       (RuntimeError)  a run that a health rule stopped

Each says what happened, where, and what to do about it; the CLI prints the three apart.
Each class also inherits the standard exception that a caller would expect to catch.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from types import ModuleType


class ComposerError(Exception):
    """An error with a remedy.

    >>> error = ConfigError("unknown key 'wieght'", where="recompose.toml [train.hint]", fix="did you mean 'weight'?")
    >>> print(error)
    unknown key 'wieght' (at recompose.toml [train.hint]); did you mean 'weight'?
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
    """A settings file that would run code, send something or write elsewhere, and that the user has
    not trusted."""


class DataError(ComposerError, ValueError):
    """A file or record that cannot be used, e.g. a sessions file of a newer schema."""


class SessionError(DataError):
    """A Session that contradicts itself, e.g. a segment that names a turn which does not exist."""


class SecretsFoundError(DataError):
    """Redacted data in which the user's own scanner (ingest.scanner) still finds something: it is
    not stored."""


class DamagedError(DataError):
    """A checkpoint that is not what was written, e.g. one with a file cut off; `before` is the
    newest earlier one that is whole."""

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", before: Path | None = None
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.before = before


class SiteError(DataError):
    """A Site or Hint that contradicts its Session, e.g. evidence that is not later than the
    mistake."""


class AlignmentError(DataError):
    """Token views that do not line up, e.g. a teacher view that is not an insertion into the
    student's ids."""


class RenderError(ComposerError, ValueError):
    """A chat template that cannot be spanned; the message names the turn and shows both
    renderings."""


class MissingExtraError(ComposerError, ImportError):
    """An optional dependency that is not installed; the message holds the install line."""


class SandboxError(ComposerError, RuntimeError):
    """Code that cannot be run safely here, e.g. because the kernel offers no system call filter."""


class TeacherError(ComposerError, RuntimeError):
    """One attempt at asking a model that brought no answer, e.g. a time-out.

    `again` = another attempt may succeed, not before `wait_s` seconds where the endpoint said so.
    `billed` = whether the endpoint may charge for it all the same: False only where it refused
    before it began, so that the money booked for it is free again. `for_all` = every other request
    to this teacher would fail, too, e.g. because its key is not accepted.
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
    """What could not be written, e.g. because the disk is full; what stood there before is as it
    was."""


class BudgetError(ComposerError, RuntimeError):
    """The next call could cost more than is left of the ceiling (exit code 4); everything bought so
    far is kept."""

    exit_code = 4


class NoSpaceError(BudgetError):
    """The disk has no room for the next answer, so none is asked for; as at the ceiling, everything
    bought so far is kept."""

    exit_code = 1


class StoppedError(ComposerError, RuntimeError):
    """A run that a health rule stopped, e.g. a channel that was starved for too long (exit code
    3)."""

    exit_code = 3


def pip_install(*words: str) -> str:
    """The command line that installs into the Python that runs this; a bare `pip` may be that of
    another one.

    >>> pip_install("composer-replication[train]").endswith(" -m pip install 'composer-replication[train]'")
    True
    """
    return shlex.join([sys.executable or "python", "-m", "pip", "install", *words])


def install_fix(extra: str) -> str:
    """What to run where the packages of an extra are missing."""
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
