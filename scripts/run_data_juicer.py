"""Compare the embedded curation with real data-juicer: tests/peers/test_data_juicer.py, with the
environment .venv-data-juicer.

    python3 scripts/run_data_juicer.py            (make data-juicer, best after make test)

The environment holds the packages of requirements/data_juicer.txt and takes the others from .venv,
like that of the peers (600 MB). So PyTorch is that of .venv, and data-juicer finds everything that
it would otherwise install by itself. The last line is "data-juicer: ran 7 tests", or "data-juicer:
not installed (why)" if the packages cannot be had, which is not a failure. A red test is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import run_peers
import setup

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-data-juicer"
PINS = ROOT / "requirements" / "data_juicer.txt"
JUNIT = ROOT / "build" / "data_juicer.xml"
TESTS = "tests/peers/test_data_juicer.py"


def closing_line(junit: Path) -> str:
    """The last line of the output: how many tests ran, or why none did, e.g. "data-juicer: ran 7
    tests"."""
    cases = list(ET.parse(junit).iter("testcase"))
    skipped = {
        reason.get("message", "") for case in cases if (reason := case.find("skipped")) is not None
    }
    return (
        f"data-juicer: not run ({'; '.join(sorted(skipped))})"
        if skipped
        else f"data-juicer: ran {len(cases)} tests"
    )


def main() -> int:
    """Install and run; returns pytest's exit code, or 0 if data-juicer cannot be installed."""
    if problem := run_peers.install(FOLDER, pins=PINS):
        print(f"data-juicer: not installed ({problem})")
        return 0
    JUNIT.parent.mkdir(exist_ok=True)
    JUNIT.unlink(missing_ok=True)
    env = {
        **os.environ,
        "COMPOSER_DATA_JUICER": str(run_peers.python_in(FOLDER)),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        str(setup.python_in_venv()),
        "-m",
        "pytest",
        "-rs",
        "-n",
        "2",
        "--timeout",
        "1200",
        f"--junitxml={JUNIT}",
        TESTS,
    ]
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    line = closing_line(JUNIT) if JUNIT.exists() else "data-juicer: pytest wrote no result"
    print(line, flush=True)
    return code or int(": ran " not in line)


if __name__ == "__main__":
    sys.exit(main())
