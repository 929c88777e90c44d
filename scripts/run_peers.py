"""Run the tests that need another trainer, kernel library or server next to ours, and report for
every peer whether it was available.

    python3 scripts/run_peers.py            (make peers, best after make test)

Ends with one line per peer: "trl: ran 66 tests", "liger: ran 1 test", "serve: ran 1 test"
(transformers serve), or "trl: not installed (why)" if the packages cannot be had, e.g. without a
network. That is not a failure (exit code 0). If they are installed, a red test is one.

The environment is .venv-peers: the packages of requirements/peers.txt on top of those of .venv,
which are found there and not installed twice. PyTorch is that of .venv, so no peer can install
another build of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import setup

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"
PINS = ROOT / "requirements" / "peers.txt"
JUNIT = ROOT / "build" / "peers.xml"
INSTALL_S = 600
"""Seconds after which a package index that does not answer counts as unavailable."""
_BLOCKS = "tests/test_guide_blocks.py"
_OF_TRL = "test_the_block_of_the_trainer_runs_with_trl_and_says_what_to_install_without"
TESTS: Mapping[str, tuple[str, ...]] = {
    "trl": ("tests/backends", "tests/benchmarks/test_gpu_and_step.py", f"{_BLOCKS}::{_OF_TRL}"),
    "liger": ("tests/backends/test_divergence_peers.py",),
    "serve": (
        "tests/peers/test_transformers_serve.py",
        "tests/peers/test_transformers_serve_teacher.py",
    ),
    "minilm": ("tests/peers/test_minilm.py",),
    "bitsandbytes": ("tests/peers/test_bitsandbytes.py",),
    "parquet": ("tests/peers/test_parquet.py",),
}
"""The tests of each peer. In the JUnit file, a test of Liger has "liger" among its parameters."""
_FILES = {
    "serve": "test_transformers_serve",
    "minilm": "test_minilm",
    "bitsandbytes": "test_bitsandbytes",
    "parquet": "test_parquet",
}
"""How the names of the files of some peers' tests begin."""


def python_in(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / setup.python_in_venv().relative_to(setup.VENV)


def install(folder: Path = PEERS, *, pins: Path = PINS) -> str:
    """Make or refresh an environment: .venv's packages, with the pinned ones on top; returns why
    that failed, or ""."""
    try:
        setup.main()
    except SystemExit as error:
        return _first_line(error)
    stamp_file, wanted = folder / ".stamp", f"{setup.stamp()}\n{pins.read_text('utf-8')}"
    if (
        stamp_file.exists()
        and stamp_file.read_text("utf-8") == wanted
        and python_in(folder).exists()
    ):
        return ""
    print(f"peers: {folder.name} (the packages of .venv, and requirements/{pins.name})", flush=True)
    stamp_file.unlink(missing_ok=True)
    venv.create(folder, with_pip=False, clear=True)
    (_packages(python_in(folder)) / "base.pth").write_text(
        f"{_packages(setup.python_in_venv())}\n", "utf-8"
    )
    command = [
        str(setup.python_in_venv()),
        "-m",
        "pip",
        "--python",
        str(python_in(folder)),
        "--disable-pip-version-check",
    ]
    command += [
        "install",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
        "--retries",
        "1",
        "-r",
        str(pins),
    ]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        return f"the index gave no answer within {INSTALL_S} s"
    if process.returncode != 0:
        return (
            [line for line in process.stderr.splitlines() if line.startswith("ERROR")]
            or ["pip failed"]
        )[-1]
    stamp_file.write_text(wanted, "utf-8")
    return ""


def _packages(python: Path) -> Path:
    """The folder of an interpreter's packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run(
            [str(python), "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    )


def _first_line(error: SystemExit) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "the set-up failed")


def closing_lines(junit: Path) -> list[str]:
    """One line per peer, e.g. "trl: ran 66 tests": how many of its tests ran, or why they did not;
    "no test" if none was found."""
    ran, reasons = dict.fromkeys(TESTS, 0), {name: set[str]() for name in TESTS}
    for case in ET.parse(junit).iter("testcase"):
        file, name = case.get("classname", ""), case.get("name", "")
        peer = next(
            (peer for peer, start in _FILES.items() if file.startswith(f"tests.peers.{start}")),
            "liger" if "liger" in name else "trl",
        )
        skipped = case.find("skipped")
        if skipped is None:
            ran[peer] += 1
        elif not any(
            label in (why := skipped.get("message", "")) for label in ("CUDA", "guide's blocks")
        ):
            reasons[peer].add(why)
    states = {
        name: f"ran {n} test{'' if n == 1 else 's'}" if n else "no test" for name, n in ran.items()
    }
    states |= {
        name: f"not installed ({'; '.join(sorted(why))})" for name, why in reasons.items() if why
    }
    return [f"{name}: {label}" for name, label in states.items()]


def offline_environment() -> dict[str, str]:
    """The environment of a stage's tests: this checkout's source, one thread, no model hub."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
    }


def main() -> int:
    """Install and run; returns pytest's exit code, or 0 if the peers cannot be installed."""
    if problem := install():
        print("\n".join(f"{name}: not installed ({problem})" for name in TESTS))
        return 0
    JUNIT.parent.mkdir(exist_ok=True)
    JUNIT.unlink(missing_ok=True)
    paths = [
        path
        for path in dict.fromkeys(p for paths in TESTS.values() for p in paths)
        if not path.startswith("tests/backends/")
    ]
    command = [
        str(python_in(PEERS)),
        "-m",
        "pytest",
        "-rs",
        "-n",
        "2",
        "--disable-warnings",
        f"--junitxml={JUNIT}",
        *paths,
    ]
    code = subprocess.run(command, cwd=ROOT, env=offline_environment(), check=False).returncode
    lines = closing_lines(JUNIT) if JUNIT.exists() else ["trl: pytest wrote no result"]
    print("\n".join(lines), flush=True)
    silent = any(line.endswith((": no test", "no result")) for line in lines)
    return code or int(silent)


if __name__ == "__main__":
    sys.exit(main())
