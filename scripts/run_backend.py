"""Run the tests of one backend or environment library in an environment of its own, because their
pins conflict with each other's.

    python3 scripts/run_backend.py verl           (make backends runs all of them)

The environment .venv-NAME holds the packages of requirements/backend_NAME.txt on top of those of
.venv (as that of scripts/run_peers.py), and .npm-NAME the programs of requirements/npm_NAME. The
last line is "verl: ran 31 tests in 84 s", or "verl: not installed (why)" if the packages cannot be
had, which is not a failure. That of the agents names each program, too: "ran: mini; not installed:
claude, codex, opencode". A red test is a failure, and so is a stage or a program whose tests did
not run although it is there. A test that needs what no package index has (a checkout, a GPU) is
skipped, and its reason is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import npm_programs
import run_peers

ROOT = Path(__file__).resolve().parent.parent
NAMES = tuple(
    sorted(
        path.stem.removeprefix("backend_") for path in (ROOT / "requirements").glob("backend_*.txt")
    )
)
"""The backends that have an environment: those with a requirements/backend_NAME.txt."""
PROGRAMS: Mapping[str, tuple[str, ...]] = {"agents": ("mini", *npm_programs.names("agents"))}
"""The programs that a backend's tests run; a test records its own as the property "program"."""
_NO_TEST = "no test"


def closing_line(name: str, *, junit: Path, seconds: float, path: str = "") -> str:
    """How many tests of a backend ran, and why others did not: "verl: ran 31 tests in 84 s".

    Each of its programs is named, as one that ran or as one that is not on the `path`.
    """
    cases = list(ET.parse(junit).iter("testcase"))
    skipped = [reason for case in cases if (reason := case.find("skipped")) is not None]
    ran = len(cases) - len(skipped)
    if not ran:
        return f"{name}: {_NO_TEST}"
    reasons = sorted({reason.get("message", "") for reason in skipped})
    left_out = f"; {len(skipped)} not run ({'; '.join(reasons)})" if skipped else ""
    programs = _program_states(cases, PROGRAMS.get(name, ()), path=path)
    return f"{name}: ran {ran} test{'' if ran == 1 else 's'} in {seconds:.0f} s{left_out}{programs}"


def _program_states(cases: list[ET.Element], programs: tuple[str, ...], *, path: str) -> str:
    """What became of each program: "; ran: mini; not installed: codex"; last, those that are there
    and whose tests did not run."""
    ran = {
        row.get("value")
        for case in cases
        if case.find("skipped") is None
        for row in case.iter("property")
        if row.get("name") == "program"
    }
    states: dict[str, list[str]] = {"ran": [], "not installed": [], _NO_TEST: []}
    for program in programs:
        absent = "not installed" if shutil.which(program, path=path) is None else _NO_TEST
        states["ran" if program in ran else absent].append(program)
    return "".join(f"; {state}: {', '.join(found)}" for state, found in states.items() if found)


def install(name: str) -> str:
    """Make or refresh the environment of a backend; returns why that failed, or "".

    Without its programs from npm its other tests run.
    """
    if problem := npm_programs.install(name):
        missing = ", ".join(npm_programs.names(name))
        print(f"{name}: not installed: {missing} ({problem})", flush=True)
    pins = ROOT / "requirements" / f"backend_{name}.txt"
    return run_peers.install(ROOT / f".venv-{name}", pins=pins)


def run_one(name: str, problem: str) -> int:
    """Run the tests of a backend, unless a `problem` kept it from being installed; returns pytest's
    exit code, or 0 if it is not installed."""
    folder = ROOT / f".venv-{name}"
    if problem:
        print(f"{name}: not installed ({problem})", flush=True)
        return 0
    junit = ROOT / "build" / f"backend_{name}.xml"
    junit.parent.mkdir(exist_ok=True)
    junit.unlink(missing_ok=True)
    begin = time.monotonic()
    command = [
        str(run_peers.python_in(folder)),
        "-m",
        "pytest",
        "-rs",
        "-n",
        "2",
        "--dist=loadfile",  # in the order of the file: what a test leaves behind meets the next
        "-m",
        "backend",
        "--disable-warnings",
        f"--junitxml={junit}",
        f"tests/backends_{name}",
    ]
    env = {**run_peers.offline_environment(), "COMPOSER_BACKEND": name}
    places = [run_peers.python_in(folder).parent, npm_programs.bin_folder(name)]
    path = os.pathsep.join([*(str(p) for p in places if p is not None), env.get("PATH", "")])
    env["PATH"] = path
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if not junit.exists():
        print(f"{name}: pytest wrote no result", flush=True)
        return code or 1
    line = closing_line(name, junit=junit, seconds=time.monotonic() - begin, path=path)
    print(line, flush=True)
    return code or int(line.endswith(f": {_NO_TEST}") or f"; {_NO_TEST}: " in line)


def main(names: list[str]) -> int:
    """Run the named backends, or all, each while the next ones are installed; returns 0 if none of
    them failed."""
    if unknown := [name for name in names if name not in NAMES]:
        print(
            f"run_backend: no requirements/backend_{unknown[0]}.txt; there are: {', '.join(NAMES)}"
        )
        return 2
    names = names or list(NAMES)
    installer = ThreadPoolExecutor(max_workers=1)
    try:
        problems = [installer.submit(install, name) for name in names]
        return max(run_one(n, made.result()) for n, made in zip(names, problems, strict=True))
    finally:
        installer.shutdown(cancel_futures=True)  # after Ctrl-C nothing more is installed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
