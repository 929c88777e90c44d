"""Run the tests of other trainers' backends where these are installed: an environment of its own, .venv-peers.

    python3 scripts/run_peers.py            (make peers)

PyTorch first, as scripts/setup.py does it, then requirements/base.txt, train.txt and peers.txt. Ends with one line per backend:
"trl: ran 25 tests", or "trl: not installed (why)" where the packages cannot be had, which is no failure. A test that fails is one.
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
PINS = ("base.txt", "train.txt", "peers.txt")
JUNIT = ROOT / "build" / "peers.xml"


def install() -> str:
    """Make or refresh .venv-peers; returns why that cannot be done, "" where it is done."""
    setup.VENV, setup.PINS = ROOT / ".venv-peers", PINS
    mark, wanted = setup.VENV / ".stamp", setup.stamp()
    if mark.exists() and mark.read_text("utf-8") == wanted and setup.python_in_venv().exists():
        return ""
    print("peers: .venv-peers (PyTorch first, then the pinned packages)", flush=True)
    mark.unlink(missing_ok=True)
    if not setup.python_in_venv().exists():
        venv.create(setup.VENV, with_pip=True, clear=True)
    try:
        setup.install_torch()
        setup.pip("install", "--quiet", *(arg for name in PINS for arg in ("-r", str(ROOT / "requirements" / name))))
    except SystemExit as error:
        return str(error).strip().splitlines()[0]
    mark.write_text(wanted, "utf-8")
    return ""


def closing_line(junit: Path) -> str:
    """What is said of TRL: how many of its tests ran, or the reason why they did not.

    Example: "trl: ran 25 tests"
    """
    ran, reasons = 0, set()
    for case in ET.parse(junit).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            ran += 1
        else:
            reasons.add(skipped.get("message", "").partition(":")[0])
    return f"trl: not installed ({'; '.join(sorted(reasons))})" if reasons else f"trl: ran {ran} tests"


def main() -> int:
    """Install and run; returns pytest's exit code."""
    if problem := install():
        print(f"trl: not installed ({problem})")
        return 0
    JUNIT.parent.mkdir(exist_ok=True)
    JUNIT.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    command = [str(setup.python_in_venv()), "-m", "pytest", "-rs", f"--junitxml={JUNIT}", "tests/backends"]
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    print(closing_line(JUNIT) if JUNIT.exists() else "trl: pytest wrote no result", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
