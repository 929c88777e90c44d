"""Errors as text (what, where, fix), and the exit codes.

0 done · 1 a problem the user can fix · 2 usage (mistyped verb or flag) · 3 stopped by a health rule
· 4 budget reached.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
import sys
import traceback
from dataclasses import dataclass

from cyclopts.exceptions import CycloptsError
from rich.text import Text

from composer_replication.cli import INTERRUPTED
from composer_replication.cli.console import problem_box, rich_console
from composer_replication.core.errors import ComposerError

BOX_WIDTH = 4
"""The columns that a box takes beside its text."""
DONE, FIXABLE, USAGE, STOPPED, BUDGET = 0, 1, 2, 3, 4


class UsageError(ComposerError, ValueError):
    """A command line that does not name something that exists, e.g. `recompose trian`."""

    exit_code = USAGE


class InterruptedRunError(ComposerError, RuntimeError):
    """Work that Ctrl-C ended; it names how far it came and the command that goes on."""

    exit_code = INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error ready to be shown, with its exit code."""

    what: str
    where: str = ""
    fix: str = ""
    title: str = "problem"
    exit_code: int = FIXABLE


def describe(error: BaseException) -> Problem:
    """Describe an exception for the user; an unexpected one is called a bug of the program.

    >>> describe(ComposerError("no sites", fix="run: recompose sites")).fix
    'run: recompose sites'
    """
    if isinstance(error, ComposerError):
        title = (
            "stopped"
            if error.exit_code in (STOPPED, INTERRUPTED)
            else "usage"
            if error.exit_code == USAGE
            else "problem"
        )
        return Problem(
            what=error.what,
            where=error.where,
            fix=error.fix,
            title=title,
            exit_code=error.exit_code,
        )
    if isinstance(error, CycloptsError):
        return Problem(
            what=str(error).strip(),
            fix="see: recompose --help, or recompose COMMAND --help",
            title="usage",
            exit_code=USAGE,
        )
    if isinstance(error, KeyboardInterrupt):
        return Problem(what="interrupted", title="stopped", exit_code=INTERRUPTED)
    # by name, because torch is not imported here
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Problem(
            what="not enough memory",
            fix=(
                "set train.checkpoint = layers, lower train.micro_tokens, or take a smaller student"
            ),
        )
    if isinstance(error, OSError):
        path = str(error.filename or "")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Problem(
                what=error.strerror or str(error),
                where=path,
                fix="make room on that disk, or take a folder on another one",
            )
        return Problem(
            what=error.strerror or str(error),
            where=path,
            fix="check that the path exists, is yours and has space",
        )
    return Problem(
        what=f"{type(error).__name__}: {error}",
        fix=(
            "this is a bug of recompose, not of yours: run again with --debug and report the"
            " traceback"
        ),
        title="bug",
    )


def commands_of(fix: str) -> list[str]:
    """The commands that stand at the end of a line of a remedy.

    >>> commands_of("to go on: recompose train --resume a\\nor train again")
    ['recompose train --resume a']
    """
    found: list[str] = re.findall(r"(?:^|: )(recompose \S.*)$", fix, re.MULTILINE)
    return [command for command in found if _is_command(command)]


def _is_command(text: str) -> bool:
    """Whether a text is a command and no sentence that begins with one."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    return words.count("recompose") == 1 and not any(word.endswith((",", ";")) for word in words)


def report_error(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Show an error on stderr, or as one JSON object on stdout; returns the exit code."""
    problem = describe(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        facts = {
            "what": problem.what,
            "where": problem.where,
            "fix": problem.fix,
            "exit_code": problem.exit_code,
        }
        sys.stdout.write(json.dumps({"error": facts}) + "\n")
    else:
        console = rich_console(stderr=True)
        console.print(
            problem_box(problem.title, what=problem.what, where=problem.where, fix=problem.fix)
        )
        for command in commands_of(problem.fix):
            # the box has wrapped it: below it can be copied
            if len(command) > console.width - BOX_WIDTH:
                console.print(Text(command), soft_wrap=True)
    return problem.exit_code
