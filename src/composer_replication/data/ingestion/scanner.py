"""A scanner of the user's own as a gate: what it objects to is not stored, and so never trained on, shown or sent.

    check_file(Path("work/.sessions.jsonl"), command=("kingfisher", "scan", "{file}"))     # raises SecretsFoundError

The redactor's rules are few and of one hand; a scanner knows hundreds. The command is run without a shell; "{file}" in it
stands for the file, which is added at the end where no part of the command names it. Exit code 0 = nothing found, any
other = something was. What the scanner prints is not repeated: it quotes what it found. It gets a minimal environment, without any key.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from composer_replication.core.errors import ConfigError, SecretsFoundError
from composer_replication.core.surroundings import program_environment

PLACE = "{file}"
SETTING = "[ingest.scanner]"


def command_line(command: Sequence[str], path: Path) -> list[str]:
    """The command with the file in it.

    >>> command_line(("scan", "--file={file}"), Path("a.jsonl")), command_line(("scan", "-q"), Path("a.jsonl"))
    (['scan', '--file=a.jsonl'], ['scan', '-q', 'a.jsonl'])
    """
    if any(PLACE in part for part in command):
        return [part.replace(PLACE, str(path)) for part in command]
    return [*command, str(path)]


def check_file(path: Path, *, command: Sequence[str], timeout_s: float = 600.0) -> None:
    """Run the scanner over a file; raises SecretsFoundError where it objects, ConfigError where it cannot be run."""
    line = command_line(command, path)
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, env=program_environment()
        )
    except OSError as error:
        what = f"the scanner {line[0]!r} cannot be run: {error.strerror or type(error).__name__}"
        raise ConfigError(what, where=SETTING, fix="install it, or give its path") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"the scanner {line[0]!r} was not done within {timeout_s:g} s", where=SETTING) from error
    if done.returncode:
        num_lines = len(done.stdout.splitlines()) + len(done.stderr.splitlines())
        raise SecretsFoundError(
            f"the scanner {line[0]!r} objects to the redacted sessions (exit code {done.returncode}, {num_lines} lines of findings)",
            where=SETTING,
            fix="nothing was stored; run the scanner on your logs, put what it finds into ingest.redact_words, and ingest again",
        )
