"""Hold the embedded curation against real data-juicer: an environment of its own, .venv-data-juicer (2 GB), and tests/peers.

    python3 scripts/run_data_juicer.py            (make data-juicer)

PyTorch first, as scripts/setup.py does it, so that data-juicer finds it and installs nothing by itself; then requirements/data_juicer.txt.
Needs the project's own .venv (make setup). Ends with "data-juicer: ran 5 tests", or "data-juicer: not installed (why)" where the packages
cannot be had, which is no failure. A test that fails is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

import setup

ROOT = Path(__file__).resolve().parent.parent
PIN = "data_juicer.txt"
JUNIT = ROOT / "build" / "data_juicer.xml"


def install(folder: Path) -> str:
    """Make or refresh the environment; returns why that cannot be done, "" where it is done."""
    pins = setup.PINS
    setup.VENV, setup.PINS = folder, (*pins, PIN)  # PyTorch's pin stands among the project's own
    mark, wanted = setup.VENV / ".stamp", setup.stamp()
    if mark.exists() and mark.read_text("utf-8") == wanted and setup.python_in_venv().exists():
        return ""
    print(f"data-juicer: {folder.name} (PyTorch first, then the pinned packages)", flush=True)
    mark.unlink(missing_ok=True)
    if not setup.python_in_venv().exists():
        venv.create(setup.VENV, with_pip=True, clear=True)
    try:
        setup.install_torch()
        setup.pip("install", "--quiet", "-r", str(ROOT / "requirements" / PIN))
    except SystemExit as error:
        return str(error).strip().splitlines()[0]
    mark.write_text(wanted, "utf-8")
    return ""


def closing_line(junit: Path) -> str:
    """What is said at the end: how many tests ran, or why none did. Example: "data-juicer: ran 5 tests"."""
    cases = list(ET.parse(junit).iter("testcase"))
    skipped = {reason.get("message", "") for case in cases if (reason := case.find("skipped")) is not None}
    return f"data-juicer: not run ({'; '.join(sorted(skipped))})" if skipped else f"data-juicer: ran {len(cases)} tests"


def main() -> int:
    """Install and run; returns pytest's exit code."""
    own = setup.python_in_venv()
    if problem := install(ROOT / ".venv-data-juicer"):
        print(f"data-juicer: not installed ({problem})")
        return 0
    JUNIT.parent.mkdir(exist_ok=True)
    JUNIT.unlink(missing_ok=True)
    env = {**os.environ, "COMPOSER_DATA_JUICER": str(setup.python_in_venv()), "OMP_NUM_THREADS": "1"}
    command = [str(own), "-m", "pytest", "-rs", "--timeout", "3600", f"--junitxml={JUNIT}", "tests/peers"]
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    print(closing_line(JUNIT) if JUNIT.exists() else "data-juicer: pytest wrote no result", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
