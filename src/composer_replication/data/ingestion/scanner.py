"""A scanner of the user's own as a gate: what it objects to is not stored, and so never trained on,
shown or sent.

    check_file(Path("work/.sessions.jsonl"), command=("kingfisher", "scan", "{file}"))     # raises SecretsFoundError

The redactor's rules are few and of one hand; a scanner knows hundreds. The command is run without a
shell; "{file}" in it stands for the file, which is added at the end where no part of the command
names it. Exit code 0 = nothing found, any other = something was. What the scanner prints is not
repeated: it quotes what it found. It gets a minimal environment, without any key.

A scanner of BY_NAME is set up by its name alone, `scanner = "gitleaks"`: with the options that make
it look at one file, keep what it found to itself and write a report, of which the kinds and lines
are told.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from composer_replication.core.errors import ConfigError, SecretsFoundError
from composer_replication.core.files import scratch_folder
from composer_replication.core.surroundings import program_environment

FILE, REPORT = "{file}", "{report}"
FINDINGS_EXIT_CODE = 9
"""The exit code that a scanner set up by name is told to use for findings: 1 is also that of its
own faults."""
_GITLEAKS = (
    "dir",
    FILE,
    "--no-banner",
    "--log-level=error",
    "--redact",
    f"--exit-code={FINDINGS_EXIT_CODE}",
    "--report-format=json",
    f"--report-path={REPORT}",
)
NAMED_SCANNERS: dict[str, tuple[str, ...]] = {"gitleaks": ("gitleaks", *_GITLEAKS)}
"""Scanners that need no command: gitleaks 8.19 or later."""
SETTING = "[ingest.scanner]"


def command_line(command: Sequence[str], path: Path) -> list[str]:
    """The command with the file in it.

    >>> command_line(("scan", "--file={file}"), Path("a.jsonl")), command_line(("scan", "-q"), Path("a.jsonl"))
    (['scan', '--file=a.jsonl'], ['scan', '-q', 'a.jsonl'])
    """
    if any(FILE in part for part in command):
        return [part.replace(FILE, str(path)) for part in command]
    return [*command, str(path)]


def check_file(path: Path, *, command: Sequence[str], timeout_s: float = 600.0) -> None:
    """Run the scanner over a file; raises SecretsFoundError where it objects, ConfigError where it
    cannot be run."""
    if len(command) == 1 and command[0] in NAMED_SCANNERS:
        _check_with_named(path, command[0], timeout_s=timeout_s)
        return
    argv = command_line(command, path)
    completed = _run(argv, timeout_s=timeout_s)
    if completed.returncode:
        num_lines = len(completed.stdout.splitlines()) + len(completed.stderr.splitlines())
        raise _secrets_found(
            f"{argv[0]!r}", f"exit code {completed.returncode}, {num_lines} lines of findings"
        )


def _check_with_named(path: Path, name: str, *, timeout_s: float) -> None:
    """Run a scanner of BY_NAME and read its report; a fault of the scanner's own is no clean
    bill."""
    with scratch_folder(path.with_name("scan")) as folder:
        report = folder / "report.json"
        argv = [
            part.replace(REPORT, str(report)) for part in command_line(NAMED_SCANNERS[name], path)
        ]
        completed = _run(argv, timeout_s=timeout_s)
        if completed.returncode not in (0, FINDINGS_EXIT_CODE):
            problem = f"the scanner {name!r} failed (exit code {completed.returncode})"
            raise ConfigError(
                problem,
                where=SETTING,
                fix=(
                    f"run it by hand: {' '.join(argv[:3])} ...; it has to know these options (8.19"
                    " or later)"
                ),
            )
        findings = _count_findings(report, name)
    if findings or completed.returncode:
        raise _secrets_found(
            f"{name!r}",
            ", ".join(f"{kind}: {number}" for kind, number in findings.most_common())
            or "no report",
        )


def _count_findings(report: Path, name: str) -> Counter[str]:
    """How many findings of each rule a report of gitleaks holds; what was found is not looked
    at."""
    text = report.read_text("utf-8", "replace") if report.exists() else ""
    try:
        rows = json.loads(text) if text.strip() else []
        return Counter(str(row["RuleID"]) for row in rows or [])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the report of the scanner {name!r} cannot be read",
            where=SETTING,
            fix="give a command of your own instead",
        ) from error


def _run(argv: list[str], *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    try:
        completed = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=program_environment(),
        )
    except OSError as error:
        problem = f"the scanner {argv[0]!r} cannot be run: {error.strerror or type(error).__name__}"
        raise ConfigError(problem, where=SETTING, fix="install it, or give its path") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the scanner {argv[0]!r} was not done within {timeout_s:g} s", where=SETTING
        ) from error
    return completed


def _secrets_found(scanner: str, findings: str) -> SecretsFoundError:
    return SecretsFoundError(
        f"the scanner {scanner} objects to the redacted sessions ({findings})",
        where=SETTING,
        fix=(
            "nothing was stored; run the scanner on your logs, put what it finds into"
            " ingest.redact_words, and ingest again"
        ),
    )
