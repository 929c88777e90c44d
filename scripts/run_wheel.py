"""Build the wheel, install it in a fresh environment without PyTorch, and run the audit from it.

    python3 scripts/run_wheel.py            (make wheel)

Ends with one line: "wheel: 2.1 MB, installed in 9 s, audit in 1.2 s: 6 mistakes in 24 tool calls",
or "wheel: not installed (why)" if the four dependencies cannot be had, e.g. without a network; that
is not a failure (exit code 0). An audit that says something else than it should is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import run_peers
import setup

ROOT = Path(__file__).resolve().parent.parent
MISTAKES, CALLS = 6, 24
"""What `logs` plants: six sessions, each with three readings and an edit that fails."""
DAYS = ("2026-10-05", "2026-10-06", "2026-10-13", "2026-10-20", "2026-10-27", "2026-11-03")
NO_TORCH = "import importlib.util as u; raise SystemExit(u.find_spec('torch') is not None)"


def build(folder: Path) -> Path:
    """Build the wheel of the tree as it is; returns its path."""
    command = [str(setup.python_in_venv()), "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> str:
    """Make an environment and install the wheel with what it needs; returns why that failed."""
    venv.create(folder, with_pip=True)
    command = [
        str(run_peers.python_in(folder)),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries",
        "1",
    ]
    try:
        process = subprocess.run(
            [*command, str(wheel)],
            capture_output=True,
            text=True,
            check=False,
            timeout=run_peers.INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        return f"the index gave no answer within {run_peers.INSTALL_S} s"
    lines = [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
    return (lines or ["pip failed"])[-1] if process.returncode else ""


def write_logs(home: Path) -> None:
    """Write logs as Claude Code would keep them, with the tests' builder."""
    sys.path.insert(0, str(ROOT))
    from tests.cli.agent_logs import sessions_on

    sessions_on(DAYS, to=home / ".claude" / "projects")


def audit(folder: Path, home: Path) -> dict[str, object]:
    """Run the installed command on the logs of a home folder, from an empty folder."""
    program = run_peers.python_in(folder).with_name("composer-replication")
    (home / "empty").mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    process = subprocess.run(
        [str(program), "audit", "--json"],
        cwd=home / "empty",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


def main() -> int:
    """Build, install, run; returns 1 if the audit is wrong or PyTorch came along."""
    with tempfile.TemporaryDirectory() as scratch:
        wheel, folder, home = build(Path(scratch)), Path(scratch) / "venv", Path(scratch) / "home"
        size = wheel.stat().st_size / 1e6
        began = time.monotonic()
        if problem := install(wheel, folder):
            print(f"wheel: not installed ({problem})")
            return 0
        installed = time.monotonic() - began
        python = str(run_peers.python_in(folder))
        if subprocess.run([python, "-c", NO_TORCH], check=False).returncode:
            print("wheel: PyTorch was installed with it")
            return 1
        write_logs(home)
        began = time.monotonic()
        rate = audit(folder, home)["rate"]
        seconds = time.monotonic() - began
        assert isinstance(rate, dict)
        said = f"{rate['mistakes']} mistakes in {rate['calls']} tool calls"
        times = f"installed in {installed:.0f} s, audit in {seconds:.1f} s"
        print(f"wheel: {size:.1f} MB, {times}: {said}")
        return int((rate["mistakes"], rate["calls"]) != (MISTAKES, CALLS))


if __name__ == "__main__":
    sys.exit(main())
