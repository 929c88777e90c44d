"""What a repository's tests need: set up once, mounted read-only afterwards.

environment = language_of(checkout).make_environment(checkout, folder=folder, program="")
note_environment(environment)               # once it has run the repository's tests
environment = read_environment(folder)      # afterwards
environment.program     # what runs the tests: an interpreter with pytest, for Python
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import write_text

_PROGRAM = "interpreter.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestEnvironment:
    """The program that runs tests, and a folder of what was written for the sandbox beside it."""

    __test__ = False  # no test class, whatever pytest thinks of its name

    program: str
    metadata: Path


def environment_in(folder: Path, program: str) -> TestEnvironment:
    """The environment of this folder, whose tests this program runs."""
    return TestEnvironment(program=program, metadata=folder / "metadata")


def note_environment(environment: TestEnvironment) -> None:
    """Note the program in the environment's folder, in the place of an earlier one."""
    write_text(environment.metadata.parent / _PROGRAM, environment.program)


def read_environment(folder: Path) -> TestEnvironment:
    """The environment that was set up here; raises DataError if there is none."""
    # Python's, set up before the program was noted
    file, installed = folder / _PROGRAM, folder / "python" / "bin" / "python"
    if not file.exists() and installed.exists():
        return environment_in(folder, str(installed.absolute()))
    if not file.exists():
        raise DataError(
            "no environment was set up", where=str(folder), fix="recompose tasks make REPO"
        )
    return environment_in(folder, file.read_text(encoding="utf-8"))
