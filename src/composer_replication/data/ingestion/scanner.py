"""Run the user's secret scanner as a gate: sessions that it objects to are not stored, and so never
trained on, shown or sent.

    command = ("kingfisher", "scan", "{file}")
    check_file(Path("work/.sessions.jsonl"), command=command)     # raises SecretsFoundError

The redactor has few rules, all by one author; a scanner has hundreds. The command runs without a
shell. "{file}" in it stands for the file; if no part of the command names it, the file is appended.
Exit code 0 means that nothing was found, any other that something was. The scanner's output is not
repeated, because it quotes the secrets. Its environment is minimal and holds no key.

A scanner of NAMED_SCANNERS is set up by its name alone, `scanner = "gitleaks"`, with options that
make it read one file, hide the secrets and write a report, from which the findings are counted by
kind.
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
"""The exit code for findings that a named scanner is asked to use: with its default of 1, findings
and its own failures look the same."""
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
    """Insert the file into the command.

    >>> command_line(("scan", "--file={file}"), Path("a.jsonl"))
    ['scan', '--file=a.jsonl']
    >>> command_line(("scan", "-q"), Path("a.jsonl"))
    ['scan', '-q', 'a.jsonl']
    """
    if any(FILE in part for part in command):
        return [part.replace(FILE, str(path)) for part in command]
    return [*command, str(path)]


def check_file(path: Path, *, command: Sequence[str], timeout_s: float = 600.0) -> None:
    """Run the scanner over a file; raises SecretsFoundError if it objects, ConfigError if it cannot
    be run."""
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
    """Run a scanner of NAMED_SCANNERS and read its report; a failure of the scanner itself does not
    pass the file."""
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
    """Count the findings of each rule in a report of gitleaks, without reading the secrets."""
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
