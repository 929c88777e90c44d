"""What the demo says at its end, and how a shell calls this program."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_replication.report.claims import claims
from composer_replication.report.evidence import verdict as judged


def summary(table: Mapping[str, Any]) -> list[str]:
    """Three lines: success by row, what the intervals support, and that the mistakes were planted."""
    verdict = judged(table["paired"])
    rows = ", ".join(f"{row['name']} {row['success']:.2f}" for row in table["rows"])
    held = [claim.text for claim in claims(table) if claim.holds]
    return [
        f"Success on {table['n']} unseen tasks: {rows}.",
        " ".join([verdict["sentence"], *held]),
        "The mistakes and the following of hints were planted in the student; real logs say what yours are.",
    ]


def command() -> str:
    """How a shell calls this program: by name where it is on the PATH, else by the path of the installed script."""
    script = Path(sys.argv[0]).absolute()
    if shutil.which("recompose") or script.name != "recompose" or not script.is_file():
        return "recompose"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
