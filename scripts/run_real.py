"""Run the tests on real tokenizers and real weights, in an environment of their own, and say
whether they ran.

    python3 scripts/run_real.py            (make real, best after make test)

1. .venv-real: the packages of .venv, and those of requirements/real.txt on top (as run_peers.py).
2. scripts/real_models.py makes the folders in build/real (COMPOSER_REPLICATION_REAL names another
   place), once.
3. tests/real, and scripts/real_table.py checks docs/real_models.md against what they counted.

Ends with "real: ran N tests", and exit code 1 if one failed, none ran, or the page is stale. "real:
not installed (why)" if a package cannot be had, for want of a network or of npm: that is no failure
(exit code 0). A package that is not the pinned one is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import real_models
import run_peers

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-real"
PINS = ROOT / "requirements" / "real.txt"
JUNIT = ROOT / "build" / "real.xml"
VARIABLE = "COMPOSER_REPLICATION_REAL"
TESTS = "tests/real"
TIMEOUT_S = 1800
"""Of one test: the whole path on real weights is one."""


def closing_line(junit: Path) -> str:
    """How many tests ran, and why the others did not. Example: "real: ran 96 tests"."""
    ran, reasons = 0, dict[str, int]()
    for case in ET.parse(junit).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            ran += 1
        else:
            reason = skipped.get("message", "").removeprefix("Skipped: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    line = f"real: ran {ran} test{'' if ran == 1 else 's'}" if ran else "real: no test ran"
    return line + "".join(f"; {count} not run: {why}" for why, count in sorted(reasons.items()))


def make_folders(python: Path, cache: Path) -> tuple[int, str]:
    """The exit code of real_models.py, and its last words."""
    command = [str(python), str(ROOT / "scripts" / "real_models.py"), "--cache", str(cache)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
    return done.returncode, lines[-1].removeprefix("real: ")


def main() -> int:
    """Install, make the folders, run; returns the exit code."""
    if problem := run_peers.install(FOLDER, pins=PINS):
        print(f"real: not installed ({problem})")
        return 0
    python = run_peers.python_in(FOLDER)
    cache = Path(os.environ.get(VARIABLE) or real_models.CACHE).resolve()
    code, words = make_folders(python, cache)
    if code == real_models.UNAVAILABLE:
        print(f"real: not installed ({words})")
        return 0
    if code != 0:
        print(f"real: failed: {words}")
        return code
    shutil.rmtree(cache / "results", ignore_errors=True)
    JUNIT.parent.mkdir(exist_ok=True)
    JUNIT.unlink(missing_ok=True)
    env = {
        **run_peers.offline_environment(),
        "TOKENIZERS_PARALLELISM": "false",
        VARIABLE: str(cache),
    }
    # one process: the tests of one tokenizer share what it rendered
    command = [str(python), "-m", "pytest", "-rs", "-p", "no:xdist", "--disable-warnings"]
    command += ["--timeout", str(TIMEOUT_S), f"--junitxml={JUNIT}", TESTS]
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    line = closing_line(JUNIT) if JUNIT.exists() else "real: no test ran, pytest wrote no result"
    if code == 0 and (cache / "results").is_dir():
        check = [str(python), str(ROOT / "scripts" / "real_table.py"), "--cache", str(cache)]
        code = subprocess.run([*check, *sys.argv[1:]], cwd=ROOT, check=False).returncode
    print(line, flush=True)
    return code or int("no test ran" in line)


if __name__ == "__main__":
    sys.exit(main())
